"""A detection data set, and batches of it as pure functions of (seed, iteration, size)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np

from darknetpy.data.batches import Batch, Rows
from darknetpy.data.cache import Cache
from darknetpy.data.combine import Slot, combine
from darknetpy.data.draws import MIXUP, MOSAIC, Augmentation
from darknetpy.data.pictures import Pictures
from darknetpy.data.sampling import PASSES, Request, Sampler
from darknetpy.data.sets import Annotations
from darknetpy.data.truth import TRUTH_SIZE
from darknetpy.errors import DataError

__all__ = ["Batch", "DetectionData", "Request", "Rows", "stack_truth"]


class DetectionData:
    """Pictures with boxes, and how to augment them.

    Args:
        paths: image files; options: ranges of the draws; channels: of the network.
        seed: all draws follow from it; strict: Darknet's way of reading labels.
        cache: keeps decoded pictures; annotations: labels that do not lie in files.
        closes: iteration from which on neither mosaic nor mixup is made, None: never.
    """

    def __init__(
        self, paths: Sequence[str], options: Augmentation, channels: int = 3, seed: int = 0, strict: bool = False,
        cache: Cache | None = None, annotations: Annotations | None = None, closes: int | None = None,
    ):  # fmt: skip
        if strict and options.mode == MOSAIC and options.letter_box:
            raise DataError("mosaic=1 and letter_box=1 do not go together", remedy="remove one of them from [net]")
        self.options = options
        self.pictures = Pictures(paths, channels, strict, cache, annotations)
        self.sampler = Sampler(len(paths), options, seed, closes)

    @property
    def paths(self) -> list[str]:
        return self.pictures.paths

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def widest(self) -> type:
        """The wider of the types that pictures of a batch can have."""
        return np.float32 if self.options.mode == MIXUP else np.uint8

    def shape(self, request: Request) -> tuple[tuple[int, int, int, int], type]:
        """Shape (B, C, H, W) and type of a batch's pictures."""
        kind = np.float32 if self.sampler.mode(request) == MIXUP else np.uint8
        return (request.count, self.pictures.channels, request.height, request.width), kind

    def batch(self, request: Request, empty: Callable[..., np.ndarray] = np.empty) -> Batch:
        """The mini-batch of a request, in an array that `empty(shape, type)` makes.

        Raises DataError if no picture can be read.
        """
        images = empty(*self.shape(request))
        rows = self.rows(request, 0, images)
        return Batch(images, stack_truth(rows.truth), request, rows.paths)

    def rows(self, request: Request, first: int, images: np.ndarray) -> Rows:
        """Fill `images` (n, C, H, W) with the rows from `first` on."""
        mode = self.sampler.mode(request)
        result = Rows([], [])
        for row, target in enumerate(images, first):
            path, slots = self._slots(request, row, mode)
            cut = self.sampler.cut(request, row) if mode == MOSAIC else (0, 0)
            image, truth = combine(slots, mode, request.width, request.height, cut, self.options)
            _to_planes(image, target)
            result.truth.append(truth)
            result.paths.append(path)
        return result

    @staticmethod
    def stack(truth: Sequence[np.ndarray]) -> np.ndarray:
        """See `stack_truth`."""
        return stack_truth(truth)

    def _slots(self, request: Request, row: int, mode: int) -> tuple[str, list[Slot]]:
        """Path of the first picture, and all pictures of a row with their draws."""
        choices = self.sampler.choices(request, row, PASSES[mode])
        found = [self.pictures.first_readable(choice) for choice in choices]
        draws = self.sampler.draws(request, row, mode, [len(labels) for _, _, labels in found])
        return found[0][0], [Slot(image, labels, d) for (_, image, labels), d in zip(found, draws, strict=True)]


def _to_planes(image: np.ndarray, target: np.ndarray) -> None:
    """Copy (H, W, C) to (C, H, W). OpenCV writes into the planes that it is given, several times faster than numpy."""
    for plane, place in zip(cv2.split(image, list(target)), target, strict=True):
        if not np.may_share_memory(plane, place):
            place[:] = plane


def stack_truth(rows: Sequence[np.ndarray]) -> np.ndarray:
    """(B, M, 6) with at least one row, padded with zeros, which end each list."""
    result = np.zeros((len(rows), max(1, max(map(len, rows))), TRUTH_SIZE), np.float32)
    for i, part in enumerate(rows):
        result[i, : len(part)] = part
    return result
