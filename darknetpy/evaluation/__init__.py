"""Measuring detectors: average precision, recall, result files, anchors."""

from darknetpy.evaluation.average_precision import ClassResult, Curve, EvaluationResult, score
from darknetpy.evaluation.coco import CocoResult
from darknetpy.evaluation.evaluator import evaluate, evaluation_images, run_evaluation
from darknetpy.evaluation.matches import Matches
from darknetpy.evaluation.report import HINTS, report
from darknetpy.evaluation.summary import as_data, coco_text, save_json, table

__all__ = [
    "HINTS", "ClassResult", "CocoResult", "Curve", "EvaluationResult", "Matches", "as_data", "coco_text", "evaluate",
    "evaluation_images", "report", "run_evaluation", "save_json", "score", "table",
]  # fmt: skip
