"""What a detector found and what there was, picture by picture, in flat arrays.

Every class of a box with a probability is a detection of its own. Thresholds come later: the same arrays answer for any
overlap, confidence and kind of average.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

PAIR_IOU = 0.5
"""Overlaps from here on are kept one by one, for COCO's way of matching, whose lowest threshold it is."""


@dataclass
class Table:
    """Columns of one picture or of many.

    Over detections (N,), in storage order (box by box, classes ascending):
        image: number of the picture; box: row in `boxes`; class_id; prob.
        overlap: highest IoU with a truth of the class, truth: that truth's row (-1: none).
        hard: highest IoU with a difficult truth of the class.
    Over boxes: boxes (B, 4) x, y, w, h relative; box_image (B,).
    Over truths: truth_boxes (M, 4), truth_class (M,), truth_image (M,).
    Over pairs of a detection and a truth of its class that overlap by PAIR_IOU: pair_detection, pair_truth, pair_iou.
    """

    image: np.ndarray
    box: np.ndarray
    class_id: np.ndarray
    prob: np.ndarray
    overlap: np.ndarray
    truth: np.ndarray
    hard: np.ndarray
    boxes: np.ndarray
    box_image: np.ndarray
    truth_boxes: np.ndarray
    truth_class: np.ndarray
    truth_image: np.ndarray
    pair_detection: np.ndarray
    pair_truth: np.ndarray
    pair_iou: np.ndarray

    @classmethod
    def empty(cls) -> Table:
        boxes, probs, classes = np.zeros((0, 4), np.float32), np.zeros((0, 0), np.float32), np.zeros(0, np.int64)
        return _table(0, boxes, probs, boxes, classes, None, None)

    @classmethod
    def join(cls, parts: Iterable[Table]) -> Table:
        """Tables one after another, detections in the order of their pictures."""
        parts = list(parts)
        if len(parts) < 2:
            return parts[0] if parts else cls.empty()
        columns = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)}
        for column, target in (
            ("box", "boxes"), ("truth", "truth_boxes"), ("pair_truth", "truth_boxes"), ("pair_detection", "image"),
        ):  # fmt: skip
            before = np.cumsum([0, *(len(getattr(part, target)) for part in parts[:-1])])
            shift = np.repeat(before, [len(getattr(part, column)) for part in parts])
            none = columns[column] < 0
            columns[column] = np.where(none, -1, columns[column] + shift).astype(columns[column].dtype)
        return cls(**columns)._in_order()

    def _in_order(self) -> Table:
        """Detections sorted by picture; their order within one stays."""
        if (np.diff(self.image) >= 0).all():
            return self
        order = np.argsort(self.image, kind="stable")
        for name in ("image", "box", "class_id", "prob", "overlap", "truth", "hard"):
            setattr(self, name, getattr(self, name)[order])
        self.pair_detection = np.argsort(order)[self.pair_detection].astype(np.int32)
        return self


class Matches:
    """Collects pictures. `truths` (classes,) counts them by class, `invalid` those of unknown classes, left out."""

    def __init__(self, classes: int):
        self.classes = classes
        self.truths = np.zeros(classes, np.int64)
        self.invalid = 0
        self.images = 0
        self._parts: list[Table] = []

    @property
    def truth_count(self) -> int:
        return int(self.truths.sum())

    def add(
        self,
        boxes: np.ndarray,
        probs: np.ndarray,
        truth_boxes: np.ndarray,
        truth_classes: np.ndarray,
        difficult_boxes: np.ndarray | None = None,
        difficult_classes: np.ndarray | None = None,
        index: int | None = None,
    ) -> int:
        """Add one picture. Returns how many of its truths have an unknown class.

        Args:
            boxes: (N, 4) x, y, w, h, in the units of the truths; probs: (N, classes).
            truth_boxes: (M, 4); truth_classes: (M,); the same of difficult truths.
            index: place of the picture in the list (None: the next one); equally sure detections rank by it.
        """
        known = (truth_classes >= 0) & (truth_classes < self.classes)
        truth_boxes, truth_classes = truth_boxes[known], truth_classes[known]
        index = self.images if index is None else index
        self._parts.append(_table(index, boxes, probs, truth_boxes, truth_classes, difficult_boxes, difficult_classes))
        self.truths += np.bincount(truth_classes, minlength=self.classes)
        self.images += 1
        wrong = int((~known).sum())
        self.invalid += wrong
        return wrong

    def merge(self, others: Iterable[Matches]) -> Matches:
        """Take in what others collected of the same list; the order of ranks or processes leaves no trace."""
        for other in others:
            self._parts += other._parts
            self.truths += other.truths
            self.invalid += other.invalid
            self.images += other.images
        return self

    def table(self) -> Table:
        """Everything collected so far."""
        self._parts = [Table.join(self._parts)]
        return self._parts[0]


