"""Average precision as Darknet computes it (Darknet: `validate_detector_map`).

A detection belongs to the truth of its class that it overlaps most, taken or not. Ranked by confidence, the first one
of a truth is right and all others are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape

import numpy as np
from tabulate import tabulate

from darknetpy.errors import UsageError
from darknetpy.evaluation.coco import CocoResult, coco_summary
from darknetpy.evaluation.confusion import confusion_matrix
from darknetpy.evaluation.matches import Matches, Table, first_of_each


@dataclass
class ClassResult:
    """One class: average precision in 0..1; true and false positives at the confidence threshold; truths.

    `average_iou` counts false positives as overlap 0; `detections` are all that were ranked.
    """

    name: str
    ap: float
    tp: int
    fp: int
    truths: int
    average_iou: float = 0.0
    detections: int = 0

    @property
    def fn(self) -> int:
        return self.truths - self.tp

    @property
    def precision(self) -> float:
        return ratio(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float:
        return ratio(self.tp, self.truths)

    @property
    def f1(self) -> float:
        return ratio(2 * self.precision * self.recall, self.precision + self.recall)


@dataclass
class Curve:
    """Recall, precision and confidence of one class after each ranked detection; all (N,)."""

    recall: np.ndarray
    precision: np.ndarray
    confidence: np.ndarray


@dataclass(repr=False)
class EvaluationResult:
    """What `detector map` reports.

    Attributes:
        map: mean average precision in 0..1, over all classes, also those without truths.
        classes: results by class.
        precision, recall, f1, tp, fp, fn, average_iou: at `conf_thresh`; false positives count as overlap 0.
        detections_count, unique_truth_count: detections ranked, truths known.
        iou_thresh, conf_thresh, points: how it was computed (points 0: area under the curve).
        seconds: time of the evaluation; images: pictures; invalid: truths of unknown classes, left out.
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
    images: int = 0
    invalid: int = 0
    matches: Matches | None = field(default=None, compare=False)

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.classes]

    def __repr__(self) -> str:
        return (
            f"EvaluationResult(mAP@{self.iou_thresh:.2f} {100 * self.map:.2f} %, at confidence {self.conf_thresh:.2f}: "
            f"precision {self.precision:.2f}, recall {self.recall:.2f}, F1 {self.f1:.2f}; "
            f"{self.unique_truth_count} truths in {self.images} images)"
        )

    def _repr_html_(self) -> str:
        """A table of the classes, for notebooks."""
        return f"<p>{escape(repr(self))}</p>{tabulate(self.rows(), headers='keys', floatfmt='.4f', tablefmt='html')}"

    def rows(self) -> list[dict[str, str | float]]:
        """One dictionary a class: for a table, a csv file, a data frame."""
        columns = ("name", "ap", "precision", "recall", "f1", "tp", "fp", "fn", "truths", "detections", "average_iou")
        return [{column: getattr(c, column) for column in columns} for c in self.classes]

    def at(
        self, iou_thresh: float | None = None, conf_thresh: float | None = None, points: int | None = None
    ) -> EvaluationResult:
        """The same detections measured with other thresholds."""
        result = score(
            self._matches,
            self.names,
            self.iou_thresh if iou_thresh is None else iou_thresh,
            self.conf_thresh if conf_thresh is None else conf_thresh,
            self.points if points is None else points,
        )
        result.seconds = self.seconds
        return result

    def coco(self) -> CocoResult:
        """COCO's own numbers: AP over overlaps .5 to .95 and average recall, with COCO's matching."""
        return coco_summary(self._matches)

    @cached_property
    def curves(self) -> list[Curve]:
        """Precision and recall of each class at `iou_thresh`."""
        return _curves(self._matches, _Ranking(self._matches, self.iou_thresh))

    def confusion_matrix(self, conf_thresh: float | None = None, iou_thresh: float | None = None) -> np.ndarray:
        """(classes + 1, classes + 1) counts: truth down, detection across, the last for background."""
        return confusion_matrix(
            self._matches.table(),
            self._matches.classes,
            self.conf_thresh if conf_thresh is None else conf_thresh,
            self.iou_thresh if iou_thresh is None else iou_thresh,
        )

    @property
    def _matches(self) -> Matches:
        if self.matches is None:
            raise UsageError("this result came without its detections: evaluate again for further numbers")
        return self.matches


