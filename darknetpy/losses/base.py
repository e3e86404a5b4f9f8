"""What every head's loss gets and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from darknetpy.layers.constants import whole

if TYPE_CHECKING:
    from darknetpy.config import NetOptions


@dataclass
class LossContext:
    """Counters and surroundings of a loss.

    Attributes:
        net_w, net_h: size of the input picture, pixels.
        iteration: finished updates; seen: images so far, these included; batch: rows of the mini-batch.
        state: this head's memory between mini-batches (tensors only).
        net_state: memory that all heads of the network share, as Darknet's counters and rolling statistics do. Once
            there, counters are changed in place; rolling statistics are made anew.
        losses: results of the heads before this one, by layer.
        input: the head's input, where the loss reads it.
        adversarial: the pass that looks for an image to hide its objects in.
    """

    net_w: int
    net_h: int
    net: NetOptions
    iteration: int = 0
    max_batches: int = 0
    seen: int = 0
    batch: int = 1
    strict: bool = False
    adversarial: bool = False
    state: dict = field(default_factory=dict)
    net_state: dict = field(default_factory=dict)
    losses: Mapping[int, HeadLoss] = field(default_factory=dict)
    input: Tensor | None = None


@dataclass
class HeadLoss:
    """A head's delta (minus the gradient, shape of its output), its cost (scalar) and what Darknet prints of it.

    `stats` are scalar tensors by name. `labels` and `classes` are the track id and class of each position (-1: none),
    given by yolo heads with an embedding layer.
    """

    delta: Tensor
    cost: Tensor
    stats: dict[str, Tensor] = field(default_factory=dict)
    labels: Tensor | None = None
    classes: Tensor | None = None

    def numbers(self) -> dict[str, float]:
        """The stats, read from the device in one go."""
        if not self.stats:
            return {}
        values = torch.stack([value.double() for value in self.stats.values()]).tolist()
        return dict(zip(self.stats, values, strict=True))


def valid_rows(truth: Tensor) -> Tensor:
    """(B, M) mask of rows before the first with x = 0, which ends the list."""
    return (truth[..., 0] != 0).to(truth.dtype).cumprod(1) > 0


def mapped(class_map: list[int] | None, classes: Tensor) -> Tensor:
    """Class numbers through a `map=` file."""
    if class_map is None:
        return classes
    table = whole(class_map or [0], classes)
    return table[classes.clamp(0, len(table) - 1)]


def counted(state: dict, name: str, value: Tensor) -> Tensor:
    """Add to a running count, in place so that a captured graph can repeat it, and return a copy."""
    if name in state:
        state[name] += value
    else:
        state[name] = value.clone()
    return state[name].clone()


def mean(total: Tensor, count: Tensor) -> Tensor:
    """total / count, 0 where nothing was counted."""
    return total / count.clamp(min=1)
