"""Which pictures and which random numbers a row of a mini-batch gets.

Everything follows from (seed, iteration, row) by a generator of its own, so rows can be made anywhere in any order.
Only the coin that decides on mosaic and mixup is tossed for a whole mini-batch (in Darknet: for what one loader thread
makes of a batch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain

import numpy as np

from darknetpy.data.draws import MIXUP, MOSAIC, NONE, Augmentation, Draws, draw

PASSES = {NONE: 1, MIXUP: 2, MOSAIC: 4}
"""Pictures that go into one."""
SMALLEST_CUT, LARGEST_CUT = 0.2, 0.8


class Stream(IntEnum):
    """What a generator is for; part of its seed."""

    COIN, CUT, PICTURES, DRAWS, SEQUENCE, SEQUENCE_DRAWS = range(6)


@dataclass(frozen=True)
class Request:
    """One mini-batch.

    Attributes:
        iteration: from 0; chunk: number of the mini-batch in its turn, counted over all replicas.
        width, height: of the network at that time; count: rows.
        span: mini-batches that a sequence of `track` runs through.
        first: number of the first row in its turn, counted over all replicas; None: all before have `count` rows.
    """

    iteration: int
    chunk: int
    width: int
    height: int
    count: int
    span: int = 1
    first: int | None = None

    def number(self, row: int) -> int:
        """Number of a row in its turn."""
        return (self.chunk * self.count if self.first is None else self.first) + row

    def in_sequence(self, row: int) -> int:
        """Number of a row in its sequence."""
        return self.chunk % self.span * self.count + row


@dataclass(frozen=True)
class Sampler:
    """The draws for a list of so many pictures. From iteration `closes` on each picture is by itself."""

    pictures: int
    options: Augmentation
    seed: int = 0
    closes: int | None = None

    def rng(self, stream: Stream, request: Request, number: int) -> np.random.Generator:
        """The generator for something of a request."""
        return np.random.default_rng([abs(self.seed), request.iteration, number, stream])

    def mode(self, request: Request) -> int:
        """NONE, MIXUP or MOSAIC for the whole mini-batch (with `track` for the whole sequence)."""
        if self.options.mode == NONE or (self.closes is not None and request.iteration >= self.closes):
            return NONE
        number = request.chunk // request.span
        return self.options.mode if self.rng(Stream.COIN, request, number).integers(2) else NONE

    def cut(self, request: Request, row: int) -> tuple[int, int]:
        """Where the tiles of a row's mosaic meet."""
        rng = self.rng(Stream.CUT, request, request.number(row))
        sides = (request.width, request.height)
        x, y = (int(rng.integers(int(s * SMALLEST_CUT), int(s * LARGEST_CUT) + 1)) for s in sides)
        return x, y

    def choices(self, request: Request, row: int, passes: int) -> Iterator[Iterator[int]]:
        """For each pass the index of a picture, and others to take in its place without end.

        Each iterator must be done with before the next one is asked for.
        """
        number = request.number(row)
        if self.options.contrastive:
            number -= number % 2
        rng = self.rng(Stream.PICTURES, request, number)
        random = iter(lambda: int(rng.integers(self.pictures)), None)
        for which in range(passes):
            first = [self._in_sequence(request, row, which)] if self.options.track else []
            yield chain(first, random)

    def _in_sequence(self, request: Request, row: int, which: int) -> int:
        """Index of a row's picture in its video (Darknet: `get_sequential_paths`)."""
        timelines = max(1, request.count // self.options.time_steps)
        rng = self.rng(Stream.SEQUENCE, request, request.chunk // request.span)
        ends = sorted((1, self.options.speed))
        for _ in range(which + 1):
            speed = int(rng.integers(ends[0], ends[1] + 1))
            starts = rng.integers(self.pictures, size=timelines)
        return sequence_index(starts, speed, request.in_sequence(row), self.pictures)

    def draws(self, request: Request, row: int, mode: int, boxes: list[int]) -> list[Draws]:
        """Draws of a row's pictures, which have so many boxes."""
        o, number = self.options, request.number(row)
        own = self._draws(Stream.DRAWS, request, number, mode, boxes)
        if o.track:
            group = request.chunk // request.span
            shared = self._draws(Stream.SEQUENCE_DRAWS, request, group, mode, [0] * len(boxes))
            return [mine.of_sequence(other) for mine, other in zip(own, shared, strict=True)]
        if not o.contrastive or number % 2 == 0:
            return own
        for i, other in enumerate(self._draws(Stream.DRAWS, request, number - 1, mode, boxes)):
            own[i] = own[i] if o.contrastive_jit_flip else own[i].with_geometry(other)
            own[i] = own[i] if o.contrastive_color else own[i].with_colour(other)
        return own

    def _draws(self, stream: Stream, request: Request, number: int, mode: int, boxes: list[int]) -> list[Draws]:
        rng = self.rng(stream, request, number)
        return [draw(rng, self.options, mode == MOSAIC, count) for count in boxes]


def sequence_index(starts: Sequence[int], speed: int, number: int, pictures: int) -> int:
    """Picture of a row of a sequence: rows go through the timelines first, then through time, and round the list."""
    step, timeline = divmod(number, len(starts))
    return int(starts[timeline] + speed * step) % pictures
