"""[scale_channels] and [sam]: element-wise products with an earlier layer."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.layers.activations import activate, known_activation
from darknetpy.layers.base import Layer, LayerOptions
from darknetpy.layers.gradients import scale_gradient
from darknetpy.layers.registry import register
from darknetpy.lazy import torch


class _Product(Layer):
    def _source(self, options, context) -> Layer:
        if options.from_ is None:
            raise context.error("from= is missing", "name the layer to multiply with")
        self.source = context.source(options.from_, "from")
        self.activation = known_activation(options.activation, context)
        return context.layers[self.source]

    def sources(self) -> list[int]:
        return [self.source]

    def row(self) -> str:
        return f"scale Layer: {self.source}"


@register("scale_channels")
class ScaleChannels(_Product):
    """`from`, scaled by the previous layer: one factor a channel, or with scale_wh one a pixel
    (Darknet: `forward_scale_channels_layer_gpu`)."""

    @dataclass
    class Options(LayerOptions):
        from_: int | None = key(None, "the layer to scale", name="from")
        scale_wh: int = key(0, "1: the previous layer is one map of factors")
        activation: str = key("linear", "activation function")

    def build(self, options, context) -> None:
        source = self._source(options, context)
        self.scale_wh = options.scale_wh
        if self.scale_wh:
            fits = self.c == 1 and (self.w, self.h) == (source.out_w, source.out_h)
            want = f"{source.out_w} x {source.out_h} x 1"
        else:
            fits = (self.w, self.h, self.c) == (1, 1, source.out_c)
            want = f"1 x 1 x {source.out_c}"
        if not fits:
            raise context.error(
                f"the previous layer gives {self.w} x {self.h} x {self.c}, from={source.index} needs {want}"
            )
        self.image_size(source.out_w, source.out_h, source.out_c)

    def forward(self, x, context):
        if self.scale_wh and torch.is_grad_enabled() and x.requires_grad:
            x = scale_gradient(x, 1.0 / (x.shape[2] * x.shape[3]))
        return activate(self.activation, context.outputs[self.source] * x, context)


@register("sam")
class Sam(_Product):
    """Product of the previous layer and `from`, which have one size (Darknet: `forward_sam_layer`)."""

    @dataclass
    class Options(LayerOptions):
        from_: int | None = key(None, "the layer to multiply with", name="from")
        activation: str = key("linear", "activation function")

    def build(self, options, context) -> None:
        source = self._source(options, context)
        if (self.w, self.h, self.c) != (source.out_w, source.out_h, source.out_c):
            raise context.error(
                f"the previous layer gives {self.w} x {self.h} x {self.c}, "
                f"from={source.index} gives {source.out_w} x {source.out_h} x {source.out_c}"
            )
        self.image_size(self.w, self.h, self.c)

    def forward(self, x, context):
        return activate(self.activation, x * context.outputs[self.source], context)
