"""[maxpool], [local_avgpool] and [avgpool]."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.layers import blur
from darknetpy.layers.base import Layer, LayerOptions
from darknetpy.layers.gradients import pass_through, replace_gradient
from darknetpy.layers.registry import register
from darknetpy.lazy import torch


@dataclass
class PoolOptions(LayerOptions):
    """Keys of a pooling window."""

    stride: int = key(1, "stride of both axes", loud=True)
    stride_x: int = key(lambda o: o.stride, "horizontal stride")
    stride_y: int = key(lambda o: o.stride, "vertical stride")
    size: int = key(lambda o: o.stride, "side of the window", loud=True)
    padding: int = key(lambda o: o.size - 1, "total padding of both sides together")


class _Pool(Layer):
    """A window whose origin lies padding/2 before the input; the rest of the padding is right and below."""

    def _window(self, options, context, name: str) -> None:
        context.need_image(f"[{name}] layer")
        self.size, self.stride_x, self.stride_y = options.size, options.stride_x, options.stride_y
        self.padding = options.padding
        if min(self.size, self.stride_x, self.stride_y) < 1 or self.padding < 0:
            raise context.error(f"size={self.size}, stride={self.stride_x} and padding={self.padding} cannot be pooled")
        w = (self.w + self.padding - self.size) // self.stride_x + 1
        h = (self.h + self.padding - self.size) // self.stride_y + 1
        if w < 1 or h < 1:
            raise context.error(f"size={self.size} leaves nothing of an input of {self.w} x {self.h}")
        self.image_size(w, h, self.c)
        self.bflops = self.size**2 * self.c * w * h / 1e9

    def _margins(self, x) -> tuple[int, int, int, int]:
        """Padding left, right, top, bottom that gives exactly Darknet's number of windows."""
        low = self.padding // 2
        margins = []
        for length, stride in ((x.shape[3], self.stride_x), (x.shape[2], self.stride_y)):
            count = (length + self.padding - self.size) // stride + 1
            margins += [low, (count - 1) * stride + self.size - low - length]
        return tuple(margins)

    def _shape(self, name: str, bflops: float) -> str:
        w, h = self.out_w, self.out_h
        strides = f"{self.size:2d}x{self.size:2d}/{self.stride_x:2d}"
        strides += "   " if self.stride_x == self.stride_y else f"x{self.stride_y:2d} "
        sizes = f"{self.w:4d} x{self.h:4d} x{self.c:4d} -> {w:4d} x{h:4d} x{self.out_c:4d}"
        return f"{name:<18}{strides}{sizes} {bflops:5.3f} BF"


