"""One evaluation by every usual measure, as text and as plain data: VOC, COCO, and counts of each class."""

from __future__ import annotations

import json
import math
import os

from tabulate import tabulate

from darknetpy.evaluation.average_precision import EvaluationResult
from darknetpy.files import atomic_write

KINDS = {"AP": 0, "AP11": 11, "AP101": 101}
"""Average precision by Darknet's matching, at `iou_thresh`: area (VOC 2010), 11 levels (VOC 2007), 101 levels."""


def table(result: EvaluationResult) -> str:
    """A row for each class, and the means; percent, `-` where a class has no truth."""
    rows = [[c["name"], *map(_percent, _shares(c)), c["tp"], c["fp"], c["fn"]] for c in _classes(result)]
    total = {name: getattr(result, name) for name in ("precision", "recall", "f1")} | _means(result)
    rows.append(["all", *map(_percent, _shares(total)), result.tp, result.fp, result.fn])
    headers = ["class", *KINDS, "AP50-95", "precision", "recall", "F1", "TP", "FP", "FN"]
    return tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", *["right"] * 10))


def coco_text(result: EvaluationResult) -> str:
    """COCO's own six lines, as its evaluation prints them."""
    coco = result.coco()
    rows = [("Precision", "AP", overlap, 100, value) for overlap, value in (
        ("0.50:0.95", coco.ap), ("0.50", coco.ap50), ("0.75", coco.ap75),
    )]  # fmt: skip
    rows += [("Recall", "AR", "0.50:0.95", n, value) for n, value in zip((1, 10, 100), coco.ar, strict=True)]
    return "\n".join(
        f" Average {kind:<9}  ({short}) @[ IoU={overlap:<9} | area=   all | maxDets={n:>3} ] = {_or(value, -1):0.3f}"
        for kind, short, overlap, n, value in rows
    )


def as_data(result: EvaluationResult) -> dict:
    """Everything that was measured, for JSON: shares in 0..1, None where nothing is defined."""
    names = ("precision", "recall", "f1", "average_iou", "tp", "fp", "fn", "iou_thresh", "conf_thresh", "points")
    return {
        "map": result.map,
        **{name: getattr(result, name) for name in names},
        "detections": result.detections_count,
        "truths": result.unique_truth_count,
        "images": result.images,
        "seconds": round(result.seconds, 3),
        "means": _means(result),
        "coco": {name: _or(value) for name, value in result.coco().numbers().items()},
        "classes": _classes(result),
        "confusion_matrix": result.confusion_matrix().tolist(),
    }


def save_json(result: EvaluationResult, path: str | os.PathLike) -> None:
    """Write `as_data`. Raises DataError where the file cannot be written."""
    with atomic_write(path) as stream:
        stream.write(json.dumps(as_data(result), indent=1, ensure_ascii=False, allow_nan=False).encode())


def _classes(result: EvaluationResult) -> list[dict]:
    kinds = {name: result.at(points=points).classes for name, points in KINDS.items()}
    coco = result.coco().per_class
    return [
        row | {name: found[i].ap for name, found in kinds.items()} | {"AP50-95": _or(float(coco[i]))}
        for i, row in enumerate(result.rows())
    ]


def _means(result: EvaluationResult) -> dict:
    return {name: result.at(points=points).map for name, points in KINDS.items()} | {"AP50-95": _or(result.coco().ap)}


def _shares(row: dict) -> list:
    return [row[name] for name in (*KINDS, "AP50-95", "precision", "recall", "f1")]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _or(value: float, other: float | None = None) -> float | None:
    return other if math.isnan(value) else value
