"""[shortcut]: the previous layer plus earlier ones, optionally weighted."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.layers.activations import activate, known_activation
from darknetpy.layers.base import Layer, LayerOptions, TensorSpec, namespace
from darknetpy.layers.gradients import replace_gradient
from darknetpy.layers.registry import register
from darknetpy.lazy import torch

WEIGHT_TYPES = {"none": 0, "per_feature": 1, "per_layer": 1, "per_channel": 2}
NORMALIZATIONS = {"none": 0, "relu": 1, "avg_relu": 1, "softmax": 2}
SMALLEST, EPSILON = 0.001, 0.0001


@register("shortcut")
class Shortcut(Layer):
    """Sum over the first min(C, C_i) channels of each source, in the shape of the previous layer
    (Darknet: `forward_shortcut_layer_gpu`). Maps of another size are sampled as pjreddie's Darknet does."""

    @dataclass
    class Options(LayerOptions):
        activation: str = key("linear", "activation function", loud=True)
        weights_type: str = key("none", "none, per_feature (one weight a source) or per_channel")
        weights_normalization: str = key("none", "none, relu or softmax")
        from_: list[int] | None = key(None, "layers to add", name="from")

    def build(self, options, context) -> None:
        if options.from_ is None:
            raise context.error("from= is missing", "name the layer to add, for example from=-3")
        self.kind = self._choice(options.weights_type, WEIGHT_TYPES, "weights_type", context)
        self.normalization = self._choice(
            options.weights_normalization, NORMALIZATIONS, "weights_normalization", context
        )
        self.activation = known_activation(options.activation, context)
        self.source_layers = [context.source(number, "from") for number in options.from_]
        self.source_sizes = [(s.out_w, s.out_h, s.out_c) for s in (context.layers[i] for i in self.source_layers)]
        for index in self.source_layers:
            source = context.layers[index]
            if (source.out_w, source.out_h) != (self.w, self.h):
                self._other_size(source, context)
        if self.kind and not self.normalization and context.strict:
            raise context.error("weights_normalization= must be relu or softmax where weights_type= is given")
        self.image_size(self.w, self.h, self.c)
        if not self.outputs:
            self.outputs = self.inputs
        self.n = len(self.source_layers)
        self.nweights = (self.n + 1) * {0: 0, 1: 1, 2: self.c}[self.kind]
        self.bflops = self.w * self.h * self.c * self.n / 1e9 * (2 if self.kind else 1)

    @staticmethod
    def _choice(text: str, known: dict[str, int], name: str, context) -> int:
        if text not in known:
            raise context.error(f"{name}={text} is unknown", f"use {', '.join(known)}")
        return known[text]

    def _other_size(self, source: Layer, context) -> None:
        sizes = f"layer {source.index} is {source.out_w} x {source.out_h}, the previous one {self.w} x {self.h}"
        if context.strict:
            raise context.error(f"the sizes of a shortcut differ: {sizes}")
        big_w, small_w = max(source.out_w, self.w), min(source.out_w, self.w)
        big_h, small_h = max(source.out_h, self.h), min(source.out_h, self.h)
        if not small_w or not small_h or big_w // small_w != big_h // small_h:
            raise context.error(f"the sizes of a shortcut do not divide alike: {sizes}")

    def sources(self) -> list[int]:
        return self.source_layers

    def tensors(self) -> list[TensorSpec]:
        if not self.nweights:
            return []
        shape = (self.n + 1,) if self.kind == 1 else (self.n + 1, self.c)
        return [TensorSpec("weights", shape, "weight", ("constant", 1.0))]

    def forward(self, x, context):
        others = [context.outputs[i] for i in self.source_layers]
        if self.kind:
            weights = context.tensors.weights
            if not (context.fused and self.normalization):
                weights = self._normalized(weights, context)
            y = self._weighted(x, others, weights.view(self.n + 1, -1, 1, 1))
        else:
            y = x
            for other in others:
                y = self._add(y, other)
        return activate(self.activation, y, context)

    def _weighted(self, x, others, weights):
        y = x * weights[0]
        for other, weight in zip(others, weights[1:], strict=True):
            channels = min(x.shape[1], other.shape[1])
            scale = weight if weight.shape[0] == 1 else weight[:channels]
            y = self._add(y, other[:, :channels] * scale)
        return y

    def _add(self, y, other):
        if other.dim() == 4 and other.shape[2:] != y.shape[2:]:
            other = sample_to(other, y.shape[2], y.shape[3])
        if other.shape[1] == y.shape[1]:
            return y + other
        channels = min(y.shape[1], other.shape[1])
        if channels == y.shape[1]:
            return y + other[:, :channels]
        return torch.cat([y[:, :channels] + other, y[:, channels:]], 1)

    def _normalized(self, weights, context):
        """Weights that sum to about one. Their gradient is Darknet's: w or w (1 - w), not the Jacobian."""
        if not self.normalization:
            return weights
        if self.normalization == 1:
            positive = weights.clamp(min=SMALLEST)
        else:
            positive = torch.exp(weights - weights.amax(0, keepdim=True))
        result = positive / (positive.sum(0, keepdim=True) + EPSILON)
        factor = result if self.normalization == 1 else result * (1 - result)
        return replace_gradient(weights, result, lambda gradient, f: gradient * f, factor)

    def fuse(self, tensors):
        if self.kind and self.normalization:
            return namespace(weights=self._normalized(tensors.weights, None).detach())
        return tensors

    def row(self) -> str:
        names = ", ".join(str(i) for i in self.source_layers)
        w, h, c = self.out_w, self.out_h, self.out_c
        lines = [
            f"Shortcut Layer: {names},  wt = {self.kind}, wn = {self.normalization}, "
            f"outputs:{w:4d} x{h:4d} x{c:4d} {self.bflops:5.3f} BF"
        ]
        for ow, oh, oc in self.source_sizes:
            if (ow, oh, oc) != (w, h, c):
                lines.append(f" ({w:4d} x{h:4d} x{c:4d}) + ({ow:4d} x{oh:4d} x{oc:4d}) ")
        return "\n".join(lines)


def sample_to(x, h: int, w: int):
    """A map of another size as pjreddie's `shortcut_cpu` takes it: every n-th pixel, or spread with zeros between."""
    if x.shape[2] >= h:
        step = x.shape[2] // h
        return x[:, :, ::step, ::step][:, :, :h, :w]
    step = h // x.shape[2]
    spread = x.new_zeros(x.shape[0], x.shape[1], h, w)
    spread[:, :, ::step, ::step][:, :, : x.shape[2], : x.shape[3]] = x
    return spread
