"""[convolutional]: convolution, then batch normalisation or bias, then activation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from darknetpy.config import key
from darknetpy.layers import binary
from darknetpy.layers.activations import activate, known_activation
from darknetpy.layers.base import BuildContext, Layer, LayerOptions, TensorSpec
from darknetpy.layers.batchnorm import batch_norm, fold
from darknetpy.layers.blur import blur, blurred_size
from darknetpy.layers.blur import row as blur_row
from darknetpy.layers.excitation import excite
from darknetpy.layers.gradients import clamp_gradient
from darknetpy.layers.registry import register
from darknetpy.lazy import torch

NO_SHARE = -1_000_000_000


@register("convolutional", "conv")
class Convolutional(Layer):
    """Grouped, dilated, strided convolution (Darknet: `forward_convolutional_layer_gpu`)."""

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
        self.remembers = self.batch_normalize == 2
        self.activation = known_activation(options.activation, context)
        self.try_fix_nan = bool(context.net.try_fix_nan)
        self.xnor, self.binary, self.blur = bool(options.xnor), bool(options.binary), options.antialiasing
        self._check(context)
        self._size(context)
        self.nweights = self.c // self.groups * self.filters * self.size**2
        self.shares = self._shared(options, context)
        flops = 2.0 * self.nweights * self.host_size[0] * self.host_size[1] / 1e9
        self.bflops = flops / 32 if self.xnor else flops

    def _size(self, context: BuildContext) -> None:
        """Output size; with antialiasing the convolution runs at stride 1 and the blur behind it carries the stride."""
        self.blur_strides = self.stride_x, self.stride_y
        if self.blur:
            self.stride_x = self.stride_y = 1
        w, h = ((n + 2 * self.pad - self.size) // s + 1 for n, s in ((self.w, self.stride_x), (self.h, self.stride_y)))
        if w <= 0 or h <= 0:
            raise context.error(
                f"size={self.size} leaves nothing of an input of {self.w} x {self.h}", "use a larger network size"
            )
        self.host_size = w, h
        self.image_size(*(blurred_size(w, h, self.blur, self.blur_strides) if self.blur else (w, h)), self.filters)

    def _check(self, context: BuildContext) -> None:
        for name in ("filters", "size", "groups", "stride_x", "stride_y", "dilation"):
            if getattr(self, name) < 1:
                raise context.error(f"{name}={getattr(self, name)} must be at least 1")
        if self.pad < 0:
            raise context.error(f"padding={self.pad} must not be negative")
        if self.c % self.groups or self.filters % self.groups:
            what = f"groups={self.groups} must divide {self.c} input channels and filters={self.filters}"
            context.defer(context.error(what))
        if self.dilation > 1 and 2 * self.pad != self.size - 1:
            what = f"dilation={self.dilation} needs padding = (size-1)/2, not {self.pad}"
            context.defer(context.error(what, "use pad=1 and an odd size"))
        o = self.options
        if (o.sway or o.rotate or o.stretch or o.stretch_sway) and self.size == 1:
            raise context.error("sway, rotate, stretch and stretch_sway need size > 1")
        if sum(map(bool, (o.sway, o.rotate, o.stretch, o.stretch_sway))) > 1:
            raise context.error("only one of sway, rotate, stretch and stretch_sway can be used")

    def _shared(self, options: Any, context: BuildContext) -> int | None:
        if options.share_index == NO_SHARE:
            return None
        index = context.source(options.share_index, "share_index")
        other = context.layers[index]
        if not isinstance(other, Convolutional):
            raise context.error(
                f"share_index={options.share_index} names layer {index}, which is no convolutional layer"
            )
        same = (self.size, self.nweights, self.c, self.filters) == (other.size, other.nweights, other.c, other.filters)
        if not same or bool(self.batch_normalize) != bool(other.batch_normalize):
            raise context.error(f"its sizes differ from those of layer {index}, whose tensors it shares")
        owner = index if other.shares is None else other.shares
        context.layers[owner].shared_by_others = True
        return owner

    def tensors(self) -> list[TensorSpec]:
        if self.shares is not None:
            return []
        n, fan_in = self.filters, max(1, self.size**2 * self.c // self.groups)
        specs = [TensorSpec("biases", (n,), "bias")]
        if self.batch_normalize:
            specs += [
                TensorSpec("scales", (n,), "scale", ("constant", 1.0)),
                TensorSpec("rolling_mean", (n,), "mean"),
                TensorSpec("rolling_variance", (n,), "variance"),
            ]
        init = ("uniform", math.sqrt(2.0 / fan_in), 0.0)
        return [*specs, TensorSpec("weights", (n, self.c // self.groups, self.size, self.size), "weight", init)]

    def after_read(self, arrays: dict, transpose: bool) -> dict:
        """`flipped` files store each filter's taps along the other axis."""
        if self.options.flipped and "weights" in arrays:
            weights = arrays["weights"]
            arrays = {**arrays, "weights": weights.reshape(-1, self.filters).T.reshape(weights.shape)}
        return arrays

    def forward(self, x, context):
        t = context.tensors
        if self.xnor or self.binary:
            y = binary.convolve(self, x, t.weights, context)
        else:
            y = self.convolve(x, t.weights, t.biases if not self._normalizes(context) else None)
        if context.probe is not None:
            y = context.observe(self.index, y)
        if self._normalizes(context):
            y = batch_norm(self, y, t, context)
        elif self.xnor or self.binary:
            y = y + t.biases.view(1, -1, 1, 1)
        z = activate(self.output_activation(context), y, in_place=not context.training)
        if self.options.assisted_excitation and context.training:
            z = excite(y, z, self.activation, self.options.assisted_excitation, context)
        if self.try_fix_nan and context.training and z.requires_grad:
            z = clamp_gradient(z)
        return blur(z, self.blur, self.blur_strides, context.strict and z.requires_grad) if self.blur else z

    def convolve(self, x, weights, biases=None, pad: int | None = None):
        """The bare convolution."""
        return torch.nn.functional.conv2d(
            x, weights, biases, (self.stride_y, self.stride_x),
            self.pad * self.dilation if pad is None else pad, self.dilation, self.groups,
        )  # fmt: skip

    def _normalizes(self, context) -> bool:
        return bool(self.batch_normalize) and not context.fused

    def output_activation(self, context) -> str:
        """`bin_output` makes xnor inference linear."""
        return "linear" if self.xnor and self.options.bin_output and context.fused else self.activation

    def fuse(self, tensors: Any) -> Any:
        return fold(tensors) if self.batch_normalize else tensors

    def row(self) -> str:
        shared = self.shares is not None
        excited = self.options.assisted_excitation
        tag = "convS " if shared else "convAE" if excited else "conv  "
        if self.xnor:
            tag = "convXB" if self.options.bin_output else "convX "
        groups = f"/{self.groups:4d} " if self.groups > 1 else "      "
        if self.stride_x != self.stride_y:
            stride = f"{self.size:2d}x{self.size:2d}/{self.stride_x:2d}x{self.stride_y:2d} "
        else:
            dilation = f"({self.dilation:1d})" if self.dilation > 1 else "   "
            stride = f"{self.size:2d} x{self.size:2d}/{self.stride_x:2d}{dilation}"
        w, h = self.host_size
        text = (
            f"{tag}{self.filters:5d}{groups}{stride}{self.w:4d} x{self.h:4d} x{self.c:4d} -> "
            f"{w:4d} x{h:4d} x{self.out_c:4d} {self.bflops:5.3f} BF"
        )
        return f"{text}\n{blur_row(self, self.blur, self.blur_strides, self.host_size)}" if self.blur else text
