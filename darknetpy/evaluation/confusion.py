"""Which classes a detector takes for which."""

from __future__ import annotations

import numpy as np

from darknetpy.evaluation.matches import Table, first_of_each, iou_matrix


def confusion_matrix(table: Table, classes: int, conf_thresh: float, iou_thresh: float) -> np.ndarray:
    """Counts (classes + 1, classes + 1): the truth's class down, the detection's across; the last is background.

    A box counts with its surest class, if that is over `conf_thresh`. Boxes and truths whose IoU is over `iou_thresh`
    are paired whatever their classes, the closest first; what stays single is a false alarm or was missed.
    """
    rows = _surest(table, conf_thresh)
    found, truth = _closest_first(*_near(table, rows, iou_thresh))
    predicted, true = table.class_id[rows], table.truth_class
    matrix = np.zeros((classes + 1, classes + 1), np.int64)
    np.add.at(matrix, (true[truth], predicted[found]), 1)
    np.add.at(matrix, (classes, np.delete(predicted, found)), 1)
    np.add.at(matrix, (np.delete(true, truth), classes), 1)
    return matrix


def _surest(table: Table, conf_thresh: float) -> np.ndarray:
    """Detections that are their box's surest and surer than the threshold, by picture."""
    rows = np.flatnonzero(table.prob > np.float32(conf_thresh))
    rows = rows[np.lexsort((-table.prob[rows], table.box[rows]))]
    rows = rows[first_of_each(table.box[rows])]
    return rows[np.argsort(table.image[rows], kind="stable")]


def _near(table: Table, rows: np.ndarray, iou_thresh: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Place in `rows`, truth and IoU of all pairs in one picture that overlap enough."""
    by_image = np.argsort(table.truth_image, kind="stable")
    images = np.intersect1d(table.image[rows], table.truth_image)
    parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    found_at = [np.searchsorted(table.image[rows], images, side) for side in ("left", "right")]
    truth_at = [np.searchsorted(table.truth_image[by_image], images, side) for side in ("left", "right")]
    for low, high, first, last in np.stack([*found_at, *truth_at], axis=1).tolist():
        truths = by_image[first:last]
        iou = iou_matrix(table.boxes[table.box[rows[low:high]]], table.truth_boxes[truths])
        a, b = np.nonzero(iou > np.float32(iou_thresh))
        parts.append((a + low, truths[b], iou[a, b]))
    found, truth, iou = (np.concatenate(column) for column in zip(*parts, strict=True))
    return found, truth, iou


def _closest_first(found: np.ndarray, truth: np.ndarray, iou: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One-to-one pairs, taken greedily by IoU: in each round all that are the best on both sides."""
    order = np.argsort(-iou, kind="stable")
    found, truth = found[order], truth[order]
    chosen = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    while len(found):
        best = first_of_each(found) & first_of_each(truth)
        chosen.append((found[best], truth[best]))
        free = ~(np.isin(found, found[best]) | np.isin(truth, truth[best]))
        found, truth = found[free], truth[free]
    return tuple(np.concatenate(column) for column in zip(*chosen, strict=True))
