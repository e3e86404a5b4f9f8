"""Detecting and classifying: pictures in, `Detections` or classes out, and the writers of results."""

from darknetpy.inference.classifier import Classification, Classifier
from darknetpy.inference.detector import Detector

__all__ = ["Classification", "Classifier", "Detector"]
