"""Random network sizes during training (Darknet: `train_detector`, `random=`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

EVERY = 10
"""Turns between two sizes."""
LAST = 100
"""In so many iterations before the end the size is the largest."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that `random=` can give for a cfg of width x height."""

    width: int
    height: int
    random: float
    step: int = 32

    @property
    def factor(self) -> float:
        """Range of the scale: 1.4 for random=1, else the number itself."""
        return 1.4 if self.random == 1 else self.random

    def _side(self, value: float, side: int) -> int:
        exact = np.float32(value) * np.float32(side) / np.float32(self.step) + np.float32(1)
        return max(self.step, math.floor(float(exact) + 0.5) * self.step)

    @property
    def largest(self) -> tuple[int, int]:
        """Size of the first turn and of the last iterations."""
        return self._side(self.factor, self.width), self._side(self.factor, self.height)

    def ends(self) -> list[tuple[int, int]]:
        """The largest size that can occur, and the smallest where there is a choice."""
        if not self.random:
            return [(self.width, self.height)]
        low = self.at(1 / self.factor if self.factor > 1 else self.factor)
        return [self.largest, low] if low != self.largest else [low]

    def told(self) -> list[str]:
        """What a person should know of the sizes: nothing where there is one."""
        ends = [f"{w}x{h}" for w, h in reversed(self.ends())]
        return [f"random sizes: {' to '.join(ends)}, in steps of {self.step}"] if len(ends) > 1 else []

    def at(self, value: float) -> tuple[int, int]:
        """Size for a drawn scale. A scale below 1 that still grows a side gives the cfg's own size."""
        w, h = self._side(value, self.width), self._side(value, self.height)
        return (self.width, self.height) if value < 1 and (w > self.width or h > self.height) else (w, h)

    def draw(self, seed: int, turn: int) -> float:
        """The scale of a turn: U(1, factor), by a coin its inverse."""
        rng = np.random.default_rng([abs(seed), turn, 2])
        value = np.float32(rng.uniform(*sorted((1.0, self.factor))))
        return float(value) if rng.integers(2) or not value else float(np.float32(1) / value)

    @staticmethod
    def forced(iteration: int, max_batches: int, first: bool) -> bool:
        """Whether the size is the largest whatever is drawn: at the first turn, which shows early if memory is short,
        and towards the end."""
        return first or iteration > max_batches - LAST

    def size(self, seed: int, turn: int, iteration: int, max_batches: int, first: bool) -> tuple[int, int]:
        """Size that a turn (every tenth) switches to."""
        forced = self.forced(iteration, max_batches, first)
        return self.largest if forced else self.at(self.draw(seed, turn))


def dynamic_batch(batch: int, largest: tuple[int, int], size: tuple[int, int]) -> int:
    """Rows of a mini-batch at a smaller size that take the memory of `batch` at the largest one."""
    most = batch * largest[0] * largest[1] // (size[0] * size[1])
    careful = int(0.8 * most)
    return max(1, careful if careful > batch else most)
