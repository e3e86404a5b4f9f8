"""[local]: a convolution whose filters differ from place to place."""

from __future__ import annotations

import math
from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.layers.activations import activate, known_activation
from darknetpy.layers.base import Layer, LayerOptions, TensorSpec
from darknetpy.layers.registry import register
from darknetpy.lazy import torch


@register("local")
class Local(Layer):
    """Each output position has its own filter bank and biases (Darknet: `forward_local_layer`)."""

    @dataclass
    class Options(LayerOptions):
        filters: int = key(1, "output channels", loud=True)
        size: int = key(1, "kernel side", loud=True)
        stride: int = key(1, "stride", loud=True)
        pad: int = key(0, "pixels of padding; also a flag in the size formula", loud=True)
        activation: str = key("logistic", "activation function", loud=True)

    def build(self, options, context) -> None:
        context.need_image("local layer")
        if min(options.filters, options.size, options.stride) < 1 or options.pad < 0:
            raise context.error("filters=, size= and stride= must be at least 1, pad= not negative")
        self.activation = known_activation(options.activation, context)
        cut = 1 if options.pad else options.size
        self.image_size((self.w - cut) // options.stride + 1, (self.h - cut) // options.stride + 1, options.filters)
        if min(self.out_w, self.out_h) < 1:
            raise context.error(f"size={options.size} leaves nothing of an input of {self.w} x {self.h}")
        self._check_windows(options, context)

    def _check_windows(self, options, context) -> None:
        real = [(n + 2 * options.pad - options.size) // options.stride + 1 for n in (self.w, self.h)]
        if real != [self.out_w, self.out_h]:
            raise context.error(
                f"size={options.size} with pad={options.pad} gives {real[0]} x {real[1]} windows, "
                f"not {self.out_w} x {self.out_h}",
                "use pad=0, or pad=1 with size=3",
            )

    def tensors(self) -> list[TensorSpec]:
        o, taps = self.options, self.c * self.options.size**2
        init = ("uniform", math.sqrt(2.0 / taps), 0.0)
        return [
            TensorSpec("biases", (o.filters, self.out_h, self.out_w), "bias"),
            TensorSpec("weights", (self.out_h * self.out_w, o.filters, taps), "weight", init),
        ]

    def forward(self, x, context):
        o, t = self.options, context.tensors
        windows = torch.nn.functional.unfold(x, o.size, padding=o.pad, stride=o.stride)
        y = torch.einsum("lft,btl->bfl", t.weights, windows)
        return activate(self.activation, y.view(-1, o.filters, self.out_h, self.out_w) + t.biases, context)

    def row(self) -> str:
        sizes = f"{self.h} x {self.w} x {self.c} image, {self.options.filters} filters"
        return f"Local Layer: {sizes} -> {self.out_h} x {self.out_w} x {self.out_c} image"
