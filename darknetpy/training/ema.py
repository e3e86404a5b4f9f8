"""`ema_alpha`: a moving average of the convolutions' weights in the second half of training (Darknet: `ema_update`)."""

from __future__ import annotations

import torch
from torch import Tensor

from darknetpy.network import Network
from darknetpy.training.optimizer import Optimizer

APPLIED_BEFORE_END = 1000
"""The average replaces the live weights this many iterations before the end; then training goes on from it."""


class MovingAverage:
    """ema = alpha * ema + (1 - alpha) * w for weights, biases and scales of convolutions; statistics are left out.

    With `strict`, putting the average in place also brings back the momentum and the running statistics of one
    iteration earlier: Darknet pushes its stale host copies along.
    """

    def __init__(self, network: Network, optimizer: Optimizer, strict: bool = False):
        self.alpha, self.max_batches, self.strict = network.net.ema_alpha, network.net.max_batches, strict
        self.optimizer = optimizer
        convolutions = [item for item in network.named_tensors() if item[0].type == "convolutional"]
        self.live = {(layer.index, spec.name): tensor for layer, spec, tensor in convolutions if spec.trained}
        self.statistics = [tensor for _, spec, tensor in convolutions if not spec.trained]
        self.moving = [tensor for _, spec, tensor in convolutions if spec.role in ("weight", "bias")]
        self.average: dict[tuple[int, str], Tensor] = {}
        self.stale: list[tuple[Tensor, Tensor]] = []
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
            if self.strict:
                self.stale = [(tensor, tensor.clone()) for tensor in [*self.statistics, *self._momentum()]]
        else:
            self._apply()

    def _momentum(self) -> list[Tensor]:
        return [buffer for tensor in self.moving if (buffer := self.optimizer.momentum_of(tensor)) is not None]

    def _apply(self) -> None:
        for key, tensor in self.live.items():
            tensor.copy_(self.average[key])
        for tensor, before in self.stale:
            tensor.copy_(before)
        self.applied, self.stale = True, []

    def state(self) -> dict:
        """What a run goes on from."""
        return {"average": self.average, "stale": [before for _, before in self.stale], "applied": self.applied}

    def load_state(self, state: dict) -> None:
        """Go on from what `state` gave."""
        self.average, self.applied = state["average"], state["applied"]
        moving = [*self.statistics, *self._momentum()]
        self.stale = list(zip(moving, state["stale"], strict=True)) if state["stale"] else []
