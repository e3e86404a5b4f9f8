"""Truth rows of an augmented picture (Darknet: `correct_boxes`, `fill_truth_detection`)."""

from __future__ import annotations

import numpy as np

from darknetpy.data.draws import Draws
from darknetpy.data.geometry import Crop
from darknetpy.data.labels import Labels, wrong_annotation
from darknetpy.data.notes import tally

SENTINEL = 999999.0
FAR = np.float32(1e9)
"""Corners beyond this many pictures are as good as there; it keeps the arithmetic finite."""
TRUTH_SIZE = 6
SURPLUS = "label files have more boxes than max={} of the last head: each time so many are chosen at random; raise max="
F = np.float32


def fill_truth(labels: Labels, crop: Crop, d: Draws, w: int, h: int, classes: int, most: int) -> tuple[np.ndarray, int]:
    """(N, 6) rows x, y, w, h, class, track of the boxes that are left, and the shortest side in network pixels.

    Boxes are shuffled, moved and clipped; the first `most` of them are looked at. A box smaller than a network pixel
    vanishes silently, a wrong annotation is said and noted in `bad_label.list`.
    """
    if len(labels) > most:
        tally(SURPLUS.format(most), labels.path)
    order = _shuffled(len(labels), d.shuffle)
    boxes = correct_boxes(labels.boxes[order], crop, d.flip)[:most]
    ids, tracks = labels.classes[order][:most], labels.tracks[order][:most]
    keep = _checked(boxes, ids, w, h, classes, labels.path)
    rows = np.concatenate([boxes, ids[:, None], tracks[:, None]], 1)[keep].astype(F)
    rows[:, 2:4] = np.minimum(rows[:, 2:4], F(1))
    if not len(rows):
        return rows.reshape(0, TRUTH_SIZE), 0
    sides = (rows[:, 2:4] * np.array([w, h], F)).astype(np.int64)
    return rows, int(sides.min())


def _shuffled(count: int, partners: np.ndarray | None) -> np.ndarray:
    order = list(range(count))
    for i, j in enumerate([] if partners is None else partners.tolist()):
        order[i], order[j] = order[j], order[i]
    return np.array(order, np.int64)


def correct_boxes(boxes: np.ndarray, crop: Crop, flip: bool) -> np.ndarray:
    """Boxes (N, 4) in the taken rectangle, clipped to it; impossible ones become the sentinel."""
    if not len(boxes):
        return boxes
    centre, half = boxes[:, :2].astype(F), boxes[:, 2:].astype(F) * F(0.5)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that no label file should have
        low, high = centre - half, centre + half
        out = ~((high >= 0) & (low <= 1)).all(1) | (centre == 0).all(1)
    scale, shift = np.array(crop.inverse_scale, F), np.array(crop.shift, F)
    low, high = (side * scale - shift for side in (np.maximum(low, -FAR), np.minimum(high, FAR)))
    if flip:
        low[:, 0], high[:, 0] = F(1) - high[:, 0], F(1) - low[:, 0]
    low, high = (np.minimum(np.maximum(side, F(0)), F(1)) for side in (low, high))
    result = np.concatenate([(low + high) * F(0.5), high - low], 1)
    result[out] = SENTINEL
    return result


def _checked(boxes: np.ndarray, ids: np.ndarray, w: int, h: int, classes: int, path: str) -> np.ndarray:
    """Mask of usable boxes; wrong ones are said, in Darknet's order of tests."""
    x, y, bw, bh = boxes.T if len(boxes) else np.zeros((4, 0), F)
    wrong_class = ids >= classes
    tiny = (bw < F(1) / F(w)) | (bh < F(1) / F(h))
    nowhere = (x == SENTINEL) | (y == SENTINEL)
    outside = (x <= 0) | (x > 1) | (y <= 0) | (y > 1)
    for label in dict.fromkeys(ids[wrong_class].tolist()):
        wrong_annotation(path, f"class_id = {label}. But class_id should be [from 0 to {classes - 1}]")
    if (~wrong_class & ~tiny & nowhere).any():
        wrong_annotation(path, "x = 0, y = 0, < 0 or > 1", "x = 0 or y = 0")
    for i in np.flatnonzero(~wrong_class & ~tiny & ~nowhere & outside):
        wrong_annotation(path, f"x = {x[i]:f}, y = {y[i]:f}")
    return ~(wrong_class | tiny | nowhere | outside)
