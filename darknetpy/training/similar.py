"""`weights_reject_freq`: filters that have become alike start anew (Darknet: `reject_similar_weights`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from darknetpy.config import NetOptions
from darknetpy.layers import Layer
from darknetpy.network import Network

ALIKE = 0.4
"""Cosine above which the most similar pair of a layer is parted."""
NEAR_HEAD = 3
"""Convolutions so close before a [yolo] are left alone."""


def similar_filters_due(net: NetOptions, iteration: int) -> bool:
    """Whether to look for similar filters after update `iteration`."""
    every = net.weights_reject_freq
    return every > 0 and iteration % every == 0 and iteration < net.max_batches * 3 // 4


@torch.no_grad()
def replace_similar_filters(network: Network, iteration: int) -> None:
    """In each convolution draw the first filter of its most similar pair anew, where the two are too much alike.

    The draws follow from the iteration, so that all replicas make the same ones.
    """
    generator = torch.Generator(network.device).manual_seed(iteration)
    heads = [layer.index for layer in network.layers if layer.type == "yolo"]
    for layer in network.layers:
        near = any(0 < head - layer.index <= NEAR_HEAD for head in heads)
        if layer.type == "convolutional" and layer.index and not near and layer.options.activation != "linear":
            _part_most_similar(layer, network.tensors_of(layer.index), generator)


def _part_most_similar(layer: Layer, tensors, generator: torch.Generator) -> None:
    """The decision stays on the device: where the pair is not alike, the filter is replaced by itself."""
    weights = tensors.weights
    if len(weights) < 2:
        return
    flat = functional.normalize(weights.flatten(1), dim=1)
    cosine = (flat @ flat.t()).triu(1)
    best = cosine.argmax()
    alike, first = cosine.view(-1)[best] > ALIKE, (best // len(weights)).view(1)
    fresh = torch.empty_like(weights[:1]).uniform_(-1, 1, generator=generator) * math.sqrt(2 / weights[0].numel())
    _replace(weights, first, alike, fresh)
    _replace(tensors.biases, first, alike, torch.zeros_like(tensors.biases[:1]))
    if layer.batch_normalize:
        _replace(tensors.scales, first, alike, torch.ones_like(tensors.scales[:1]))


def _replace(tensor: Tensor, row: Tensor, where: Tensor, fresh: Tensor) -> None:
    tensor.index_copy_(0, row, torch.where(where, fresh, tensor.index_select(0, row)))
