"""[connected]: a fully connected layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from darknetpy.config import key
from darknetpy.layers.activations import activate, known_activation
from darknetpy.layers.base import Layer, LayerOptions, TensorSpec
from darknetpy.layers.batchnorm import normalize
from darknetpy.layers.gradients import clamp_gradient
from darknetpy.layers.registry import register
from darknetpy.lazy import torch


@register("connected", "conn")
class Connected(Layer):
    """y = activation(BN(W x) or W x + b) on the flattened input (Darknet: `forward_connected_layer_gpu`)."""

    is_dense = True

    @dataclass
    class Options(LayerOptions):
        output: int = key(1, "outputs", loud=True)
        activation: str = key("logistic", "activation function", loud=True)
        batch_normalize: int = key(0, "1: batch normalisation")

    def build(self, options, context) -> None:
        self._shape(self.inputs, options.output, options.activation, options.batch_normalize, context)

    def _shape(self, inputs: int, output: int, activation: str, batch_normalize: int, context) -> None:
        if not context.strict and (output < 1 or inputs < 1):
            raise context.error(f"output={output} and {inputs} inputs must both be at least 1")
        self.inputs, self.batch_normalize = inputs, batch_normalize
        self.w, self.h, self.c = 1, 1, inputs
        self.activation = known_activation(activation, context)
        self.out_w, self.out_h, self.out_c, self.outputs = 1, 1, output, output

    def tensors(self) -> list[TensorSpec]:
        n = self.outputs
        init = ("uniform", math.sqrt(2.0 / max(1, self.inputs)), 0.0)
        specs = [TensorSpec("biases", (n,), "bias"), TensorSpec("weights", (n, self.inputs), "weight", init)]
        if self.batch_normalize:
            specs += [
                TensorSpec("scales", (n,), "scale", ("constant", 1.0)),
                TensorSpec("rolling_mean", (n,), "mean"),
                TensorSpec("rolling_variance", (n,), "variance"),
            ]
        return specs

    def forward(self, x, context):
        t: Any = context.tensors
        x = x.reshape(x.shape[0], -1)
        y = torch.nn.functional.linear(x, t.weights, None if self.batch_normalize else t.biases)
        if self.batch_normalize:
            y = normalize(y, t, context.training, context)
        y = activate(self.activation, y, context)
        return clamp_gradient(y) if torch.is_grad_enabled() and y.requires_grad else y

    def row(self) -> str:
        return f"connected                            {self.inputs:4d}  -> {self.outputs:5d}"
