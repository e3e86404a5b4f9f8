"""Pictures of a list and their labels, kept in memory as far as there is room."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from darknetpy.data.labels import Labels, labels_of
from darknetpy.data.notes import BAD_IMAGES, append_line, say
from darknetpy.errors import DataError, ImageError
from darknetpy.images import read_image

TRIES = 20
"""Other pictures tried in place of an unreadable one."""
MOST_LABELS = 50_000
"""Label files remembered; some 25 MB."""
SHARE = 3
"""A cache takes at most one part in so many of the memory that is free."""


class Pictures:
    """Decoded pictures uint8 (H, W, C), RGB, with their labels.

    `room`: bytes of decoded pictures that are kept.
    """

    def __init__(self, paths: Sequence[str], channels: int = 3, strict: bool = False, room: int = 0):
        if not paths:
            raise DataError("the list of training images is empty")
        self.paths, self.channels, self.strict, self.room = list(paths), channels, strict, room
        self._images: dict[int, np.ndarray] = {}
        self._labels: dict[int, Labels] = {}

    def first_readable(self, choices: Iterator[int]) -> tuple[str, np.ndarray, Labels]:
        """Path, picture and labels of the first choice that can be read. Raises DataError after many that cannot."""
        for _, index in zip(range(TRIES), choices, strict=False):
            path = self.paths[index]
            try:
                return path, self._image(index), self._labels_of(index)
            except ImageError as error:
                say(str(error))
                append_line(BAD_IMAGES, path)
        raise DataError(f"{TRIES} images in a row cannot be read, the last one is {path}", remedy=f"see {BAD_IMAGES}")

    def _image(self, index: int) -> np.ndarray:
        image = self._images.get(index)
        if image is None:
            image = read_image(self.paths[index], self.channels, opencv_grey=True)
            if image.nbytes <= self.room:
                self.room -= image.nbytes
                self._images[index] = image
        return image

    def _labels_of(self, index: int) -> Labels:
        labels = self._labels.get(index)
        if labels is None:
            labels = labels_of(self.paths[index], self.strict)
            if len(self._labels) < MOST_LABELS:
                self._labels[index] = labels
        return labels


def room_for_cache() -> int:
    """Bytes that may be spent on decoded pictures, by what the system and its container have left."""
    free = [_number("/proc/meminfo", "MemAvailable:") * 1024]
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if limit:
        free.append(limit - used)
    if not free[0] and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        free[0] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return max(0, min(free) // SHARE)


def _number(path: str, key: str = "") -> int:
    """The number behind a word of a system file, 0 if there is none."""
    try:
        with open(path, encoding="ascii") as stream:
            words = stream.read().split()
    except (OSError, ValueError):
        return 0
    at = words.index(key) + 1 if key in words else 0
    return int(words[at]) if words and words[at].isdigit() else 0
