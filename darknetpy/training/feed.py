"""The batches of a run: sizes that change, mini-batches that grow with smaller sizes, and what is prepared ahead."""

from __future__ import annotations

import torch
from torch import Tensor

from darknetpy.data.batches import Batch
from darknetpy.data.loader import Loader
from darknetpy.data.resize import EVERY, Sizes, dynamic_batch
from darknetpy.data.sampling import Request
from darknetpy.parallel.shares import split
from darknetpy.training.learner import Learner


class Feed:
    """Asks the loader for each turn's mini-batches.

    Attributes:
        turns: done so far in the whole run; size: (width, height) of the network now.
    """

    def __init__(self, loader: Loader, learner: Learner, seed: int):
        self.loader, self.learner, self.net, self.seed = loader, learner, learner.net, seed
        random = getattr(learner.network.structure.leading_head.options, "random", 0)
        self.sizes = Sizes(self.net.width, self.net.height, random, int(self.net.resize_step) or 32)
        self.size = (self.net.width, self.net.height)
        self.turns = 0
        self.device = learner.network.device

    def resize(self, first: bool) -> bool:
        """Draw a new size where one is due, every tenth turn; `first` takes the largest. Whether it was due."""
        if not self.sizes.random or self.turns % EVERY:
            return False
        self.size = self._size_at(self.turns, self.learner.iteration, first)
        return True

    def batches(self) -> list[Batch]:
        """The mini-batches of this turn; those of the next ones are begun."""
        left = self.net.max_batches - self.learner.iteration
        turns = -(-left // self.learner.replicas.size)
        ahead = range(1, min(self.loader.ahead, turns - 1) + 1)
        return self.loader.turn(self._requests(0), [self._requests(later) for later in ahead])

    def rows_at(self, size: tuple[int, int]) -> int:
        """Rows of a mini-batch; with `dynamic_minibatch` more of them at a smaller size."""
        if not (self.net.dynamic_minibatch and self.sizes.random):
            return self.net.mini_batch
        return dynamic_batch(self.net.mini_batch, self.sizes.largest, size)

    def one(self, size: tuple[int, int], rows: int) -> tuple[Tensor, ...]:
        """A single mini-batch out of turn, made in this process."""
        return self.to_device(self.loader.data.batch(Request(self.learner.iteration, 0, *size, rows)))

    def to_device(self, batch: Batch) -> tuple[Tensor, ...]:
        """Pictures as float32 in 0..1 and truth, on the device; of a text also which sequences begin anew."""
        images = torch.from_numpy(batch.images).to(self.device, non_blocking=True)
        if images.dtype == torch.uint8:
            images = images.to(torch.float32) * (1.0 / 255)
        others = [batch.truth] if batch.fresh is None else [batch.truth, batch.fresh]
        return images, *(torch.from_numpy(part).to(self.device, non_blocking=True) for part in others)

    def _size_at(self, turn: int, iteration: int, first: bool) -> tuple[int, int]:
        return self.sizes.size(self.seed, turn, iteration, self.net.max_batches, first)

    def _requests(self, ahead: int) -> list[Request]:
        """Requests of the turn after so many others, at the size that it will have."""
        iteration, turn = self.learner.iteration + ahead * self.learner.replicas.size, self.turns + ahead
        size, boundary = self.size, turn - turn % EVERY
        if ahead and self.sizes.random and boundary > self.turns - self.turns % EVERY:
            size = self._size_at(boundary, iteration - turn % EVERY * self.learner.replicas.size, False)
        rows, span = self.rows_at(size), self.learner.schedule.sequence(iteration)
        rank, parts = self.learner.replicas.rank, self.learner.parts(rows)
        counts = [split(part, [1] * -(-part // rows)) for part in parts]
        chunk, first, requests = sum(map(len, counts[:rank])), sum(parts[:rank]), []
        for count in counts[rank]:
            requests.append(Request(iteration, chunk + len(requests), *size, count, span, first))
            first += count
        return requests
