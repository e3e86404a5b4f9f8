"""Classes of pictures from their paths (Darknet: `fill_truth`, `fill_truth_smooth`, `fill_hierarchy`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from darknetpy.data.notes import say
from darknetpy.errors import ConfigError
from darknetpy.layers.tree import IGNORED, Tree


def class_of(path: str, labels: Sequence[str]) -> int | None:
    """The first class whose label occurs anywhere in a path, as `classifier valid` judges; None: no class does."""
    return next((i for i, label in enumerate(labels) if label in path), None)


class Truth:
    """Targets of training from the labels that occur in a path.

    Args:
        labels: text of each class; smoothing: share of a target that is spread over the other classes.
        tree: ancestors of a class are true with it, groups without a true class are left out of the loss.
        counted: pseudo-classes from the number of a picture instead of its path (`unsupervised=1`).

    Raises ConfigError for smoothing in a tree, where it would make every class true.
    """

    def __init__(self, labels: Sequence[str], smoothing: float = 0.0, tree: Tree | None = None, counted: bool = False):
        if tree is not None and smoothing:
            raise ConfigError("label_smooth_eps= and a class tree do not go together", remedy="remove one of them")
        self.labels, self.smoothing, self.tree, self.counted = list(labels), smoothing, tree, counted

    def of(self, path: str, index: int = 0) -> np.ndarray:
        """(classes,) float32 for a picture. Any number of labels may occur; what is not exactly one is said."""
        classes = len(self.labels)
        found = [index % classes] if self.counted else [i for i, label in enumerate(self.labels) if label in path]
        low = self.smoothing / max(1, classes - 1) if self.smoothing else 0.0
        truth = np.full(classes, low, np.float32)
        truth[found] = 1 - self.smoothing
        if len(found) != 1 and self.tree is None:
            say(f"Too many or too few labels: {len(found)}, {path}", once="labels")
        return truth if self.tree is None else in_tree(truth, self.tree)


def in_tree(truth: np.ndarray, tree: Tree) -> np.ndarray:
    """Targets with the ancestors of true classes true too, and groups without a true class `IGNORED`."""
    result = truth.copy()
    for i in np.flatnonzero(truth):
        parent = tree.parents[i]
        while parent >= 0:
            result[parent] = 1
            parent = tree.parents[parent]
    for offset, size in zip(tree.offsets, tree.sizes, strict=True):
        group = result[offset : offset + size]
        if not group.any():
            group[:] = IGNORED
    return result
