"""Training: the recipe and its parts."""

from darknetpy.training.api import check_trainable, train
from darknetpy.training.learner import Learner
from darknetpy.training.trainer import Settings, Trainer, TrainResult

__all__ = ["Learner", "Settings", "TrainResult", "Trainer", "check_trainable", "train"]
