"""Measuring detectors."""

from darknetpy.evaluation.average_precision import ClassResult, EvaluationResult, Matches, score
from darknetpy.evaluation.evaluator import evaluate, evaluation_images, run_evaluation
from darknetpy.evaluation.report import HINTS, report

__all__ = [
    "HINTS", "ClassResult", "EvaluationResult", "Matches", "evaluate", "evaluation_images", "report", "run_evaluation",
    "score",
]  # fmt: skip
