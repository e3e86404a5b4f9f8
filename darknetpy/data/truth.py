"""Truth rows of an augmented picture (Darknet: `correct_boxes`, `fill_truth_detection`)."""

from __future__ import annotations

import numpy as np

from darknetpy.data.draws import Draws
from darknetpy.data.geometry import Crop
from darknetpy.data.labels import Labels
from darknetpy.data.notes import BAD_LABELS, append_line, say

SENTINEL = 999999.0
TRUTH_SIZE = 6
F = np.float32


def fill_truth(labels: Labels, crop: Crop, d: Draws, w: int, h: int, classes: int, most: int) -> tuple[np.ndarray, int]:
    """(N, 6) rows x, y, w, h, class, track of the boxes that are left, and the shortest side in network pixels.

    Boxes are shuffled, moved and clipped; the first `most` of them are looked at. A box smaller than a network pixel
    vanishes silently, a wrong annotation is said and noted in `bad_label.list`.
    """
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
    order = np.arange(count)
    if partners is not None:
        for i, j in enumerate(partners):
            order[i], order[j] = order[j], order[i]
    return order


def correct_boxes(boxes: np.ndarray, crop: Crop, flip: bool) -> np.ndarray:
    """Boxes (N, 4) in the taken rectangle, clipped to it; impossible ones become the sentinel."""
    if not len(boxes):
        return boxes
    x, y, w, h = boxes.astype(F).T
    half = F(0.5)
    out = (x + w * half < 0) | (y + h * half < 0) | (x - w * half > 1) | (y - h * half > 1)
    out |= (x == 0) & (y == 0)
    (sx, sy), (dx, dy) = crop.inverse_scale, crop.shift
    left, right = (x - w * half) * sx - dx, (x + w * half) * sx - dx
    top, bottom = (y - h * half) * sy - dy, (y + h * half) * sy - dy
    if flip:
        left, right = F(1) - right, F(1) - left
    left, right, top, bottom = (np.clip(v, F(0), F(1)) for v in (left, right, top, bottom))
    result = np.stack([(left + right) * half, (top + bottom) * half, right - left, bottom - top], 1)
    result[out] = SENTINEL
    return result.astype(F)


def _checked(boxes: np.ndarray, ids: np.ndarray, w: int, h: int, classes: int, path: str) -> np.ndarray:
    """Mask of usable boxes; wrong ones are said, in Darknet's order of tests."""
    x, y, bw, bh = boxes.T if len(boxes) else np.zeros((4, 0), F)
    wrong_class = ids >= classes
    tiny = (bw < F(1) / F(w)) | (bh < F(1) / F(h))
    nowhere = (x == SENTINEL) | (y == SENTINEL)
    outside = (x <= 0) | (x > 1) | (y <= 0) | (y > 1)
    for i in np.flatnonzero(wrong_class):
        _tell(path, f"class_id = {ids[i]}. But class_id should be [from 0 to {classes - 1}]")
    if (~wrong_class & ~tiny & nowhere).any():
        _tell(path, "x = 0, y = 0, < 0 or > 1", "x = 0 or y = 0")
    for i in np.flatnonzero(~wrong_class & ~tiny & ~nowhere & outside):
        _tell(path, f"x = {x[i]:f}, y = {y[i]:f}")
    return ~(wrong_class | tiny | nowhere | outside)


def _tell(path: str, text: str, listed: str | None = None) -> None:
    """Darknet's sentence for the user and its line for the list, which differ in one case."""
    say(f" Wrong annotation: {text}, file: {path} ")
    append_line(BAD_LABELS, f"{path} Wrong annotation: {listed or text}")
