"""How often a classifier is right, with its first guess or one of its first k (Darknet: `validate_classifier_*`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from darknetpy.config.datafile import DataConfig, read_names
from darknetpy.data.classification import class_of
from darknetpy.data.evaluation import EvaluationImages, Sample
from darknetpy.data.notes import say
from darknetpy.data.pictures import require_one
from darknetpy.evaluation.evaluator import ALONE, for_batches, shared_out
from darknetpy.inference import Classifier
from darknetpy.inference.classifier import ranking
from darknetpy.parallel import Single

UNKNOWN = -1
"""Rank of a picture whose path names no class: never right."""
DEFAULTS = {"valid": "data/train.list", "test": "data/test.list"}
"""Darknet's, where a `.data` file does not name the list."""
VIEWS: dict[str, Callable[[Classifier], Callable[[np.ndarray], list[np.ndarray]]]] = {
    "valid": lambda classifier: lambda picture: [classifier.prepare(picture)],
    "valid10": lambda classifier: classifier.ten_views,
    "validfull": lambda classifier: classifier.whole_view,
    "validmulti": lambda classifier: classifier.scale_views,
    "validcrop": lambda classifier: classifier.stretched_view,
}
"""What of a picture the network is shown, by Darknet's command; probabilities of several views are added up."""


@dataclass
class TopKResult:
    """Ranks of the true classes among a classifier's guesses, from 0, in the order of the list."""

    k: int
    ranks: list[int] = field(default_factory=list)
    _hits: list[int] = field(default_factory=lambda: [0, 0], repr=False)

    def add(self, rank: int) -> None:
        self.ranks.append(rank)
        self._hits[0] += 0 <= rank < 1
        self._hits[1] += 0 <= rank < self.k

    @property
    def top1(self) -> float:
        """Share of pictures whose first guess is right."""
        return self._hits[0] / max(1, len(self.ranks))

    @property
    def topk(self) -> float:
        """Share of pictures with the true class among the first k guesses."""
        return self._hits[1] / max(1, len(self.ranks))

    @property
    def map(self) -> float:
        """What a training run is judged by: `topk`."""
        return self.topk

    def line(self) -> str:
        """Darknet's line after the last picture that was added."""
        return f"{len(self.ranks) - 1}: top 1: {self.top1:f}, top {self.k}: {self.topk:f}"

    @classmethod
    def of(cls, k: int, ranks: Sequence[int]) -> TopKResult:
        result = cls(k)
        for rank in ranks:
            result.add(rank)
        return result


def classes_in(config: DataConfig) -> list[str]:
    """Labels that paths are searched for: `labels=`, or `names=` where there is none."""
    key = "labels" if config.has("labels") or not config.has("names") else "names"
    return read_names(config.file(key, "data/labels.list") or "")


def topk_images(
    config: DataConfig, classifier: Classifier, views: str = "valid", key: str = "valid"
) -> EvaluationImages:
    """The pictures of the list `key=`; the input of each sample is a list of views of it."""
    listed = config.file(key, DEFAULTS[key])
    paths = config.listed(listed)
    require_one(paths, listed)
    prepare = VIEWS[views](classifier)
    return EvaluationImages(paths, prepare, classifier.network.net.channels, labels=False)


def run_topk(
    classifier: Classifier,
    images: EvaluationImages,
    labels: Sequence[str],
    k: int,
    each: Callable[[TopKResult], None] = lambda result: None,
    batch: int = 0,
    progress: bool = True,
    replicas: Single = ALONE,
) -> TopKResult:
    """Top-1 and top-k accuracy; `each` is called after every picture. Replicas share the pictures out.

    The true class of a picture is the first whose label occurs in its path; in a class tree inner classes are never
    guessed.
    """
    result = TopKResult(min(k, classifier.classes))
    alone = replicas.size == 1

    def count(rank: int) -> None:
        result.add(rank)
        each(result)

    parts = shared_out(
        replicas, lambda: collect_ranks(classifier, images, labels, count if alone else None, batch, progress, replicas)
    )
    for number in range(0 if alone or not replicas.main else len(images)):
        count(parts[number % replicas.size][number // replicas.size])
    return replicas.share(result)


def collect_ranks(
    classifier: Classifier,
    images: EvaluationImages,
    labels: Sequence[str],
    each: Callable[[int], None] | None = None,
    batch: int = 0,
    progress: bool = True,
    replicas: Single = ALONE,
) -> list[int]:
    """Ranks of the true classes of this replica's pictures."""
    ranks: list[int] = []

    def compute(samples: list[Sample]) -> np.ndarray:
        views = zip(*(sample.input for sample in samples), strict=True)
        return sum(_probabilities(classifier, view) for view in views).numpy()

    def judge(sample: Sample, probabilities: np.ndarray) -> None:
        true = class_of(sample.path, labels)
        if true is None:
            say(f"{sample.path}: no label occurs in the path, which counts as wrong", once="no label")
        known = true is not None and true < len(probabilities)
        ranks.append(int(np.flatnonzero(ranking(probabilities) == true)[0]) if known else UNKNOWN)
        if each is not None:
            each(ranks[-1])

    for_batches(classifier, images, compute, judge, batch, progress, replicas)
    return ranks


def _probabilities(classifier: Classifier, view: Sequence[np.ndarray]) -> torch.Tensor:
    """(pictures, classes), also of pictures that differ in size."""
    together = len({picture.shape for picture in view}) == 1
    batches = [np.stack(view)] if together else [picture[None] for picture in view]
    return torch.cat([classifier.probabilities(torch.from_numpy(batch), leaves=True) for batch in batches])


def evaluate_topk(
    config: DataConfig, classifier: Classifier, k: int = 0, views: str = "valid", batch: int = 0, progress: bool = True
) -> TopKResult:
    """Accuracy of a classifier on the `valid=` list of a `.data` file; k is its `top=` where 0 is given."""
    images = topk_images(config, classifier, views)
    return run_topk(
        classifier, images, classes_in(config), k or config.number("top", 1), batch=batch, progress=progress
    )
