"""Pictures of a list and their labels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np

from darknetpy.data.cache import Cache
from darknetpy.data.labels import Labels, labels_of, within
from darknetpy.data.notes import BAD_IMAGES, append_line, say
from darknetpy.data.sets import Annotations
from darknetpy.errors import DataError, ImageError
from darknetpy.images import read_image

TRIES = 20
"""Pictures drawn in place of an unreadable one, before the list is gone through."""
MOST_LABELS = 50_000
"""Label files remembered; some 25 MB."""


class Pictures:
    """Decoded pictures uint8 (H, W, C), RGB, with their labels.

    `cache` keeps decoded pictures; `annotations` are labels that do not lie in files.
    """

    def __init__(
        self, paths: Sequence[str], channels: int = 3, strict: bool = False, cache: Cache | None = None,
        annotations: Annotations | None = None,
    ):  # fmt: skip
        if not paths:
            raise DataError("the list of training images is empty")
        self.paths, self.channels, self.strict = list(paths), channels, strict
        self.cache, self.annotations = cache, annotations
        self._labels: dict[int, Labels] = {}
        self._unreadable: set[int] = set()

    def first_readable(self, choices: Iterator[int]) -> tuple[str, np.ndarray, Labels]:
        """Path, picture and labels of the first choice that can be read; see `readable`."""
        index, image = self.readable(choices)
        return self.paths[index], image, self._labels_of(index)

    def readable(self, choices: Iterator[int]) -> tuple[int, np.ndarray]:
        """Number and picture of the first choice that can be read: of some drawn ones, then of the whole list.

        Raises DataError if no picture of the list can be read.
        """
        for index in chain(islice(choices, TRIES), self._round(choices)):
            if index in self._unreadable:
                continue
            try:
                return index, self._image(index)
            except ImageError as error:
                self._unreadable.add(index)
                say(str(error))
                append_line(BAD_IMAGES, self.paths[index])
        raise none_readable(self.paths)

    def _round(self, choices: Iterator[int]) -> Iterator[int]:
        """The whole list from the next choice on, which is asked for only when the drawn ones are used up."""
        first = next(choices)
        yield from chain(range(first, len(self.paths)), range(first))

    def _image(self, index: int) -> np.ndarray:
        image = self.cache.get(index) if self.cache is not None else None
        if image is None:
            image = read_image(self.paths[index], self.channels, opencv_grey=True)
            if self.cache is not None:
                self.cache.put(index, image)
        return image

    def _labels_of(self, index: int) -> Labels:
        labels = self._labels.get(index)
        if labels is None:
            labels = labels_of(self.paths[index], self.strict, self.annotations)
            labels = labels if self.strict else within(labels)
            if len(self._labels) < MOST_LABELS:
                self._labels[index] = labels
        return labels


def require_one(paths: Sequence[str], file: str) -> None:
    """Raise DataError unless one of the pictures of a list can be read; usually it is the first."""
    damaged: dict[str, str] = {}
    for path in filter(os.path.exists, paths):
        try:
            read_image(path)
            return
        except ImageError as error:
            damaged[path] = str(error)
    for path in damaged:
        append_line(BAD_IMAGES, path)
    raise none_readable(paths, file, next(iter(damaged.values()), None))


def none_readable(paths: Sequence[str], file: str | None = None, trouble: str | None = None) -> DataError:
    """The error for a list without a picture; `trouble` is what is wrong with one that exists."""
    elsewhere = "start the program where the paths of the list begin, or write them from the root on"
    return DataError(f"0 of {len(paths)} images readable", file=file, value=paths[0][:200], remedy=trouble or elsewhere)
