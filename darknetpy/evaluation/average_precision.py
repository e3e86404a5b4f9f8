"""Average precision as Darknet computes it (Darknet: `validate_detector_map`).

Every class of a box with a probability is a detection of its own. A detection belongs to the truth of its class that
it overlaps most, taken or not; ranked by confidence, the first one of a truth is right and the others are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

COCO_POINTS = 101
COCO_THRESHOLDS = tuple(round(0.5 + 0.05 * i, 2) for i in range(10))


@dataclass
class ClassResult:
    """One class: average precision in 0..1; true and false positives at the confidence threshold; truths."""

    name: str
    ap: float
    tp: int
    fp: int
    truths: int


@dataclass
class EvaluationResult:
    """What `detector map` reports.

    Attributes:
        map: mean average precision in 0..1, over all classes, also those without truths.
        classes: results by class.
        precision, recall, f1, tp, fp, fn, average_iou: at `conf_thresh`; false positives count as overlap 0.
        detections_count, unique_truth_count: detections ranked, truths known.
        iou_thresh, conf_thresh, points: how it was computed (points 0: area under the curve).
        seconds: time of the evaluation.
    """

    map: float
    classes: list[ClassResult]
    precision: float
    recall: float
    f1: float
    tp: int
    fp: int
    fn: int
    average_iou: float
    detections_count: int
    unique_truth_count: int
    iou_thresh: float
    conf_thresh: float
    points: int
    seconds: float = 0.0
    matches: Matches | None = field(default=None, repr=False)

    def coco(self) -> dict[str, float]:
        """Mean AP over 101 points at overlaps .5 to .95, and at .5 and .75, by the same matching."""
        if self.matches is None:
            return {}
        names = [c.name for c in self.classes]
        maps = {t: score(self.matches, names, t, self.conf_thresh, COCO_POINTS).map for t in COCO_THRESHOLDS}
        return {"AP@[.5:.95]": float(np.mean(list(maps.values()))), "AP@.5": maps[0.5], "AP@.75": maps[0.75]}


def iou_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(N, M) IoU of boxes in centre form, in float64; 0 where there is no overlap."""
    low = np.maximum(a[:, None, :2] - a[:, None, 2:] / 2, b[None, :, :2] - b[None, :, 2:] / 2)
    high = np.minimum(a[:, None, :2] + a[:, None, 2:] / 2, b[None, :, :2] + b[None, :, 2:] / 2)
    inter = np.clip(high - low, 0, None).prod(-1)
    union = (a[:, 2] * a[:, 3])[:, None] + (b[:, 2] * b[:, 3])[None] - inter
    return np.divide(inter, union, out=np.zeros_like(inter), where=union != 0)


class Matches:
    """Detections of all pictures so far, each with its best truth; thresholds are applied when scores are asked for.

    Arrays over detections in storage order: class, probability, best overlap, index of that truth, best overlap with a
    difficult truth.
    """

    def __init__(self, classes: int):
        self.classes = classes
        self.truths = np.zeros(classes, np.int64)
        self.invalid = 0
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._count = 0

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
    ) -> int:
        """Add one picture: boxes (N, 4), probs (N, classes); truths (M, 4), (M,). Returns truths of unknown classes."""
        known = (truth_classes >= 0) & (truth_classes < self.classes)
        wrong = int((~known).sum())
        self.invalid += wrong
        truth_boxes, truth_classes = truth_boxes[known].astype(np.float64), truth_classes[known]
        row, class_id = np.nonzero(probs > 0)
        boxes = boxes.astype(np.float64)
        overlap, which = _best(boxes, row, class_id, truth_boxes, truth_classes)
        hard = np.zeros_like(overlap)
        if difficult_boxes is not None and len(difficult_boxes):
            hard, _ = _best(boxes, row, class_id, difficult_boxes.astype(np.float64), difficult_classes)
        self._parts.append((class_id, probs[row, class_id].astype(np.float64), overlap, which + self._count, hard))
        self.truths += np.bincount(truth_classes, minlength=self.classes)
        self._count += len(truth_classes)
        return wrong

    def arrays(self) -> tuple[np.ndarray, ...]:
        """class, probability, overlap, truth, difficult overlap of all detections."""
        if not self._parts:
            return tuple(np.zeros(0, kind) for kind in (np.int64, float, float, np.int64, float))
        if len(self._parts) > 1:
            self._parts = [tuple(np.concatenate(column) for column in zip(*self._parts, strict=True))]
        return self._parts[0]


