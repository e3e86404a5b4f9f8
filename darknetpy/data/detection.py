"""A detection data set, and batches of it as pure functions of (seed, iteration, size)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from darknetpy.data.draws import MIXUP, MOSAIC, NONE, Augmentation, Draws, draw
from darknetpy.data.geometry import crop_of
from darknetpy.data.labels import Labels, labels_of
from darknetpy.data.mosaic import mix, mix_truth, padding_of, paste_tile, tile_truth
from darknetpy.data.notes import BAD_IMAGES, append_line, say
from darknetpy.data.pixels import augment
from darknetpy.data.truth import TRUTH_SIZE, fill_truth
from darknetpy.errors import DataError, ImageError
from darknetpy.images import read_image

PASSES = {NONE: 1, MIXUP: 2, MOSAIC: 4}
TRIES = 20
"""Other pictures tried in place of an unreadable one."""
SMALLEST_CUT, LARGEST_CUT = 0.2, 0.8


@dataclass(frozen=True)
class Request:
    """One mini-batch: `iteration` from 0, its `chunk` of the turn, the size of the pictures, and how many."""

    iteration: int
    chunk: int
    width: int
    height: int
    count: int


@dataclass
class Batch:
    """Pictures (B, C, H, W), uint8 (float32 in 0..1 after mixup), and truth rows (B, M, 6), M the longest list."""

    images: np.ndarray
    truth: np.ndarray
    request: Request
    paths: list[str] = field(default_factory=list)


@dataclass
class Slot:
    """One picture of a pass, ready to be augmented: its source, labels and draws."""

    path: str
    image: np.ndarray
    labels: Labels
    draws: Draws


class DetectionData:
    """Pictures with boxes, and how to augment them.

    Args:
        paths: image files; options: ranges of the draws; channels: of the network.
        seed: all draws follow from it; strict: Darknet's way of reading labels.
        cache: keep decoded pictures in memory.
    """

    def __init__(
        self, paths: Sequence[str], options: Augmentation, channels: int = 3, seed: int = 0, strict: bool = False,
        cache: bool = False,
    ):  # fmt: skip
        if not paths:
            raise DataError("the list of training images is empty")
        if options.mode == MOSAIC and options.letter_box:
            raise DataError("mosaic=1 and letter_box=1 do not go together", remedy="remove one of them from [net]")
        self.paths, self.options, self.channels = list(paths), options, channels
        self.seed, self.strict = seed, strict
        self.images: dict[str, np.ndarray] | None = {} if cache else None
        self.labels: dict[str, Labels] = {}

    def batch(self, request: Request) -> Batch:
        """The mini-batch of a request. One coin decides for all of it whether pictures are combined."""
        coin = np.random.default_rng([self.seed, request.iteration, request.chunk, 0])
        mode = self.options.mode if coin.integers(2) else NONE
        images, truths, paths = [], [], []
        for i in range(request.count):
            number = request.chunk * request.count + i
            rng = np.random.default_rng([self.seed, request.iteration, number, 1])
            cut = self._cut(rng, request)
            slots = [self._slot(rng, mode) for _ in range(PASSES[mode])]
            image, rows = combine(slots, mode, request.width, request.height, cut, self.options)
            images.append(image)
            truths.append(rows)
            paths.append(slots[0].path)
        return Batch(np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2)), stack_truth(truths), request, paths)

    @staticmethod
    def _cut(rng: np.random.Generator, request: Request) -> tuple[int, int]:
        sides = (request.width, request.height)
        return tuple(int(rng.integers(int(s * SMALLEST_CUT), int(s * LARGEST_CUT) + 1)) for s in sides)

    def _slot(self, rng: np.random.Generator, mode: int) -> Slot:
        """A random picture that can be read, with its draws."""
        for _ in range(TRIES):
            path = self.paths[rng.integers(len(self.paths))]
            try:
                image = self._image(path)
            except ImageError as error:
                say(str(error))
                append_line(BAD_IMAGES, path)
                continue
            labels = self._labels(path)
            return Slot(path, image, labels, draw(rng, self.options, mode == MOSAIC, len(labels)))
        raise DataError(f"{TRIES} images in a row cannot be read, the last one is {path}", remedy="see bad.list")

    def _image(self, path: str) -> np.ndarray:
        if self.images is None:
            return read_image(path, self.channels, opencv_grey=True)
        if path not in self.images:
            self.images[path] = read_image(path, self.channels, opencv_grey=True)
        return self.images[path]

    def _labels(self, path: str) -> Labels:
        if path not in self.labels:
            self.labels[path] = labels_of(path, self.strict)
        return self.labels[path]


def stack_truth(rows: Sequence[np.ndarray]) -> np.ndarray:
    """(B, M, 6) with at least one row, padded with zeros, which end each list."""
    result = np.zeros((len(rows), max(1, max(map(len, rows))), TRUTH_SIZE), np.float32)
    for i, part in enumerate(rows):
        result[i, : len(part)] = part
    return result


def combine(
    slots: Sequence[Slot], mode: int, w: int, h: int, cut: tuple[int, int], options: Augmentation
) -> tuple[np.ndarray, np.ndarray]:
    """One training picture (h, w, C) and its truth rows from one, two (mixup) or four (mosaic) sources."""
    result, truth = None, np.zeros((0, TRUTH_SIZE), np.float32)
    for tile, slot in enumerate(slots):
        d = slot.draws
        crop = crop_of(slot.image.shape[1], slot.image.shape[0], w, h, options, d, tile if mode == MOSAIC else None)
        rows, smallest = fill_truth(slot.labels, crop, d, w, h, options.classes, options.max_boxes)
        image = augment(slot.image, crop, w, h, d, rows, smallest)
        if mode == MOSAIC:
            pad = padding_of(crop, d.flip, w, h, *cut)
            result = np.empty_like(image) if result is None else result
            paste_tile(result, image, tile, *cut, pad)
            rows = tile_truth(rows, len(truth), options.max_boxes, tile, w, h, *cut, pad, options.mosaic_bound)
            truth = np.concatenate([truth, rows])
        elif mode == MIXUP:
            image = image.astype(np.float32) * np.float32(1 / 255)
            result = image if result is None else mix(result, image)
            truth = mix_truth(truth, rows, options.max_boxes) if len(truth) or tile else rows
        else:
            result, truth = image, rows
    return result, truth
