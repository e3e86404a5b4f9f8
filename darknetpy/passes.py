"""One pass over the layers of a network: what is freed, what gets no gradient, and what is computed twice."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from darknetpy.layers import ForwardContext, Layer

if TYPE_CHECKING:
    from darknetpy.network import Network


@dataclass
class Pass:
    """One forward pass. `outputs[i]` is None where no later layer needed it; `inputs` is what each head was given."""

    outputs: list[Tensor | None]
    inputs: dict[int, Tensor] = field(default_factory=dict)


def forward(network: Network, x: Tensor, context: ForwardContext, keep_all: bool, layers: list[Layer]) -> Pass:
    """Run the first layers, or all, on `x`; the context's outputs are empty before and the pass's afterwards.

    `network.checkpointing` lets groups of layers keep only their input for the backward pass, which runs them again.
    """
    result = Pass(context.outputs)
    step = _Step(network, context.training, _no_gradient_up_to(network.layers, context))
    twice = network.checkpointing and context.training and torch.is_grad_enabled() and not keep_all
    for group in _groups(layers, network.strict) if twice else ([layer] for layer in layers):
        if group[0].is_head:
            x = x.float() if context.mixed else x
            result.inputs[group[0].index] = x
        x = step(group[0], x, context) if len(group) == 1 else _twice(step, group, x, context)
        if not keep_all:
            for done in _freed(network, group):
                context.outputs[done] = None
    context.training = step.training
    return result


@dataclass(frozen=True)
class _Step:
    """How one pass runs a layer: in training or not, and without a gradient up to layer `stop`."""

    network: Network
    training: bool
    stop: int

    def __call__(self, layer: Layer, x: Tensor, context: ForwardContext) -> Tensor:
        """The output of a layer, which is appended to the context's."""
        network, i = self.network, layer.index
        context.tensors = network.tensors_for(i, context.fused)
        context.state = network.states[i]
        context.training = self.training and i >= network.frozen_before
        if torch.is_grad_enabled() and (i <= self.stop or layer.options.onlyforward):
            with torch.no_grad():
                x = layer.forward(x, context)
        else:
            x = layer.forward(x, context)
        context.outputs.append(x)
        if layer.reuses_input and i:
            context.outputs[i - 1] = x
        return x


def _no_gradient_up_to(layers: list[Layer], context: ForwardContext) -> int:
    """Index of the last layer that gets no gradient: where `stopbackward` stops the backward pass, else -1."""
    if not context.training:
        return -1
    active = (
        layer.index
        for layer in layers
        if layer.options.stopbackward == 1 or layer.options.stopbackward > context.iteration
    )
    return max(active, default=-1)


def last_use(layers: list[Layer]) -> list[list[int]]:
    """For each layer, the outputs that can be freed after it has run, because nobody later reads them."""
    last = {layer.index: layer.index for layer in layers}
    for layer in layers:
        for source in [*layer.sources(), *([layer.index - 1] if layer.index else [])]:
            last[source] = max(last[source], layer.index)
    keep = {layer.index for layer in layers if layer.is_head}
    final = [layer.index for layer in layers if layer.type != "cost"]
    keep.update(final[-1:])
    free: list[list[int]] = [[] for _ in layers]
    for index, user in last.items():
        if index not in keep:
            free[user].append(index)
    return free


def _freed(network: Network, layers: list[Layer]) -> list[int]:
    return [done for layer in layers for done in network.last_use[layer.index]]


def _groups(layers: list[Layer], strict: bool) -> list[list[Layer]]:
    """Layers that are computed twice together, and single ones that cannot be: heads, and what remembers something.

    About as many groups as layers in each need the least memory. A layer that writes over the output of the one before
    stays with it.
    """
    most, groups, open_ = max(2, math.isqrt(len(layers))), [], False
    for layer in layers:
        alone = layer.is_head or layer.remembers_in(strict)
        if open_ and not alone and (len(groups[-1]) < most or layer.reuses_input):
            groups[-1].append(layer)
        else:
            groups.append([layer])
        open_ = not alone
    return groups


def _twice(step: _Step, layers: list[Layer], x: Tensor, context: ForwardContext) -> Tensor:
    """Run a group now and once more when its gradients are asked for; only what later layers read is kept."""
    first, end = layers[0].index, layers[-1].index + 1
    freed = set(_freed(step.network, layers)) - {end - 1}
    read = {source: context.outputs[source] for layer in layers for source in layer.sources() if source < first}
    runs: list[int] = []
    bare = replace(context, outputs=[])  # what is kept for the second run holds no other group's outputs

    def group(x: Tensor) -> tuple[Tensor | None, ...]:
        outputs = [read.get(i) for i in range(first)]
        inner = replace(bare, outputs=outputs, repeated=bool(runs))
        runs.append(1)
        for layer in layers:
            x = step(layer, x, inner)
        return tuple(None if i in freed else outputs[i] for i in range(first, end))

    outputs = checkpoint(group, x, use_reentrant=False)
    context.outputs.extend(outputs)
    return outputs[-1]
