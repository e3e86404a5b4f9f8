"""Pictures of an evaluation: precision over recall, F1 over confidence, and who is taken for whom."""

from __future__ import annotations

import os

import numpy as np

from darknetpy.evaluation import EvaluationResult
from darknetpy.files import writable_folder
from darknetpy.reporting.figures import Panel, Series, save_matrix, save_panels

LEVELS = np.linspace(0, 1, 201)


def save_plots(result: EvaluationResult, folder: str | os.PathLike) -> list[str]:
    """Write `curves.png` and `confusion.png` to a folder, which is created; returns their paths."""
    folder = writable_folder(folder, "name another one after -plots")
    paths = [os.path.join(folder, name) for name in ("curves.png", "confusion.png")]
    save_panels(paths[0], curves(result))
    title = f"detections above {result.conf_thresh:g} at IoU {result.iou_thresh:g}"
    save_matrix(paths[1], result.confusion_matrix(), [*result.names, "background"], title)
    return paths


def curves(result: EvaluationResult) -> list[Panel]:
    """Precision over recall and F1 over confidence of each class that has truths."""
    precision, f1 = [], []
    for c, curve in zip(result.classes, result.curves, strict=True):
        if not c.truths:
            continue
        name = f"{c.name} {100 * c.ap:.1f}%"
        precision.append(
            Series(name, np.r_[0, curve.recall], np.r_[curve.precision[:1].max(initial=0), curve.precision])
        )
        total = curve.precision + curve.recall
        value = np.divide(2 * curve.precision * curve.recall, total, out=np.zeros_like(total), where=total > 0)
        last = np.searchsorted(-curve.confidence, -LEVELS, side="right")  # detections at least as sure as each level
        f1.append(Series(c.name, LEVELS, np.r_[0, value][last]))
    unit = (0.0, 1.0)
    return [
        Panel(f"precision over recall, IoU {result.iou_thresh:g}", "recall", precision, (0, 1.02), unit),
        Panel("F1 over confidence", "confidence", f1, (0, 1.02), unit),
    ]
