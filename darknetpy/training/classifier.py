"""`train_classifier(...)`: from pictures whose paths name their classes to a finished run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from darknetpy.config.datafile import DataConfig, read_names
from darknetpy.data.cache import make_cache
from darknetpy.data.classification import Truth
from darknetpy.data.classified import ClassificationData, Views
from darknetpy.data.evaluation import EvaluationImages
from darknetpy.data.loader import AHEAD
from darknetpy.data.pictures import require_one
from darknetpy.data.preview import ClassPreview
from darknetpy.data.sets import open_data
from darknetpy.errors import DataError, MissingFileError
from darknetpy.evaluation.topk import TopKResult, classes_in, collect_ranks, topk_images
from darknetpy.inference import Classifier
from darknetpy.layers import Structure, read_structure
from darknetpy.layers.trainable import TARGET_HEADS, check_classes, check_trainable
from darknetpy.network import Network
from darknetpy.parallel import Single
from darknetpy.runtime import Policy
from darknetpy.training.checkpoint import Checkpoints
from darknetpy.training.events import Sink
from darknetpy.training.measure import Measurement
from darknetpy.training.plan import Stops
from darknetpy.training.run import Recipe, run
from darknetpy.training.trainer import Settings, TrainResult

EPOCHS, FIRST = 2, 100
"""Darknet evaluates every two epochs, and not before iteration 100."""
TOP = 5


def train_classifier(
    data: str | os.PathLike | DataConfig,
    cfg: str | os.PathLike | Structure,
    weights: str | os.PathLike | None = None,
    *,
    evaluate: bool = False,
    map_every: int | None = None,
    clear: bool = False,
    device: str = "cpu",
    replicas: Single | None = None,
    until: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    cache: str | bool | None = None,
    cache_dir: str | None = None,
    prefetch: int = AHEAD,
    close_mosaic: int = 0,
    show_imgs: bool = False,
    batch: int = 0,
    save_every: int = 1000,
    patience: int | None = None,
    hours: float | None = None,
    stop_accuracy: float | None = None,
    rehearse: bool = True,
    profile: int = 0,
    check_replicas: bool = False,
    strict: bool = False,
    overrides: Sequence[str] = (),
    policy: Policy | None = None,
    sinks: Sequence[Sink] | None = None,
) -> TrainResult:
    """Train a classifier (what `classifier train` calls).

    Args:
        data: `.data` file; a picture has the classes whose `labels=` occur in its path.
        evaluate: measure top-k accuracy on `valid=` during the run (`top=` of the `.data` file, 5); map_every:
            iterations between evaluations. stop_accuracy: top-k at which to stop. What the result calls `map` is top-k.
        save_every: iterations between numbered checkpoints. The others are those of `training.train`.

    Raises DarknetpyError kinds for input that cannot be trained on, before anything is trained or written.
    """
    config = data if isinstance(data, DataConfig) else open_data(data, strict)
    structure = cfg if isinstance(cfg, Structure) else read_structure(cfg, strict, overrides)
    labels = check_labels(config, structure)
    paths = config.listed(config.file("train", "data/train.list"))
    require_one(paths, config.file("train", "data/train.list"))
    if evaluate:
        _check_evaluation(config)
    net, top = structure.net, min(config.number("top", TOP), len(labels))
    tree = next((h.tree for h in reversed(structure.heads) if getattr(h, "tree", None) is not None), None)
    truth = Truth(labels, net.label_smooth_eps, tree, counted=bool(net.unsupervised))
    closes = net.max_batches - close_mosaic if close_mosaic > 0 else None
    settings = Settings(
        map_every, EPOCHS, seed=seed, save_every=save_every, rehearse=rehearse,
        stops=Stops(hours, stop_accuracy, patience, until), task="classifier", metric=f"top{top}",
        least_between=1, first_evaluation=FIRST, keep_best=not strict, profile=profile, check_replicas=check_replicas,
    )  # fmt: skip

    def source(seed: int, _: int) -> ClassificationData:
        kept = make_cache(cache, paths, net.channels, cache_dir)
        return ClassificationData(paths, truth, Views.of(net), net.channels, seed, kept, closes)

    def measurement(network: Network, replicas: Single) -> TopKMeasurement:
        return TopKMeasurement(network, config, labels, top, batch, replicas)

    recipe = Recipe(
        structure, Checkpoints(config.backup, structure.cfg.path), settings, source,
        measurement if evaluate else None, (lambda: ClassPreview(labels)) if show_imgs else None,
    )  # fmt: skip
    return run(
        recipe, weights, clear=clear, device=device, replicas=replicas, workers=workers, prefetch=prefetch,
        strict=strict, sinks=sinks, policy=policy,
    )  # fmt: skip


def check_labels(config: DataConfig, structure: Structure) -> list[str]:
    """The labels of the classes. Raises ConfigError or DataError where network, `classes=` and labels do not fit."""
    check_trainable(structure, TARGET_HEADS)
    labels = classes_in(config)
    classes = config.number("classes", len(labels))
    check_classes(structure, classes)
    if len(labels) < classes:
        raise DataError(
            f"there are {len(labels)} labels for classes={classes}", file=config.path, remedy="list a label a line"
        )
    return labels[:classes]


def _check_evaluation(config: DataConfig) -> None:
    valid = config.valid(None)
    if valid is None:
        raise DataError("has no valid= list for -topk", file=config.path, remedy="add valid=, or leave -topk out")
    try:
        require_one(config.listed(valid), valid)
    except MissingFileError:
        raise DataError(
            f"There is no {valid} file for the accuracy", file=config.path, remedy="set valid=, or leave -topk out"
        ) from None


class TopKMeasurement(Measurement):
    """Top-k accuracy of a snapshot of the weights.

    Args:
        network: in training; only its layout and place are read.
        data: `.data` file with the pictures; labels: of the classes; top: classes that count as an answer.
    """

    def __init__(
        self, network: Network, data: DataConfig, labels: Sequence[str], top: int, batch: int = 0,
        replicas: Single | None = None,
    ):  # fmt: skip
        super().__init__(network, data, labels, 0.0, 0.0, batch, replicas)
        self.labels, self.top = list(labels), top

    def _predictor(self, names: Sequence[str]) -> Classifier:
        leaves = self.data.file("leaves")
        leaves = read_names(leaves) if leaves else None
        return Classifier(self.network, names=names, leaves=leaves, strict=self.network.strict)

    def _run(self, images: EvaluationImages, batch: int) -> list[int]:
        return collect_ranks(
            self.detector, images, self.labels, batch=batch, progress=self.replicas.main, replicas=self.replicas
        )

    def _score(self, found: list[list[int]]) -> TopKResult:
        count, size = sum(map(len, found)), len(found)
        return TopKResult.of(self.top, [found[i % size][i // size] for i in range(count)])

    def _listed(self) -> EvaluationImages:
        return topk_images(self.data, self.detector)