@register("maxpool", "max")
class MaxPool(_Pool):
    """Maximum of a window; taps outside the picture don't count (Darknet: `forward_maxpool_layer`)."""

    @dataclass
    class Options(PoolOptions):
        maxpool_depth: int = key(0, "1: maximum over channels instead")
        out_channels: int = key(1, "maxpool_depth: output channels")
        antialiasing: int = key(0, "1: 3x3 blur carries the stride, 2: 2x2 blur")
        maxpool_zero_nonmax: int = key(0, "zero what is not the maximum of its window")

    def build(self, options, context) -> None:
        self._window(options, context, "maxpool")
        self.blur = options.antialiasing
        if options.maxpool_depth:
            if options.out_channels < 1:
                raise context.error(f"out_channels={options.out_channels} must be at least 1")
            self.image_size(self.w, self.h, options.out_channels)
            self.bflops = self.size**2 * self.c * self.out_h * self.out_w / 1e9
        elif self.blur:
            self._antialias()

    def _antialias(self) -> None:
        """The pool runs at stride 1; the blur that follows carries the stride."""
        self.blur_strides = self.stride_x, self.stride_y
        self.stride_x = self.stride_y = 1
        w, h = self.w + self.padding - self.size + 1, self.h + self.padding - self.size + 1
        self.host_size = w, h
        self.bflops = self.size**2 * self.c * w * h / 1e9
        self.image_size(*blur.blurred_size(w, h, self.blur, self.blur_strides), self.c)

    def forward(self, x, context):
        if self.options.maxpool_depth:
            return self._depth(x)
        y = self._zero_others(x) if self.options.maxpool_zero_nonmax else self._pool(x)
        return blur.blur(y, self.blur, self.blur_strides, context.strict and y.requires_grad) if self.blur else y

    def _pool(self, x):
        margins = self._margins(x)
        padded = torch.nn.functional.pad(x, margins, value=float("-inf")) if any(margins) else x
        return torch.nn.functional.max_pool2d(padded, self.size, (self.stride_y, self.stride_x))

    def _zero_others(self, x):
        """Only values that are the maximum of their own window stay, and only they get a gradient."""
        largest = x.detach() == self._pool(x.detach())
        y = self._pool(replace_gradient(x, x, torch.mul, largest))
        return pass_through(y, torch.where(largest, x, 0.0))

    def _depth(self, x):
        """Channel g of the output is the maximum over channels g, g + out_c, g + 2 out_c, ..."""
        b, c, h, w = x.shape
        rounds = -(-c // self.out_c)
        padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, rounds * self.out_c - c), value=float("-inf"))
        return padded.view(b, rounds, self.out_c, h, w).amax(1)

    def row(self) -> str:
        if self.options.maxpool_depth:
            return self._shape("max-depth", self.bflops)
        if not self.blur:
            return self._shape("max", self.bflops)
        w, h, out = self.out_w, self.out_h, self.outputs
        self.out_w, self.out_h = self.host_size
        text = self._shape("max", self.bflops)
        self.out_w, self.out_h, self.outputs = w, h, out
        return f"{text}\n{blur.row(self, self.blur, self.blur_strides, self.host_size)}"


@register("local_avgpool", "local_avg")
class LocalAvgPool(_Pool):
    """Mean of the taps of a window that lie inside the picture (Darknet: `forward_local_avgpool_layer`)."""

    Options = PoolOptions

    def build(self, options, context) -> None:
        self._window(options, context, "local_avgpool")

    def forward(self, x, context):
        y = self._mean(x)
        if context.strict and x.requires_grad:
            y = replace_gradient(x, y, self._neighbourhood_gradient(x.shape[2:], y.shape[2:]))
        return y

    def _neighbourhood_gradient(self, size, pooled):
        """Darknet's rule: the mean gradient of the windows near a pixel, whether they cover it or not."""
        spans = [
            _near_windows(n, count, stride, (self.size - 1) // stride, self.padding // 2)
            for n, count, stride in zip(size, pooled, (self.stride_y, self.stride_x), strict=True)
        ]

        def rule(gradient):
            down, across = (span.to(gradient) for span in spans)
            return torch.einsum("ip,bcpq,jq->bcij", down, gradient, across)

        return rule

    def _mean(self, x):
        margins = self._margins(x)
        pool = torch.nn.functional.avg_pool2d
        stride = (self.stride_y, self.stride_x)
        if not any(margins):
            return pool(x, self.size, stride)
        inside = torch.nn.functional.pad(torch.ones_like(x[:1, :1]), margins)
        return pool(torch.nn.functional.pad(x, margins), self.size, stride) / pool(inside, self.size, stride)

    def row(self) -> str:
        return self._shape("avg", self.bflops)


def _near_windows(length: int, count: int, stride: int, reach: int, offset: int):
    """(length, count) matrix of means over the windows within `reach` of the one that a pixel falls to."""
    centre = (torch.arange(length) + offset) // stride
    near = (torch.arange(count)[None] - centre[:, None]).abs() <= reach
    return near / near.sum(1, keepdim=True).clamp(min=1)


@register("avgpool", "avg")
class AvgPool(Layer):
    """Mean over the picture, one number a channel (Darknet: `forward_avgpool_layer`)."""

    def build(self, options, context) -> None:
        context.need_image("avgpool layer")
        self.image_size(1, 1, self.c)

    def forward(self, x, context):
        return x.mean((2, 3), keepdim=True)

    def row(self) -> str:
        return f"avg                          {self.w:4d} x{self.h:4d} x{self.c:4d} ->   {self.c:4d}"
