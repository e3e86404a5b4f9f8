"""Measuring detectors: average precision, recall, result files, anchors."""

from darknetpy.evaluation.average_precision import ClassResult, Curve, EvaluationResult, score
from darknetpy.evaluation.coco import CocoResult
from darknetpy.evaluation.evaluator import evaluate, evaluation_images, run_evaluation
from darknetpy.evaluation.matches import Matches
from darknetpy.evaluation.report import HINTS, report

__all__ = [
    "HINTS", "ClassResult", "CocoResult", "Curve", "EvaluationResult", "Matches", "evaluate", "evaluation_images",
    "report", "run_evaluation", "score",
]  # fmt: skip
