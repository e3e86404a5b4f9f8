"""The text of `detector map`."""

from __future__ import annotations

from darknetpy.evaluation.average_precision import EvaluationResult

HINTS = (
    "Set -points flag:\n `-points 101` for MS COCO \n"
    " `-points 11` for PascalVOC 2007 (uncomment `difficult` in voc.data) \n"
    " `-points 0` (AUC) for ImageNet, PascalVOC 2010-2012, your custom dataset"
)


def report(result: EvaluationResult) -> str:
    """Counts, classes and means, as Darknet prints them."""
    t = result.conf_thresh
    lines = [
        "",
        f" detections_count = {result.detections_count}, unique_truth_count = {result.unique_truth_count}  ",
    ]
    lines += [
        f"class_id = {i}, name = {c.name}, ap = {100 * c.ap:2.2f}%   \t (TP = {c.tp}, FP = {c.fp}) "
        for i, c in enumerate(result.classes)
    ]
    rule = f"used {result.points} Recall-points " if result.points else "used Area-Under-Curve for each unique Recall "
    lines += [
        "",
        f" for conf_thresh = {t:1.2f}, precision = {result.precision:1.2f}, recall = {result.recall:1.2f}, "
        f"F1-score = {result.f1:1.2f} ",
        f" for conf_thresh = {t:0.2f}, TP = {result.tp}, FP = {result.fp}, FN = {result.fn}, "
        f"average IoU = {100 * result.average_iou:2.2f} % ",
        "",
        f" IoU threshold = {100 * result.iou_thresh:2.0f} %, {rule}",
        f" mean average precision (mAP@{result.iou_thresh:0.2f}) = {result.map:f}, or {100 * result.map:2.2f} % ",
    ]
    return "\n".join(lines)