def _best(boxes, row, class_id, truth_boxes, truth_classes) -> tuple[np.ndarray, np.ndarray]:
    """Best overlap of each detection with a truth of its class, and that truth's number."""
    if not len(truth_boxes) or not len(row):
        return np.zeros(len(row)), np.zeros(len(row), np.int64)
    overlap = np.where(class_id[:, None] == truth_classes[None], iou_matrix(boxes, truth_boxes)[row], 0.0)
    which = overlap.argmax(1)
    return overlap[np.arange(len(row)), which], which


def score(matches: Matches, names: list[str], iou_thresh: float, conf_thresh: float, points: int) -> EvaluationResult:
    """Average precisions and counts of everything matched so far."""
    class_id, prob, overlap, truth, hard = matches.arrays()
    found = overlap > iou_thresh
    truth = np.where(found, truth, -1)
    counts = _at_threshold(matches, class_id, prob, overlap, truth, conf_thresh)
    kept = found | ~(hard > iou_thresh)
    class_id, prob, truth = class_id[kept], prob[kept], truth[kept]
    order = np.argsort(-prob, kind="stable")
    class_id, truth = class_id[order], truth[order]
    right = _first_of_each(truth)
    aps = [_ap(right[class_id == c], int(matches.truths[c]), points) for c in range(matches.classes)]
    tp, fp = counts["tp"], counts["fp"]
    total_tp, total_fp = int(tp.sum()), int(fp.sum())
    precision, recall = _ratio(total_tp, total_tp + total_fp), _ratio(total_tp, matches.truth_count)
    classes = [
        ClassResult(names[c] if c < len(names) else f"class_{c}", aps[c], int(tp[c]), int(fp[c]), int(matches.truths[c]))
        for c in range(matches.classes)
    ]
    return EvaluationResult(
        map=float(np.mean(aps)) if aps else 0.0,
        classes=classes,
        precision=precision,
        recall=recall,
        f1=_ratio(2 * precision * recall, precision + recall),
        tp=total_tp,
        fp=total_fp,
        fn=matches.truth_count - total_tp,
        average_iou=_ratio(counts["iou"], total_tp + total_fp),
        detections_count=len(class_id),
        unique_truth_count=matches.truth_count,
        iou_thresh=iou_thresh,
        conf_thresh=conf_thresh,
        points=points,
        matches=matches,
    )


def _ratio(a: float, b: float) -> float:
    return float(a / b) if b else 0.0


def _first_of_each(truth: np.ndarray) -> np.ndarray:
    """Mask of the first occurrence of each truth (-1 is none)."""
    first = np.zeros(len(truth), bool)
    values, index = np.unique(truth, return_index=True)
    first[index[values >= 0]] = True
    return first


def _at_threshold(matches: Matches, class_id, prob, overlap, truth, conf_thresh: float) -> dict:
    """True and false positives above the confidence threshold.

    Right is the first detection of a truth in storage order, whatever its probability: a weaker duplicate that is
    stored earlier makes the stronger one wrong.
    """
    right = _first_of_each(truth)
    above = prob > conf_thresh
    tp = np.bincount(class_id[above & right], minlength=matches.classes)
    fp = np.bincount(class_id[above & ~right], minlength=matches.classes)
    return {"tp": tp, "fp": fp, "iou": float(overlap[above & right].sum())}


def _ap(right: np.ndarray, truths: int, points: int) -> float:
    """Average precision of one class from its ranked detections."""
    if not len(right) or not truths:
        return 0.0
    recall, precision = curve(right, truths)
    if points:
        step = 1.0 / (points - 1)  # multiplied, not divided: at 11 points the level 0.6 is a hair above 3/5
        levels = np.arange(points) * step
        envelope = np.maximum.accumulate(precision[::-1])[::-1]
        at = np.searchsorted(recall, levels, side="left")
        return float(np.where(at < len(envelope), envelope[np.minimum(at, len(envelope) - 1)], 0.0).mean())
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(recall, prepend=0.0) * envelope).sum())


def curve(right: np.ndarray, truths: int) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision after each ranked detection."""
    tp = right.cumsum()
    return tp / truths, tp / np.arange(1, len(right) + 1)
