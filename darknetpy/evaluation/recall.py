"""`detector recall`: how many truths any box finds, whatever its class (Darknet: `validate_detector_recall`)."""

from __future__ import annotations

from collections.abc import Callable

from darknetpy.data.evaluation import EvaluationImages, Sample
from darknetpy.evaluation.evaluator import for_each
from darknetpy.evaluation.matches import iou_matrix
from darknetpy.inference import Detector

THRESH, NMS, IOU = 0.001, 0.4, 0.5


def run_recall(detector: Detector, images: EvaluationImages, show: Callable[[str], None]) -> float:
    """Share of truths with a box that overlaps them by more than half; one line a picture goes to `show`."""
    counts = {"total": 0, "correct": 0, "proposals": 0, "iou": 0.0}

    def act(sample: Sample, found) -> None:
        found = found.nms_objectness(NMS)
        alive = found.objectness > THRESH
        counts["proposals"] += int(alive.sum())
        overlap = iou_matrix(sample.labels.boxes.astype(float), found.boxes[alive].numpy().astype(float))
        best = overlap.max(1) if overlap.size else overlap.sum(1)
        counts["total"] += len(best)
        counts["iou"] += float(best.sum())
        counts["correct"] += int((best > IOU).sum())
        total = max(1, counts["total"])
        show(
            f"{sample.index:5d} {counts['correct']:5d} {counts['total']:5d}\t"
            f"RPs/Img: {counts['proposals'] / (sample.index + 1):.2f}\tIOU: {100 * counts['iou'] / total:.2f}%\t"
            f"Recall:{100 * counts['correct'] / total:.2f}%"
        )

    for_each(detector, images, act, THRESH, 0.0)
    return counts["correct"] / max(1, counts["total"])
