"""[reorg] and [reorg3d]: blocks of pixels become channels and back."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.layers.base import Layer, LayerOptions
from darknetpy.layers.registry import register


def space_to_depth(x, s: int):
    """(B, C, H, W) to (B, s s C, H/s, W/s); channel (dy s + dx) C + c is pixel (dy, dx) of each block."""
    b, c, h, w = x.shape
    return x.reshape(b, c, h // s, s, w // s, s).permute(0, 3, 5, 1, 2, 4).reshape(b, s * s * c, h // s, w // s)


def depth_to_space(x, s: int):
    """The inverse of `space_to_depth`."""
    b, c, h, w = x.shape
    return x.reshape(b, s, s, c // (s * s), h, w).permute(0, 3, 4, 1, 5, 2).reshape(b, c // (s * s), h * s, w * s)


class _Reorg(Layer):
    @dataclass
    class Options(LayerOptions):
        stride: int = key(1, "side of a block", loud=True)
        reverse: int = key(0, "channels to pixels")

    def build(self, options, context) -> None:
        context.need_image("reorg layer")
        self.stride, self.reverse = options.stride, options.reverse
        s = self.stride
        if s < 1:
            raise context.error(f"stride={s} must be at least 1")
        if self.reverse:
            self.image_size(self.w * s, self.h * s, self.c // (s * s))
        else:
            self.image_size(self.w // s, self.h // s, self.c * s * s)

    def _sizes(self, gap: str) -> str:
        return f"{self.w:4d} x{self.h:4d} x{self.c:4d} {gap}{self.out_w:4d} x{self.out_h:4d} x{self.out_c:4d}"


@register("reorg")
class Reorg(_Reorg):
    """The legacy map of YOLOv2: the buffer is read as C/s^2 channels of a picture s times as large
    (Darknet: `reorg_cpu`). Its reverse is the exact inverse of [reorg3d]."""

    def forward(self, x, context):
        s = self.stride
        if self.reverse:
            return depth_to_space(x, s)
        b, c, h, w = x.shape
        wide = x.reshape(b, c // (s * s), h * s, w * s)
        return space_to_depth(wide, s).reshape(b, c * s * s, h // s, w // s)

    def row(self) -> str:
        return f"\n reorg_old \nreorg_old              /{self.stride:2d}  {self._sizes('  ->  ')}"


@register("reorg3d")
class Reorg3d(_Reorg):
    """Space to depth. Its reverse is the exact inverse of the legacy [reorg] (Darknet: `reorg_layer.c`)."""

    def build(self, options, context) -> None:
        super().build(options, context)
        if self.reverse and self.c < self.stride**4:
            raise context.error(f"reverse=1 needs at least stride^4 = {self.stride**4} channels, not {self.c}")

    def forward(self, x, context):
        s = self.stride
        if not self.reverse:
            return space_to_depth(x, s)
        b, c, h, w = x.shape
        wide = x.reshape(b, c // (s * s), h * s, w * s)
        return depth_to_space(wide, s).reshape(b, c // (s * s), h * s, w * s)

    def row(self) -> str:
        return f"reorg                    /{self.stride:2d} {self._sizes('-> ')}"
