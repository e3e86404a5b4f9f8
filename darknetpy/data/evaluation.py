"""Pictures and truths for evaluation, read ahead by threads."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from darknetpy.config.datafile import label_path
from darknetpy.data.labels import Labels, labels_of, read_labels
from darknetpy.data.notes import BAD_IMAGES, append_line, say
from darknetpy.errors import DataError, ImageError
from darknetpy.images import load_image
from darknetpy.runtime import cpu_count

if TYPE_CHECKING:
    from darknetpy.data.sets import Annotations

BLACK = 10
"""Side of the black picture that stands in for an unreadable one."""
MOST_THREADS = 8


@dataclass
class Sample:
    """One picture of a list: its number there, the network's input (C, H, W), its original size, its truths and
    difficult truths."""

    index: int
    path: str
    input: np.ndarray
    size: tuple[int, int]
    labels: Labels
    difficult: Labels | None


class EvaluationImages:
    """Samples of a list, in order.

    Args:
        paths: image files; prepare: (C, H, W) to the network's input.
        difficult: parallel list of images whose label files hold the difficult truths.
        labels: read label files at all. threads: that read ahead (0: none, None: as many as there are processors).
        annotations: labels that do not lie in files.
    """

    def __init__(
        self,
        paths: Sequence[str],
        prepare: Callable[[np.ndarray], np.ndarray],
        channels: int = 3,
        difficult: Sequence[str] | None = None,
        labels: bool = True,
        strict: bool = False,
        threads: int | None = None,
        annotations: Annotations | None = None,
    ):
        if difficult is not None and len(difficult) < len(paths):
            raise DataError(f"difficult= lists {len(difficult)} images, valid= {len(paths)}")
        self.paths, self.prepare, self.channels = list(paths), prepare, channels
        self.difficult, self.with_labels, self.strict, self.annotations = difficult, labels, strict, annotations
        self.threads = min(MOST_THREADS, cpu_count()) if threads is None else threads
        self.numbers = range(len(self.paths))

    def __len__(self) -> int:
        return len(self.paths)

    def picked(self, indices: Sequence[int]) -> EvaluationImages:
        """The same reading of a part of the list; its samples keep their numbers."""
        part = copy.copy(self)
        part.numbers = [self.numbers[i] for i in indices]
        part.paths = [self.paths[i] for i in indices]
        part.difficult = None if self.difficult is None else [self.difficult[i] for i in indices]
        return part

    def sample(self, index: int) -> Sample:
        """Read one picture; an unreadable one becomes black, and its truths are missed."""
        path = self.paths[index]
        try:
            picture = load_image(path, self.channels)
        except ImageError as error:
            say(str(error))
            append_line(BAD_IMAGES, path)
            picture = np.zeros((self.channels, BLACK, BLACK), np.float32)
        labels = labels_of(path, self.strict, self.annotations) if self.with_labels else None
        size = (picture.shape[2], picture.shape[1])
        return Sample(self.numbers[index], path, self.prepare(picture), size, labels, self._difficult(index))

    def _difficult(self, index: int) -> Labels | None:
        if self.difficult is None:
            known = self.annotations is not None and bool(self.annotations.difficult)
            return self.annotations.difficult_labels(self.paths[index]) if known else None
        try:
            return read_labels(label_path(self.difficult[index], self.strict), self.strict)
        except (OSError, DataError):
            return None

    def batches(self, size: int) -> Iterator[list[Sample]]:
        """Lists of up to `size` samples; the next ones are read while these are worked on."""
        if self.threads <= 0:
            for low in range(0, len(self), size):
                yield [self.sample(i) for i in range(low, min(low + size, len(self)))]
            return
        pool = ThreadPoolExecutor(self.threads)
        try:
            order = iter(range(len(self)))
            waiting = deque(pool.submit(self.sample, i) for i in islice(order, 2 * size))
            while waiting:
                ready = [waiting.popleft().result() for _ in range(min(size, len(waiting)))]
                waiting.extend(pool.submit(self.sample, i) for i in islice(order, len(ready)))
                yield ready
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
