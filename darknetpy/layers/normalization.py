"""[batchnorm] and [normalization] (local response normalisation)."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.layers.base import Layer, LayerOptions, TensorSpec
from darknetpy.layers.batchnorm import normalize
from darknetpy.layers.gradients import replace_gradient
from darknetpy.layers.registry import register
from darknetpy.lazy import torch


@register("batchnorm")
class BatchNorm(Layer):
    """Batch normalisation by itself (Darknet: `forward_batchnorm_layer_gpu`)."""

    def build(self, options, context) -> None:
        self.image_size(self.w, self.h, self.c)

    def tensors(self) -> list[TensorSpec]:
        n = (self.c,)
        return [
            TensorSpec("biases", n, "bias"),
            TensorSpec("scales", n, "scale", ("constant", 1.0)),
            TensorSpec("rolling_mean", n, "mean"),
            TensorSpec("rolling_variance", n, "variance"),
        ]

    def forward(self, x, context):
        return normalize(x, context.tensors, context.training, context)

    def row(self) -> str:
        return f"Batch Normalization Layer: {self.w} x {self.h} x {self.c} image"


@register("normalization", "lrn")
class LocalResponse(Layer):
    """y_k = x_k n_k^-beta, n_k = kappa + alpha (sum of squares over `size` channels around k, less that of channel
    size/2): Darknet's running sum starts wrongly, and networks were trained with it
    (Darknet: `forward_normalization_layer`)."""

    @dataclass
    class Options(LayerOptions):
        alpha: float = key(0.0001, "factor on the sum of squares", loud=True)
        beta: float = key(0.75, "exponent", loud=True)
        kappa: float = key(1.0, "constant in the norm", loud=True)
        size: int = key(5, "channels of a window", loud=True)

    def build(self, options, context) -> None:
        if options.size < 1:
            raise context.error(f"size={options.size} must be at least 1")
        self.image_size(self.w, self.h, self.c)

    def forward(self, x, context):
        o = self.options
        squares = x * x
        padded = torch.nn.functional.pad(squares[:, None], (0, 0, 0, 0, (o.size - 1) // 2, o.size // 2))
        window = torch.nn.functional.avg_pool3d(padded, (o.size, 1, 1), 1)[:, 0] * o.size
        extra = squares[:, min(o.size // 2, x.shape[1] - 1)][:, None]
        norm = (o.kappa + o.alpha * (window - extra)) ** -o.beta
        return replace_gradient(x, x * norm, lambda gradient, n: gradient * n, norm)

    def row(self) -> str:
        return f"Local Response Normalization Layer: {self.w} x {self.h} x {self.c} image, {self.options.size} size"