def score(
    matches: Matches, names: Sequence[str], iou_thresh: float, conf_thresh: float, points: int
) -> EvaluationResult:
    """Average precisions and counts of everything matched so far.

    Args:
        iou_thresh: a detection must overlap a truth by more; conf_thresh: counts take in what is surer.
        points: recall levels of AP, at least 2; 0 for the area under the curve.

    Raises UsageError for any other number of points.
    """
    if points < 0 or points == 1:
        raise UsageError("-points must be 0 (area under the curve), 11 or 101", value=points)
    ranking = _Ranking(matches, iou_thresh)
    counts = _at_threshold(matches, ranking, conf_thresh)
    curves = _curves(matches, ranking)
    classes = [
        ClassResult(
            name=names[c] if c < len(names) else f"class_{c}",
            ap=_ap(curves[c], points),
            tp=int(counts.tp[c]),
            fp=int(counts.fp[c]),
            truths=int(matches.truths[c]),
            average_iou=ratio(counts.iou[c], counts.tp[c] + counts.fp[c]),
            detections=len(curves[c].recall),
        )
        for c in range(matches.classes)
    ]
    tp, fp = int(counts.tp.sum()), int(counts.fp.sum())
    precision, recall = ratio(tp, tp + fp), ratio(tp, matches.truth_count)
    return EvaluationResult(
        map=ratio(sum(c.ap for c in classes), len(classes)),
        classes=classes,
        precision=precision,
        recall=recall,
        f1=ratio(2 * precision * recall, precision + recall),
        tp=tp,
        fp=fp,
        fn=matches.truth_count - tp,
        average_iou=ratio(counts.iou.sum(), tp + fp),
        detections_count=len(ranking.order),
        unique_truth_count=matches.truth_count,
        iou_thresh=iou_thresh,
        conf_thresh=conf_thresh,
        points=points,
        images=matches.images,
        invalid=matches.invalid,
        matches=matches,
    )


def ratio(a: float, b: float) -> float:
    """a / b, and 0 for 0 / 0."""
    return float(a / b) if b else 0.0


class _Ranking:
    """Detections at one overlap threshold: their truths, and their order by class and confidence.

    Attributes:
        truth: (N,) row of the truth that each detection found, -1 for none.
        order: rows of the detections that count, class by class, most confident first; bounds (classes + 1,) its parts.
    """

    def __init__(self, matches: Matches, iou_thresh: float):
        self.table: Table = matches.table()
        found = self.table.overlap > np.float32(iou_thresh)
        self.truth = np.where(found, self.table.truth, -1)
        # One that hits only a difficult truth is neither right nor wrong. Equal confidences keep their storage order.
        kept = np.flatnonzero(found | ~(self.table.hard > np.float32(iou_thresh)))
        class_id = self.table.class_id[kept]
        order = np.lexsort((-self.table.prob[kept], class_id))
        self.order = kept[order]
        self.bounds = np.searchsorted(class_id[order], np.arange(matches.classes + 1))


def _curves(matches: Matches, ranking: _Ranking) -> list[Curve]:
    right = first_of_each(ranking.truth[ranking.order])
    prob = ranking.table.prob[ranking.order]
    curves = []
    for truths, low, high in zip(matches.truths.tolist(), ranking.bounds[:-1], ranking.bounds[1:], strict=True):
        tp = right[low:high].cumsum()
        curves.append(Curve(tp / max(1, truths), tp / np.arange(1, high - low + 1), prob[low:high]))
    return curves


@dataclass
class _Counts:
    """By class: true and false positives, and the sum of the true ones' overlaps."""

    tp: np.ndarray
    fp: np.ndarray
    iou: np.ndarray


def _at_threshold(matches: Matches, ranking: _Ranking, conf_thresh: float) -> _Counts:
    """True and false positives above the confidence threshold.

    Right is the first detection of a truth in storage order, whatever its probability: a weaker duplicate that is
    stored earlier makes the stronger one wrong. What hits only a difficult truth counts as wrong here.
    """
    table, classes = ranking.table, matches.classes
    above = table.prob > np.float32(conf_thresh)
    right = above & first_of_each(ranking.truth)
    return _Counts(
        tp=np.bincount(table.class_id[right], minlength=classes),
        fp=np.bincount(table.class_id[above & ~right], minlength=classes),
        iou=np.bincount(table.class_id[right], table.overlap[right], classes),
    )


def _ap(curve: Curve, points: int) -> float:
    """Average precision of one class."""
    if not len(curve.recall):
        return 0.0
    envelope = np.maximum.accumulate(curve.precision[::-1])[::-1]
    if not points:
        return float((np.diff(curve.recall, prepend=0.0) * envelope).sum())
    levels = np.arange(points) * (1.0 / (points - 1))  # a product: at 11 points level 6 is a hair above 3/5
    at = np.searchsorted(curve.recall, levels, side="left")
    return float(np.append(envelope, 0.0)[at].sum() / points)
