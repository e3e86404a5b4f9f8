"""Boxes of many pictures in memory, which stand in for label files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from darknetpy.data.labels import Labels, empty_labels, track_ids
from darknetpy.errors import warn


@dataclass
class Annotations:
    """`boxes` and `difficult` by image path: float32 (N, 5) class, x, y, w, h, relative to the picture.

    A picture without boxes has an entry all the same; one that isn't here has its labels in a file.
    """

    boxes: dict[str, np.ndarray] = field(default_factory=dict)
    difficult: dict[str, np.ndarray] = field(default_factory=dict)

    def __contains__(self, image: str) -> bool:
        return image in self.boxes

    def labels(self, image: str) -> Labels:
        """What training and evaluation see."""
        return _labels(self.boxes, image)

    def difficult_labels(self, image: str) -> Labels:
        """What evaluation neither counts as missed nor as wrongly found."""
        return _labels(self.difficult, image)

    def update(self, other: Annotations) -> None:
        self.boxes.update(other.boxes)
        self.difficult.update(other.difficult)


def _labels(rows: dict[str, np.ndarray], image: str) -> Labels:
    part = rows.get(image)
    if part is None or not len(part):
        return empty_labels(image)
    return Labels(part[:, 1:], part[:, 0].astype(np.int64), track_ids(image, len(part)), image)


class Oddities:
    """What is left out of a file: one sentence a kind, with the first case and the number of all."""

    def __init__(self, file: str):
        self.file = file
        self._kinds: dict[str, tuple[str, int]] = {}

    def see(self, kind: str, example: str = "", count: int = 1) -> None:
        """Take note of `count` cases; the first example is kept."""
        if count:
            first, before = self._kinds.get(kind, (example, 0))
            self._kinds[kind] = first, before + count

    def tell(self) -> None:
        for kind, (example, count) in self._kinds.items():
            warn(f"{self.file}: {count} {kind}{f' ({example})' if example else ''}")


def by_image(paths: Iterable[str], which: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Rows (N, 5) by the path whose number `which` (N,) names; their order is kept."""
    names = list(paths)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(names)))[:-1] if names else []
    return dict(zip(names, np.split(rows[order].astype(np.float32), ends), strict=True))
