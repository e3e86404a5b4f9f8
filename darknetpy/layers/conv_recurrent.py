"""[crnn] and [conv_lstm]: recurrent layers made of convolutions."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.layers.activations import activate, known_activation
from darknetpy.layers.base import BuildContext, ForwardContext, LayerOptions
from darknetpy.layers.convolutional import Convolutional
from darknetpy.layers.gradients import clamp_gradient, pass_through, saved_as, scale_gradient
from darknetpy.layers.recurrent import Recurrent
from darknetpy.layers.registry import register
from darknetpy.lazy import torch


@dataclass
class ConvRecurrentOptions(LayerOptions):
    """Keys of the convolutions inside."""

    size: int = key(3, "kernel side")
    stride: int = key(1, "stride")
    dilation: int = key(1, "dilation")
    pad: int = key(0, "non-zero: padding = size/2")
    padding: int = key(0, "pixels on each side, where pad=0")
    groups: int = key(1, "channel groups")
    batch_normalize: int = key(0, "1: batch normalisation")
    xnor: int = key(0, "1: binarised weights and inputs")
    shortcut: int = key(0, "1: add the state (or the input) to the result")


class ConvRecurrent(Recurrent):
    is_dense = False

    def _conv(self, context: BuildContext, channels: int, filters: int, activation: str) -> Convolutional:
        o = self.options
        options = {name: getattr(o, name) for name in
                   ("size", "stride", "dilation", "pad", "padding", "groups", "batch_normalize", "xnor")}  # fmt: skip
        options |= {"filters": filters, "activation": activation}
        return Convolutional(context.part(self.w, self.h, channels, options))

    def _rows_of_parts(self) -> str:
        return "".join(f"\n{part.row()}" for part in self.parts.values())


@register("crnn")
class Crnn(ConvRecurrent):
    """As [rnn] with convolutions (Darknet: `forward_crnn_layer`). The state starts at zero in every training call."""

    @dataclass
    class Options(ConvRecurrentOptions):
        output: int = key(1, "output channels", loud=True)
        hidden: int = key(1, "channels of the state", loud=True)
        activation: str = key("logistic", "activation function", loud=True)

    def build(self, options, context) -> None:
        context.need_image("crnn layer")
        name = known_activation(options.activation, context)
        self.parts = {
            "input_layer": self._conv(context, self.c, options.hidden, name),
            "self_layer": self._conv(context, options.hidden, options.hidden, name),
            "output_layer": self._conv(context, options.hidden, options.output, name),
        }
        out, inner = self.parts["output_layer"], self.parts["input_layer"]
        if (inner.out_w, inner.out_h) != (self.w, self.h) and not context.strict:
            raise context.error("the convolutions of a crnn must keep the size", "use stride=1 and pad=1")
        self.image_size(out.out_w, out.out_h, options.output)
        self.bflops = sum(part.bflops for part in self.parts.values())

    def state_shapes(self, x):
        return [(self.options.hidden, *x.shape[2:])]

    def step(self, x, state, run):
        (h,) = state
        new = run["input_layer"](x) + run["self_layer"](h)
        if self.options.shortcut:
            new = new + h
        return run["output_layer"](new), (new,)

    def row(self) -> str:
        image = f"{self.w} x {self.h} x {self.c} image, {self.options.output} filters"
        return f"CRNN Layer: {image}{self._rows_of_parts()}"


@register("conv_lstm")
class ConvLstm(ConvRecurrent):
    """As [lstm] with convolutions; optional peepholes and bottleneck (Darknet: `forward_conv_lstm_layer_gpu`)."""

    @dataclass
    class Options(ConvRecurrentOptions):
        output: int = key(1, "output channels", loud=True)
        activation: str = key("linear", "activation of the gates' convolutions", loud=True)
        peephole: int = key(0, "1: gates see the cell state")
        bottleneck: int = key(0, "1: one convolution of state and input feeds all gates")
        state_constrain: float = key(0.0, "bound of the cell state; 32 * time_steps where missing")
        lstm_activation: str = key("tanh", "activation of candidate and output: tanh, leaky or linear", loud=True)
        time_normalizer: float = key(1.0, "factor on the gradient through time")

    def build(self, options, context) -> None:
        context.need_image("conv_lstm layer")
        n, name = options.output, known_activation(options.activation, context)
        self.bound = options.state_constrain or 32.0 * self.time_steps
        self.lstm_activation = known_activation(options.lstm_activation, context)
        self.parts = {}
        if options.peephole:
            self.parts |= {f"v{gate}": self._conv(context, n, n, name) for gate in "fio"}
        if options.bottleneck:
            self.parts["wf"] = self._conv(context, n + self.c, n, name)
        else:
            self.parts |= {f"w{gate}": self._conv(context, n, n, name) for gate in "figo"}
        self.parts |= {f"u{gate}": self._conv(context, n if options.bottleneck else self.c, n, name) for gate in "figo"}
        first = self.parts["uf"]
        self.image_size(first.out_w, first.out_h, n)
        extra = (12 if options.peephole else 9) * self.outputs * (self.batch // self.time_steps) / 1e9
        self.bflops = sum(part.bflops for part in self.parts.values()) + extra

    def state_shapes(self, x):
        shape = (self.options.output, *x.shape[2:])
        return [shape, shape]

    def forward(self, x, context: ForwardContext):
        darknet = context.strict and context.training and torch.is_grad_enabled()
        return self._forward_as_darknet(x, context) if darknet else super().forward(x, context)

    def _forward_as_darknet(self, x, context: ForwardContext):
        """Training with the gradients of Darknet's GPU build (`backward_conv_lstm_layer_gpu`).

        No gradient goes through h (with `bottleneck` it does, times `time_normalizer`). Its backward pass leaves
        three things behind: the state of step 0, with which the next mini-batch begins; the gradient of the cell that
        step 0 began with, which the next one adds to its last cell's; and the place of the state before step 0 holds
        the state after it, so that step 0's weights and forget gate get their gradients from that.
        """
        steps = context.time_steps
        frames = x.view(steps, x.shape[0] // steps, *x.shape[1:])
        memory, zeros = context.state, x.new_zeros(frames.shape[1], *self.state_shapes(x)[0])
        if "state" in memory and memory["state"][0].shape != zeros.shape:
            memory.clear()
        h, c = (part.clone() for part in memory.get("state", (zeros, zeros)))
        run = {name: self._runner(name, part, context) for name, part in self.parts.items()}
        c.requires_grad_().register_hook(lambda gradient: memory.update(cell_gradient=gradient.nan_to_num(0, 0, 0)))
        first, left = (h, c), memory.get("cell_gradient")
        late, outputs = {}, []
        for t, frame in enumerate(frames):
            with saved_as(dict(zip(first, "hc", strict=True)), late, zeros) if t == 0 else nullcontext():
                _, (h, c) = self.step(frame, (h, c), run, strict=True)
            if t == 0:
                memory["state"] = h.detach(), c.detach()
                if steps > 1:
                    late.update(h=h.detach(), c=c.detach())
            outputs.append(h)
        if left is not None:
            c.register_hook(lambda gradient: gradient + left)
        return torch.cat(outputs)

    def step(self, x, state, run, strict: bool = False):
        h, c = state
        if self.options.bottleneck:
            q = run["wf"](torch.cat([scale_gradient(h, self.options.time_normalizer), x], 1))
            q = activate(self.lstm_activation, clamp_gradient(q) if strict else q)
            f, i, g, o = (run[f"u{gate}"](q) for gate in "figo")
        else:
            h = h.detach() if strict else scale_gradient(h, self.options.time_normalizer)
            f, i, g, o = (run[f"w{gate}"](h) + run[f"u{gate}"](x) for gate in "figo")
        seen = (lambda cell: cell.detach()) if strict else lambda cell: cell
        if self.options.peephole:
            f, i = f + run["vf"](seen(c)), i + run["vi"](seen(c))
        candidate = activate(self.lstm_activation, g)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * candidate
        bounded = torch.nan_to_num(c, nan=0.0, posinf=self.bound, neginf=-self.bound).clamp(-self.bound, self.bound)
        c = pass_through(c, bounded) if strict else bounded
        if self.options.peephole:
            o = o + run["vo"](seen(c))
        h = torch.sigmoid(o) * activate(self.lstm_activation, c)
        return h, (h, c)

    def row(self) -> str:
        image = f"{self.h} x {self.w} x {self.c} image, {self.options.output} filters"
        return f"CONV_LSTM Layer: {image}{self._rows_of_parts()}"
