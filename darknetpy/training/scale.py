"""The factor on gradients that keeps small ones within the range of fp16."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

FIRST = 128.0
"""Where the cfg names no `loss_scale`."""
LEAST = 2.0**-14
GROWS_AFTER = 2000


class LossScale:
    """Falls by half when gradients overflow, and doubles after so many turns without (as `torch.amp.GradScaler`, but
    for turns as a whole, which are undone and made again).

    Deltas carry the cfg's `loss_scale` already, which so is the scale to begin with.
    """

    def __init__(self, on: bool, loss_scale: float):
        self.on = on
        self.factor = 1.0 if not on or loss_scale > 1 else FIRST
        self.clean = 0

    @torch.no_grad()
    def multiply(self, gradients: Iterable[Tensor], up: bool = True) -> None:
        """Bring gradients to the scale, or (not `up`) back from it; exact, the factor is a power of two."""
        gradients = list(gradients)
        if self.factor != 1 and gradients:
            torch._foreach_mul_(gradients, self.factor if up else 1 / self.factor)

    def lower(self) -> bool:
        """After an overflow: half the scale, if there is one and it can fall."""
        if not self.on or self.factor <= LEAST:
            return False
        self.factor, self.clean = self.factor / 2, 0
        return True

    def count(self) -> None:
        """After a turn without overflow."""
        self.clean += self.on
        if self.clean >= GROWS_AFTER:
            self.factor, self.clean = self.factor * 2, 0

    @property
    def state(self) -> list[float]:
        """What a run goes on from."""
        return [self.factor, self.clean]

    def load(self, state: list[float] | None) -> None:
        """Go on from a `state`; a run with another precision begins anew."""
        if self.on and state:
            self.factor, self.clean = float(state[0]), int(state[1])
