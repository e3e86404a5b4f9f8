"""The text of `detector map`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from darknetpy.evaluation.average_precision import EvaluationResult

HINTS = (
    "Set -points flag:\n `-points 101` for MS COCO \n"
    " `-points 11` for PascalVOC 2007 (uncomment `difficult` in voc.data) \n"
    " `-points 0` (AUC) for ImageNet, PascalVOC 2010-2012, your custom dataset"
)
RANKS = 100
"""Darknet tells of every so many ranks that it walks."""


def report(result: EvaluationResult, strict: bool = False) -> str:
    """Counts, classes and means, as Darknet prints them.

    Darknet holds the rates as 32-bit floats, which decides how halves are rounded. With `strict` also the progress text
    that it mixes in, and `-nan` for 0 / 0 instead of 0.
    """
    rates = _strict_rates(result) if strict else (result.precision, result.recall, result.f1)
    precision, recall, f1 = (_two_decimals(rate) for rate in rates)
    iou = np.float32(result.iou_thresh)
    t = np.float32(result.conf_thresh)
    lines = [
        "",
        f" detections_count = {result.detections_count}, unique_truth_count = {result.unique_truth_count}  ",
        (_progress(result.detections_count) if strict else "") + "\n".join(_class_lines(result)),
        "",
        f" for conf_thresh = {t:1.2f}, precision = {precision}, recall = {recall}, F1-score = {f1} ",
        f" for conf_thresh = {t:0.2f}, TP = {result.tp}, FP = {result.fp}, FN = {result.fn}, "
        f"average IoU = {np.float32(100) * np.float32(result.average_iou):2.2f} % ",
        "",
        f" IoU threshold = {100 * iou:2.0f} %, {_rule(result.points)} ",
        f" mean average precision (mAP@{iou:0.2f}) = {result.map:f}, or {100 * result.map:2.2f} % ",
    ]
    return "\n".join(lines)


def _class_lines(result: EvaluationResult) -> Iterable[str]:
    for i, c in enumerate(result.classes):
        yield f"class_id = {i}, name = {c.name}, ap = {100 * c.ap:2.2f}%   \t (TP = {c.tp}, FP = {c.fp}) "


def _rule(points: int) -> str:
    return f"used {points} Recall-points" if points else "used Area-Under-Curve for each unique Recall"


def _progress(count: int) -> str:
    return "".join(f" rank = {rank} of ranks = {count} \r" for rank in range(0, count, RANKS))


def _strict_rates(result: EvaluationResult) -> tuple[float, float, float]:
    nan = float("nan")
    precision = result.precision if result.tp + result.fp else nan
    recall = result.recall if result.unique_truth_count else nan
    return precision, recall, result.f1 if precision + recall > 0 else nan


def _two_decimals(rate: float) -> str:
    return "-nan" if np.isnan(rate) else f"{np.float32(rate):1.2f}"
