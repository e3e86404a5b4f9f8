"""Detecting: pictures in, `Detections` out, and the writers of results."""

from darknetpy.inference.detector import Detector

__all__ = ["Detector"]
