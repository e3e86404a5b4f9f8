"""[rnn], [gru] and [lstm]: dense recurrent layers. Rows are time-major: step t owns rows t*n .. (t+1)*n."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from darknetpy.config import key
from darknetpy.layers.activations import known_activation
from darknetpy.layers.base import BuildContext, ForwardContext, Layer, LayerOptions, TensorSpec, prefixed
from darknetpy.layers.connected import Connected
from darknetpy.layers.registry import register
from darknetpy.lazy import torch


class Recurrent(Layer):
    """Runs `step` over time; the state lasts from call to call at inference."""

    parts: dict[str, Layer]
    """Sub-layers in file order."""
    is_dense = remembers = True
    keeps_state_in_training = False

    def tensors(self) -> list[TensorSpec]:
        return [spec for name, part in self.parts.items() for spec in prefixed(name, part.tensors())]

    def forward(self, x, context: ForwardContext):
        steps = context.time_steps
        rows = x.shape[0] // steps
        state = self._state(x, rows, context)
        run = {name: self._runner(name, part, context) for name, part in self.parts.items()}
        outputs = []
        for frame in x.view(steps, rows, *x.shape[1:]):
            y, state = self.step(frame, state, run)
            outputs.append(y)
        context.state["state"] = tuple(part.detach() for part in state)
        return outputs[0] if steps == 1 else torch.cat(outputs)

    @staticmethod
    def _runner(name: str, part: Layer, context: ForwardContext) -> Callable:
        inner = context.sub(name)
        return lambda x: part.forward(x, inner)

    def _state(self, x, rows: int, context: ForwardContext) -> tuple:
        fresh = tuple(x.new_zeros(rows, *shape) for shape in self.state_shapes(x))
        kept = context.state.get("state")
        if kept is None or (context.training and not self.keeps_state_in_training):
            return fresh
        return kept if all(a.shape == b.shape for a, b in zip(kept, fresh, strict=True)) else fresh

    def state_shapes(self, x) -> list[tuple[int, ...]]:
        """Shapes of the state of one sequence."""
        raise NotImplementedError

    def step(self, x, state: tuple, run: dict[str, Callable]) -> tuple[Any, tuple]:
        """One time step: output and new state."""
        raise NotImplementedError

    def _rows_of_parts(self) -> str:
        return "".join(f"\n\t\t{part.row()}" for part in self.parts.values())


@dataclass
class GateOptions(LayerOptions):
    """Keys of [gru] and [lstm]."""

    output: int = key(1, "outputs", loud=True)
    batch_normalize: int = key(0, "1: batch normalisation in the gates")


def dense(context: BuildContext, inputs: int, output: int, activation: str, batch_normalize: int) -> Connected:
    """A connected sub-layer."""
    options = {"output": output, "activation": activation, "batch_normalize": batch_normalize}
    return Connected(context.part(1, 1, inputs, options))


@register("rnn")
class Rnn(Recurrent):
    """h' = act(W_i x) + act_s(W_s h) (+ h with shortcut); y = act(W_o h') (Darknet: `forward_rnn_layer`)."""

    @dataclass
    class Options(LayerOptions):
        output: int = key(1, "outputs", loud=True)
        hidden: int = key(1, "size of the state", loud=True)
        activation: str = key("logistic", "activation function", loud=True)
        batch_normalize: int = key(0, "1: batch normalisation")
        logistic: int = key(0, "activation of the state: 1 logistic, 2 loggy")
        shortcut: int = key(0, "1: the state is added to itself")

    def build(self, options, context) -> None:
        name, bn = known_activation(options.activation, context), options.batch_normalize
        own = {1: "logistic", 2: "loggy"}.get(options.logistic, name)
        self.parts = {
            "input_layer": dense(context, self.inputs, options.hidden, name, bn),
            "self_layer": dense(context, options.hidden, options.hidden, own, bn),
            "output_layer": dense(context, options.hidden, options.output, name, bn),
        }
        self.w = self.h = self.c = 0
        self.out_w, self.out_h, self.out_c, self.outputs = 1, 1, options.output, options.output

    def state_shapes(self, x):
        return [(self.options.hidden,)]

    def step(self, x, state, run):
        (h,) = state
        new = run["input_layer"](x) + run["self_layer"](h)
        if self.options.shortcut:
            new = new + h
        return run["output_layer"](new), (new,)

    def row(self) -> str:
        return f"RNN Layer: {self.inputs} inputs, {self.outputs} outputs{self._rows_of_parts()}"


@register("gru")
class Gru(Recurrent):
    """z, r = sigmoid(W x + U h); c = sigmoid(W_h x + U_h (r h)); h' = z h + (1 - z) c: Darknet's candidate is
    logistic, not tanh (Darknet: `forward_gru_layer`)."""

    Options = GateOptions
    keeps_state_in_training = True

    def build(self, options, context) -> None:
        n, bn = options.output, options.batch_normalize
        self.parts = {f"input_{gate}": dense(context, self.inputs, n, "linear", bn) for gate in "zrh"}
        self.parts |= {f"state_{gate}": dense(context, n, n, "linear", bn) for gate in "zrh"}
        self.w = self.h = self.c = 0
        self.outputs = n

    def state_shapes(self, x):
        return [(self.outputs,)]

    def step(self, x, state, run):
        (h,) = state
        z = torch.sigmoid(run["input_z"](x) + run["state_z"](h))
        r = torch.sigmoid(run["input_r"](x) + run["state_r"](h))
        candidate = torch.sigmoid(run["input_h"](x) + run["state_h"](r * h))
        new = z * h + (1 - z) * candidate
        return new, (new,)

    def row(self) -> str:
        rows = [f"\n\t\t{self.parts[f'{kind}_{gate}'].row()}" for gate in "zrh" for kind in ("input", "state")]
        return f"GRU Layer: {self.inputs} inputs, {self.outputs} outputs{''.join(rows)}"


@register("lstm")
class Lstm(Recurrent):
    """f, i, o = sigmoid(W h + U x), g = tanh(W h + U x); c' = f c + i g; y = h' = o tanh(c')
    (Darknet: `forward_lstm_layer`; its w act on h, its u on x)."""

    Options = GateOptions
    keeps_state_in_training = True

    def build(self, options, context) -> None:
        n, bn = options.output, options.batch_normalize
        self.parts = {f"w{gate}": dense(context, n, n, "linear", bn) for gate in "figo"}
        self.parts |= {f"u{gate}": dense(context, self.inputs, n, "linear", bn) for gate in "figo"}
        self.w = self.h = self.c = 0
        self.out_w, self.out_h, self.out_c, self.outputs = 1, 1, n, n

    def state_shapes(self, x):
        return [(self.outputs,), (self.outputs,)]

    def step(self, x, state, run):
        h, c = state
        f, i, g, o = (run[f"w{gate}"](h) + run[f"u{gate}"](x) for gate in "figo")
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)

    def row(self) -> str:
        order = ("uf", "ui", "ug", "uo", "wf", "wi", "wg", "wo")
        rows = "".join(f"\n\t\t{self.parts[name].row()}" for name in order)
        return f"LSTM Layer: {self.inputs} inputs, {self.outputs} outputs{rows}"
