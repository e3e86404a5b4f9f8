"""[convolutional]: convolution, then batch normalisation or bias, then activation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from darknetpy.config import key
from darknetpy.layers.activations import activate, known_activation
from darknetpy.layers.base import BuildContext, Layer, LayerOptions, TensorSpec, namespace
from darknetpy.layers.registry import register
from darknetpy.lazy import torch

NO_SHARE = -1_000_000_000
BN_EPSILON = 1e-5
BN_MOMENTUM = 0.01


@register("convolutional", "conv")
class Convolutional(Layer):
    """Grouped, dilated, strided convolution (Darknet: `make_convolutional_layer`, `forward_convolutional_layer_gpu`)."""

    @dataclass
    class Options(LayerOptions):
        filters: int = key(1, "output channels", loud=True)
        groups: int = key(1, "channel groups")
        size: int = key(1, "kernel side", loud=True)
        stride: int = key(1, "stride of both axes", loud=lambda o: o.stride_x < 1 or o.stride_y < 1)
        stride_x: int = key(-1, "horizontal stride, if >= 1")
        stride_y: int = key(-1, "vertical stride, if >= 1")
        dilation: int = key(1, "dilation; 1 for size=1")
        antialiasing: int = key(0, "1: 3x3 blur carries the stride, 2: 2x2 blur")
        pad: int = key(0, "non-zero: padding = size/2")
        padding: int = key(0, "pixels on each side, where pad=0")
        activation: str = key("logistic", "activation function", loud=True)
        assisted_excitation: float = key(0.0, "1: excite truth boxes in the first half; N: until iteration N")
        share_index: int = key(NO_SHARE, "use the tensors of another convolutional layer")
        batch_normalize: int = key(0, "1: batch normalisation")
        cbn: int = key(0, "1: cross-iteration batch normalisation")
        binary: int = key(0, "1: binarised weights")
        xnor: int = key(0, "1: binarised weights and inputs")
        bin_output: int = key(0, "1: linear activation at xnor inference")
        sway: int = key(0, "tie filters that are swayed copies")
        rotate: int = key(0, "tie filters that are rotated copies")
        stretch: int = key(0, "tie filters that are stretched copies")
        stretch_sway: int = key(0, "tie filters that are stretched and swayed copies")
        angle: float = key(15.0, "degrees of sway", when=lambda o: o.sway or o.stretch_sway)
        grad_centr: int = key(0, "centralise gradients")
        reverse: float = key(0.0, "experimental; accepted, without effect")
        coordconv: int = key(0, "write coordinates into the first channels")
        flipped: int = key(0, "weights in the file are stored transposed")
        dot: float = key(0.0, "accepted, without effect")
        stream: int = key(-1, "accepted, without effect")
        wait_stream: int = key(-1, "accepted, without effect")

    def build(self, options: Any, context: BuildContext) -> None:
        context.need_image("convolutional layer")
        self.filters, self.size = options.filters, options.size
        self.groups = 1 if options.xnor else options.groups
        self.stride_x = options.stride_x if options.stride_x >= 1 else options.stride
        self.stride_y = options.stride_y if options.stride_y >= 1 else options.stride
        self.dilation = 1 if self.size == 1 else options.dilation
        self.pad = options.size // 2 if options.pad else options.padding
        self.batch_normalize = 2 if options.cbn else options.batch_normalize
        self.activation = known_activation(options.activation, context)
        self._check(context)
        self.out_w = (self.w + 2 * self.pad - self.size) // self.stride_x + 1
        self.out_h = (self.h + 2 * self.pad - self.size) // self.stride_y + 1
        if self.out_w <= 0 or self.out_h <= 0:
            raise context.error(
                f"size={self.size} leaves nothing of an input of {self.w} x {self.h}", "use a larger network size"
            )
        self.image_size(self.out_w, self.out_h, self.filters)
        self.nweights = self.c // self.groups * self.filters * self.size**2
        self.bflops = 2.0 * self.nweights * self.out_h * self.out_w / 1e9

    def _check(self, context: BuildContext) -> None:
        for name in ("filters", "size", "groups", "stride_x", "stride_y", "dilation"):
            if getattr(self, name) < 1:
                raise context.error(f"{name}={getattr(self, name)} must be at least 1")
        if self.pad < 0:
            raise context.error(f"padding={self.pad} must not be negative")

    def tensors(self) -> list[TensorSpec]:
        n, fan_in = self.filters, self.size**2 * self.c // self.groups
        specs = [TensorSpec("biases", (n,), "bias")]
        if self.batch_normalize:
            specs += [
                TensorSpec("scales", (n,), "scale", ("constant", 1.0)),
                TensorSpec("rolling_mean", (n,), "mean"),
                TensorSpec("rolling_variance", (n,), "variance"),
            ]
        init = ("uniform", math.sqrt(2.0 / fan_in), 0.0)
        return [*specs, TensorSpec("weights", (n, self.c // self.groups, self.size, self.size), "weight", init)]

    def forward(self, x, context):
        t, nn = context.tensors, torch.nn.functional
        bias = None if self.batch_normalize and not context.fused else t.biases
        y = nn.conv2d(
            x, t.weights, bias, (self.stride_y, self.stride_x), self.pad * self.dilation, self.dilation, self.groups
        )
        if bias is None:
            y = nn.batch_norm(
                y, t.rolling_mean, t.rolling_variance, t.scales, t.biases, context.training, BN_MOMENTUM, BN_EPSILON
            )
        return activate(self.activation, y, context)

    def fuse(self, tensors: Any) -> Any:
        if not self.batch_normalize:
            return tensors
        scale = tensors.scales.double() / torch.sqrt(tensors.rolling_variance.double() + BN_EPSILON)
        weights = (tensors.weights.double() * scale[:, None, None, None]).float()
        biases = (tensors.biases.double() - tensors.rolling_mean.double() * scale).float()
        return namespace(biases=biases, weights=weights)

    def row(self) -> str:
        groups = f"/{self.groups:4d} " if self.groups > 1 else "      "
        if self.stride_x != self.stride_y:
            stride = f"{self.size:2d}x{self.size:2d}/{self.stride_x:2d}x{self.stride_y:2d} "
        else:
            dilation = f"({self.dilation:1d})" if self.dilation > 1 else "   "
            stride = f"{self.size:2d} x{self.size:2d}/{self.stride_x:2d}{dilation}"
        return (
            f"conv  {self.filters:5d}{groups}{stride}{self.w:4d} x{self.h:4d} x{self.c:4d} -> "
            f"{self.out_w:4d} x{self.out_h:4d} x{self.out_c:4d} {self.bflops:5.3f} BF"
        )
