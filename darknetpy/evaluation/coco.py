"""COCO's average precision and recall (`pycocotools` without area ranges and crowds), from the same detections.

COCO differs from Darknet in three points: the surest detection of a picture chooses first and takes the best truth that
is still free; IoU equal to the threshold is enough; classes without truths are left out of the means.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from darknetpy.evaluation.matches import Matches, Table

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALL_LEVELS = np.linspace(0, 1, 101)
MAX_DETECTIONS = (1, 10, 100)
"""Detections of a class in a picture that count; AP has the last."""


@dataclass
class CocoResult:
    """Numbers in 0..1; nan where no class has a truth.

    Attributes:
        precision: (10, classes) AP at each overlap; recall: (3, 10, classes) recall with 1, 10, 100 detections a
            picture; both nan for classes without truths.
    """

    precision: np.ndarray
    recall: np.ndarray

    @property
    def ap(self) -> float:
        """AP@[.5:.95]"""
        return _mean(self.precision)

    @property
    def ap50(self) -> float:
        return _mean(self.precision[0])

    @property
    def ap75(self) -> float:
        return _mean(self.precision[5])

    @property
    def ar(self) -> tuple[float, float, float]:
        """Average recall with up to 1, 10 and 100 detections of a class in a picture."""
        return tuple(_mean(part) for part in self.recall)

    @property
    def per_class(self) -> np.ndarray:
        """(classes,) AP@[.5:.95]; nan without truths."""
        return self.precision.mean(0)

    def numbers(self) -> dict[str, float]:
        """By the names that COCO's own table uses."""
        ar = dict(zip((f"AR@{n}" for n in MAX_DETECTIONS), self.ar, strict=True))
        return {"AP@[.5:.95]": self.ap, "AP@.5": self.ap50, "AP@.75": self.ap75, **ar}


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def coco_summary(matches: Matches) -> CocoResult:
    """AP and AR at all ten overlaps."""
    table, truths = matches.table(), matches.truths
    rank = _ranks(table, matches.classes)
    order = np.lexsort((rank, table.image, -table.prob, table.class_id))
    order = order[rank[order] < MAX_DETECTIONS[-1]]
    bounds = np.searchsorted(table.class_id[order], np.arange(matches.classes + 1))
    precision = np.full((len(THRESHOLDS), matches.classes), np.nan)
    recall = np.full((len(MAX_DETECTIONS), len(THRESHOLDS), matches.classes), np.nan)
    for t, thresh in enumerate(THRESHOLDS):
        right = _match(table, rank, thresh)
        for c in np.flatnonzero(truths).tolist():
            rows = order[bounds[c] : bounds[c + 1]]
            precision[t, c] = _average_precision(right[rows], int(truths[c]))
            recall[:, t, c] = [right[rows[rank[rows] < n]].sum() / truths[c] for n in MAX_DETECTIONS]
    return CocoResult(precision, recall)


def _ranks(table: Table, classes: int) -> np.ndarray:
    """Place of each detection among those of its class in its picture, by confidence."""
    group = table.image.astype(np.int64) * classes + table.class_id
    order = np.lexsort((-table.prob, group))
    group = group[order]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(group, group, side="left")
    return rank


def _match(table: Table, rank: np.ndarray, thresh: float) -> np.ndarray:
    """Which detections take a truth. All pictures and classes at once: the first of each choose, then the second..."""
    near = np.flatnonzero((table.pair_iou >= thresh) & (rank[table.pair_detection] < MAX_DETECTIONS[-1]))
    near = near[np.argsort(rank[table.pair_detection[near]], kind="stable")]
    detection, truth, iou = table.pair_detection[near], table.pair_truth[near], table.pair_iou[near]
    steps = np.searchsorted(rank[detection], np.arange(MAX_DETECTIONS[-1] + 1))
    right, taken = np.zeros(len(rank), bool), np.zeros(len(table.truth_class), bool)
    for low, high in pairwise(steps):
        free = low + np.flatnonzero(~taken[truth[low:high]])
        # The last of each detection's pairs by IoU: of equal overlaps COCO takes the later truth.
        free = free[np.lexsort((truth[free], iou[free], detection[free]))]
        best = free[np.append(np.diff(detection[free]) != 0, True)[: len(free)]]
        right[detection[best]] = True
        taken[truth[best]] = True
    return right


def _average_precision(right: np.ndarray, truths: int) -> float:
    tp = right.cumsum()
    precision = np.maximum.accumulate((tp / np.arange(1, len(right) + 1))[::-1])[::-1]
    at = np.searchsorted(tp / truths, RECALL_LEVELS, side="left")
    return float(np.append(precision, 0.0)[at].mean())
