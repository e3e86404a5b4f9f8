"""From pictures and draws to one training picture (Darknet: `load_data_detection`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from darknetpy.data.draws import MIXUP, MOSAIC, Augmentation, Draws
from darknetpy.data.geometry import crop_of
from darknetpy.data.labels import Labels
from darknetpy.data.mosaic import Tile, mix, mix_truth, padding_of
from darknetpy.data.pixels import augment
from darknetpy.data.truth import TRUTH_SIZE, fill_truth

TO_UNIT = np.float32(1 / 255)


@dataclass
class Slot:
    """A source picture (oh, ow, C), its labels, and what was drawn for it."""

    image: np.ndarray
    labels: Labels
    draws: Draws


def combine(
    slots: Sequence[Slot], mode: int, w: int, h: int, cut: tuple[int, int], options: Augmentation
) -> tuple[np.ndarray, np.ndarray]:
    """One training picture and its truth rows (N, 6) from one, two (mixup) or four (mosaic) sources.

    The picture is (h, w, C), uint8 in 0..255, after mixup float32 in 0..1. `cut` is where the tiles of a mosaic meet.
    """
    if mode == MOSAIC:
        return _mosaic(slots, w, h, cut, options)
    if mode == MIXUP:
        (first, rows), (second, more) = (_single(slot, w, h, options) for slot in slots)
        return mix(first * TO_UNIT, second * TO_UNIT), mix_truth(rows, more, options.max_boxes)
    return _single(slots[0], w, h, options)


def _single(slot: Slot, w: int, h: int, options: Augmentation) -> tuple[np.ndarray, np.ndarray]:
    d = slot.draws
    crop = crop_of(slot.image.shape[1], slot.image.shape[0], w, h, options, d)
    rows, smallest = fill_truth(slot.labels, crop, d, w, h, options.classes, options.max_boxes)
    return augment(slot.image, crop, w, h, d, rows, smallest), rows


def _mosaic(
    slots: Sequence[Slot], w: int, h: int, cut: tuple[int, int], options: Augmentation
) -> tuple[np.ndarray, np.ndarray]:
    canvas = np.empty((h, w, slots[0].image.shape[2]), np.uint8)
    truth = np.zeros((0, TRUTH_SIZE), np.float32)
    for number, slot in enumerate(slots):
        d = slot.draws
        crop = crop_of(slot.image.shape[1], slot.image.shape[0], w, h, options, d, number)
        rows, smallest = fill_truth(slot.labels, crop, d, w, h, options.classes, options.max_boxes)
        tile = Tile.of(number, w, h, cut, padding_of(crop, d.flip, w, h, *cut, options.letter_box))
        canvas[tile.place] = augment(slot.image, crop, w, h, d, rows, smallest, tile.window)
        truth = np.concatenate([truth, tile.truth(rows, options.max_boxes - len(truth), options.mosaic_bound)])
    return canvas, truth
