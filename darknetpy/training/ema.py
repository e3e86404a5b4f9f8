"""`ema_alpha`: a moving average of the convolutions' weights in the second half of training (Darknet: `ema_update`)."""

from __future__ import annotations

import torch
from torch import Tensor

from darknetpy.network import Network

APPLIED_BEFORE_END = 1000
"""The average replaces the live weights this many iterations before the end; then training goes on from it."""


class MovingAverage:
    """ema = alpha * ema + (1 - alpha) * w for weights, biases and scales of convolutions; statistics are left out."""

    def __init__(self, network: Network):
        self.alpha, self.max_batches = network.net.ema_alpha, network.net.max_batches
        self.live = {
            (layer.index, spec.name): tensor
            for layer, spec, tensor in network.named_tensors()
            if layer.type == "convolutional" and spec.trained
        }
        self.average: dict[tuple[int, str], Tensor] = {}
        self.applied = False

    @torch.no_grad()
    def update(self, iteration: int) -> None:
        """After update `iteration`: start, follow, or put the average in place."""
        if not self.alpha or iteration < self.max_batches // 2 or self.applied:
            return
        if not self.average:
            self.average = {key: tensor.detach().clone() for key, tensor in self.live.items()}
        if iteration < self.max_batches - APPLIED_BEFORE_END:
            for key, tensor in self.live.items():
                self.average[key].mul_(self.alpha).add_(tensor, alpha=1.0 - self.alpha)
        else:
            for key, tensor in self.live.items():
                tensor.copy_(self.average[key])
            self.applied = True
