"""Layers of a line or two: [activation], [empty], [history], [implicit]."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.layers.activations import activate, known_activation
from darknetpy.layers.base import Layer, LayerOptions, TensorSpec
from darknetpy.layers.registry import register
from darknetpy.lazy import torch


@register("activation")
class Activation(Layer):
    """An activation function by itself (Darknet: `forward_activation_layer`)."""

    @dataclass
    class Options(LayerOptions):
        activation: str = key("linear", "activation function", loud=True)

    def build(self, options, context) -> None:
        self.activation = known_activation(options.activation, context)
        self.same_size()

    def forward(self, x, context):
        return activate(self.activation, x, context)

    def row(self) -> str:
        return f"Activation Layer: {self.inputs} inputs"


@register("empty", "silence")
class Empty(Layer):
    """The previous layer under another number."""

    def build(self, options, context) -> None:
        self.same_size()

    def forward(self, x, context):
        return x

    def row(self) -> str:
        return "empty "


@register("history")
class History(Layer):
    """The last `history_size` frames as channels, newest first (Darknet: `forward_history_layer`)."""

    remembers = True

    @dataclass
    class Options(LayerOptions):
        history_size: int = key(4, "frames to remember", loud=True)

    def build(self, options, context) -> None:
        self.size = options.history_size
        if self.size < 1:
            raise context.error(f"history_size={self.size} must be at least 1")
        self.image_size(self.w, self.h, self.c * self.size)

    def forward(self, x, context):
        steps = context.time_steps
        rows = x.shape[0] // steps
        frames = x.view(steps, rows, *x.shape[1:])
        if steps == 1:
            return self._single(x)
        last = context.state.get("last")
        if last is None or last.shape[0] != rows:
            last = x.new_zeros(rows, self.c * self.size, *x.shape[2:])
        outputs = []
        for frame in frames:
            last = torch.cat([frame, last[:, : self.c * (self.size - 1)].detach()], 1)
            outputs.append(last)
        context.state["last"] = last.detach()
        return torch.cat(outputs)

    def _single(self, x):
        """Without time steps Darknet copies the whole mini-batch, flat, to the start of the larger output."""
        rest = x.new_zeros(x.numel() * (self.size - 1))
        return torch.cat([x.reshape(-1), rest]).view(x.shape[0], -1, *x.shape[2:])

    def row(self) -> str:
        batch = self.batch // self.time_steps
        return f"HISTORY b = {batch}, s = {self.time_steps:2d}, steps = {self.size:2d}   {self._sizes()}"

    def _sizes(self) -> str:
        return f"{self.w:4d} x{self.h:4d} x{self.c:4d} -> {self.out_w:4d} x{self.out_h:4d} x{self.out_c:4d} "


@register("implicit")
class Implicit(Layer):
    """A learned constant (Darknet: `forward_implicit_layer`)."""

    @dataclass
    class Options(LayerOptions):
        mean: float = key(0.0, "mean of the initial values", loud=True)
        std: float = key(0.2, "half-range of the initial values", loud=True)
        filters: int = key(128, "channels", loud=True)
        atoms: int = key(1, "rows")

    def build(self, options, context) -> None:
        if options.filters < 1 or options.atoms < 1:
            raise context.error(f"filters={options.filters} and atoms={options.atoms} must be at least 1")
        self.image_size(1, options.atoms, options.filters)
        self.w = self.h = self.c = 1

    def tensors(self) -> list[TensorSpec]:
        o = self.options
        return [TensorSpec("weights", (o.filters, o.atoms), "weight", ("uniform", o.std, o.mean))]

    def forward(self, x, context):
        return context.tensors.weights[None, :, :, None].expand(x.shape[0], -1, -1, -1)

    def row(self) -> str:
        size = f"{self.out_w:4d} x{self.out_h:4d} x{self.out_c:4d}"
        return f"implicit ({self.options.filters} x {self.options.atoms}) -> {size} "
