"""`detector recall`: how many truths any box finds, whatever its class (Darknet: `validate_detector_recall`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from darknetpy.data.evaluation import EvaluationImages, Sample
from darknetpy.detections import Detections
from darknetpy.evaluation.average_precision import ratio
from darknetpy.evaluation.evaluator import Predictor, for_each
from darknetpy.evaluation.matches import iou_matrix

THRESH, NMS, IOU = 0.001, 0.4, 0.5


@dataclass
class Recall:
    """Running counts: pictures, truths, truths found, boxes, and the sum of each truth's best overlap."""

    pictures: int = 0
    total: int = 0
    correct: int = 0
    proposals: int = 0
    iou: float = 0.0

    @property
    def value(self) -> float:
        """Share of the truths that were found."""
        return ratio(self.correct, self.total)

    def add(self, found: Detections, truth_boxes) -> None:
        """Count one picture: boxes suppressed by objectness against truths (M, 4)."""
        found = found.nms_objectness(NMS)
        alive = found.objectness > THRESH
        overlap = iou_matrix(truth_boxes, found.boxes[alive].float().numpy())
        best = overlap.max(1, initial=0)
        self.pictures += 1
        self.total += len(best)
        self.correct += int((best > IOU).sum())
        self.proposals += int(alive.sum())
        self.iou += float(best.sum())

    def line(self) -> str:
        """Darknet's line after a picture."""
        return (
            f"{self.pictures - 1:5d} {self.correct:5d} {self.total:5d}\t"
            f"RPs/Img: {ratio(self.proposals, self.pictures):.2f}\tIOU: {100 * ratio(self.iou, self.total):.2f}%\t"
            f"Recall:{100 * self.value:.2f}%"
        )


def run_recall(detector: Predictor, images: EvaluationImages, show: Callable[[str], None], batch: int = 0) -> float:
    """Share of truths with a box that overlaps them by more than half; one line a picture goes to `show`."""
    counts = Recall()

    def act(sample: Sample, found: Detections) -> None:
        counts.add(found, sample.labels.boxes)
        show(counts.line())

    for_each(detector, images, act, THRESH, nms=0.0, batch=batch)
    return counts.value