def iou_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(N, M) IoU of boxes in centre form, in float64; 0 where there is no overlap."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    low = np.maximum(a[:, None, :2] - a[:, None, 2:] / 2, b[None, :, :2] - b[None, :, 2:] / 2)
    high = np.minimum(a[:, None, :2] + a[:, None, 2:] / 2, b[None, :, :2] + b[None, :, 2:] / 2)
    with np.errstate(invalid="ignore", over="ignore"):  # an untrained network's boxes may be infinite
        inter = np.clip(high - low, 0, None).prod(-1)
        union = (a[:, 2] * a[:, 3])[:, None] + (b[:, 2] * b[:, 3])[None] - inter
    return np.divide(inter, union, out=np.zeros_like(inter), where=union > 0)


def first_of_each(truth: np.ndarray) -> np.ndarray:
    """Mask of the first occurrence of each truth (-1 is none)."""
    first = np.zeros(len(truth), bool)
    values, index = np.unique(truth, return_index=True)
    first[index[values >= 0]] = True
    return first


def _table(index, boxes, probs, truth_boxes, truth_classes, difficult_boxes, difficult_classes) -> Table:
    row, class_id = np.nonzero(probs > 0)
    count = len(row)
    overlap, truth, pairs = _overlaps(boxes, row, class_id, truth_boxes, truth_classes)
    hard = np.zeros(count, np.float64)
    if difficult_boxes is not None:
        hard, _, _ = _overlaps(boxes, row, class_id, difficult_boxes, difficult_classes)
    return Table(
        image=np.full(count, index, np.int32),
        box=row.astype(np.int32),
        class_id=class_id.astype(np.int32),
        prob=probs[row, class_id].astype(np.float32),
        overlap=overlap,
        truth=truth,
        hard=hard,
        boxes=boxes.astype(np.float32),
        box_image=np.full(len(boxes), index, np.int32),
        truth_boxes=truth_boxes.astype(np.float32),
        truth_class=truth_classes.astype(np.int32),
        truth_image=np.full(len(truth_classes), index, np.int32),
        pair_detection=pairs[0],
        pair_truth=pairs[1],
        pair_iou=pairs[2],
    )


def _overlaps(boxes, row, class_id, truth_boxes, truth_classes) -> tuple[np.ndarray, np.ndarray, tuple]:
    """Of each detection the highest IoU with a truth of its class and that truth, the first of equals; all pairs."""
    best, which = np.zeros(len(row)), np.full(len(row), -1, np.int32)
    candidates = np.flatnonzero(np.isin(class_id, truth_classes))
    iou = iou_matrix(boxes, truth_boxes)[row[candidates]]
    iou[class_id[candidates, None] != truth_classes[None]] = 0
    if iou.size:
        first = iou.argmax(1)
        best[candidates] = iou[np.arange(len(candidates)), first]
        which[candidates] = np.where(best[candidates] > 0, first, -1)
    near, truth = np.nonzero(iou >= PAIR_IOU)
    return best, which, (candidates[near].astype(np.int32), truth.astype(np.int32), iou[near, truth])
