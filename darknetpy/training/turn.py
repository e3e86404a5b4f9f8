"""What a turn of training gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from darknetpy.losses import HeadLoss


@dataclass
class MiniBatch:
    """What one forward and backward pass gave.

    Attributes:
        cost: mean over the layers with a cost, a scalar tensor; heads: losses by layer.
        outputs: by layer, with their gradients where all were kept; raw: outputs of convolutions before BN and bias.
        rows: images in it.
    """

    cost: Tensor
    heads: dict[int, HeadLoss]
    outputs: list[Tensor | None]
    rows: int
    raw: dict[int, Tensor] = field(default_factory=dict)

    def delta(self, index: int) -> Tensor | None:
        """Darknet's delta of a layer, minus the gradient: of a convolution with respect to its raw output."""
        if index in self.heads:
            return self.heads[index].delta
        tensor = self.raw.get(index, self.outputs[index])
        return None if tensor is None or tensor.grad is None else -tensor.grad


@dataclass
class Turn:
    """One turn: `loss` per image (scalar tensor), the rate of its update, the heads' statistics, the loss by kind."""

    loss: Tensor
    rate: float
    mini_batches: list[MiniBatch] = field(default_factory=list)
    kinds: dict[str, float] = field(default_factory=dict)


KINDS = ("class_loss", "iou_loss", "total_loss")


def losses_by_kind(done: Sequence[MiniBatch]) -> dict[str, Tensor]:
    """Class, box and total loss where heads tell them: sums over heads, mean over mini-batches; scalars there."""
    told = [loss.stats for mini in done for loss in mini.heads.values()]
    parts = {name: [stats[name] for stats in told if name in stats] for name in KINDS}
    return {name: torch.stack(found).sum() / len(done) for name, found in parts.items() if found}


def mean_loss(done: Sequence[MiniBatch]) -> Tensor:
    """Loss per image of a turn, a scalar on the device."""
    return torch.stack([mini.cost for mini in done]).sum() / sum(mini.rows for mini in done)
