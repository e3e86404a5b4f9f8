"""[upsample]: nearest neighbour, or summing blocks for a negative stride."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.layers.base import Layer, LayerOptions
from darknetpy.layers.registry import register
from darknetpy.lazy import torch


@register("upsample")
class Upsample(Layer):
    """Each value becomes a stride x stride block times scale (Darknet: `forward_upsample_layer`)."""

    @dataclass
    class Options(LayerOptions):
        stride: int = key(2, "factor; negative: blocks are summed into one value", loud=True)
        scale: float = key(1.0, "factor on the values")

    def build(self, options, context) -> None:
        self.stride, self.reverse, self.scale = abs(options.stride), options.stride < 0, options.scale
        if not self.stride:
            raise context.error("stride=0 cannot be upsampled")
        if self.reverse:
            self.image_size(self.w // self.stride, self.h // self.stride, self.c)
        else:
            self.image_size(self.w * self.stride, self.h * self.stride, self.c)

    def forward(self, x, context):
        s = self.stride
        if self.reverse:
            h, w = x.shape[2] // s * s, x.shape[3] // s * s
            y = torch.nn.functional.avg_pool2d(x[:, :, :h, :w], s) * (s * s)
        else:
            y = torch.nn.functional.interpolate(x, scale_factor=s, mode="nearest")
        return y if self.scale == 1.0 else y * self.scale

    def row(self) -> str:
        kind = "downsample          " if self.reverse else "upsample            "
        sizes = f"{self.w:4d} x{self.h:4d} x{self.c:4d} -> {self.out_w:4d} x{self.out_h:4d} x{self.out_c:4d}"
        return f"{kind}    {self.stride:2d}x  {sizes}"
