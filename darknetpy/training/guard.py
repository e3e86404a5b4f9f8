"""A turn is a transaction: what it changes before its update can be taken back as if it had not begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from darknetpy.training.learner import Learner
from darknetpy.training.tensors import copy_tensors, random_state, set_random_state
from darknetpy.training.turn import MiniBatch, losses_by_kind, mean_loss

SHOWN = 4
"""Pictures that a sentence names."""


class Transaction:
    """What a turn changes before its update: running statistics, recurrent state, random numbers, counters, gradients.

    One for a run; `begin` keeps what is now, `undo` brings it back, any number of times; `commit` after the update.
    """

    open = False
    """Whether a turn has begun and is not finished."""

    def __init__(self, learner: Learner):
        self.learner = learner
        self.buffers = [b for b in learner.network.buffers() if b.is_floating_point()]
        self._kept: list[Tensor] = []

    @torch.no_grad()
    def begin(self) -> None:
        learner, self.open = self.learner, True
        if not self._kept:
            self._kept = [buffer.clone() for buffer in self.buffers]
        else:
            torch._foreach_copy_(self._kept, self.buffers)
        self._memory = copy_tensors((learner.network.states, learner.head_states, learner.net_state))
        self._counters = learner.seen, learner.iteration, learner.clock
        self._random = random_state(learner.network.device)
        self._held = {i: g.clone() for i, g in learner.optimizer.held_gradients().items()}

    def commit(self) -> None:
        self.open = False

    @torch.no_grad()
    def undo(self) -> None:
        learner, self.open = self.learner, False
        if self.buffers:
            torch._foreach_copy_(self.buffers, self._kept)
        states, heads, net = copy_tensors(self._memory)
        learner.network.states, learner.head_states, learner.net_state = states, heads, net
        learner.seen, learner.iteration, learner.clock = self._counters
        set_random_state(self._random, learner.network.device)
        learner.optimizer.zero_grad()
        learner.optimizer.hold_gradients({i: g.clone() for i, g in self._held.items()})


@dataclass(frozen=True)
class Health:
    """Loss of a turn and a sum over all gradients, either of which is non-finite if anything is; the loss by kind."""

    loss: float
    gradient: float
    kinds: dict[str, float]


def health(learner: Learner, done: Sequence[MiniBatch]) -> Health:
    """What the host must know of a turn, in the one read for which it waits for the device."""
    names, numbers = told(learner, done)
    loss, gradient, *kinds = numbers.tolist()
    return Health(loss, gradient, dict(zip(names, kinds, strict=True)))


@torch.no_grad()
def told(learner: Learner, done: Sequence[MiniBatch]) -> tuple[list[str], Tensor]:
    """Kinds of loss, and (2 + kinds,) on the device: loss, sum over the gradients, loss of each kind."""
    loss, kinds = mean_loss(done), losses_by_kind(done)
    gradients = learner.optimizer.gradients()
    norm = torch.stack(torch._foreach_norm(gradients)).sum() if gradients else torch.zeros_like(loss)
    return list(kinds), torch.stack([value.to(loss.dtype) for value in (loss, norm, *kinds.values())])


def diagnosis(learner: Learner, done: Sequence[MiniBatch], paths: Sequence[Sequence[str]]) -> str:
    """Where a non-finite number came from: mini-batch, head, pictures. Reads the device; only for turns that failed."""
    for number, mini in enumerate(done):
        for index, loss in mini.heads.items():
            if not (bool(torch.isfinite(loss.cost).all()) and bool(torch.isfinite(loss.delta).all())):
                kind = learner.network.layers[index].type
                return f"mini-batch {number}, layer {index} [{kind}], {_images(paths[number : number + 1])}"
    for slot in learner.optimizer.slots:
        gradient = slot.tensor.grad
        if gradient is not None and not bool(torch.isfinite(gradient).all()):
            place = f"layer {slot.layer.index} [{slot.layer.type}] {slot.spec.name}"
            return f"the gradient of {place}, {_images(paths)}"
    return f"the sum of the losses, {_images(paths)}"


def _images(paths: Sequence[Sequence[str]]) -> str:
    """The first few pictures of mini-batches."""
    every = [path for part in paths for path in part]
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return f"images {', '.join(every[:SHOWN])}{more}"
