"""Running a detector over a list of pictures with truths."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from darknetpy.config.datafile import DataConfig, read_list
from darknetpy.data.evaluation import EvaluationImages, Sample
from darknetpy.data.notes import collecting, say, tell
from darknetpy.data.pictures import require_one
from darknetpy.data.sets import open_data
from darknetpy.detections import Detections
from darknetpy.evaluation.average_precision import EvaluationResult, score
from darknetpy.evaluation.matches import Matches
from darknetpy.inference import Detector
from darknetpy.layers.recurrent import Recurrent
from darknetpy.parallel import Single

THRESH, NMS, HIER = 0.005, 0.45, 0.0
"""Detections enter the ranking above this confidence, after suppression at this overlap; a class tree is descended to
its leaves."""
IOU_THRESH, CONF_THRESH = 0.5, 0.25
ALONE = Single()
T = TypeVar("T")


class Predictor(Protocol):
    """What measuring needs of a detector. `Detector` is one; so is anything with these."""

    names: Sequence[str]

    @property
    def classes(self) -> int: ...

    def predict(
        self,
        batch: Tensor,
        sizes: Sequence[tuple[int, int]],
        thresh: float,
        nms: float,
        hier: float,
        relative: bool,
    ) -> list[Detections]:
        """Detections of (B, C, H, W) inputs whose pictures had `sizes` (width, height); nms 0 keeps all."""


def evaluate(
    data: str | os.PathLike | DataConfig,
    cfg: str | os.PathLike | Detector,
    weights: str | os.PathLike | None = None,
    *,
    iou_thresh: float = IOU_THRESH,
    thresh: float = CONF_THRESH,
    points: int = 0,
    batch: int = 0,
    device: str = "cpu",
    strict: bool = False,
    overrides: Sequence[str] = (),
    progress: bool = True,
) -> EvaluationResult:
    """Mean average precision of a network on the `valid=` list of a `.data` file (what `detector map` calls).

    Args:
        data: `.data` file, or what else `data.sets.open_data` reads.
        cfg: network file, or a Detector that exists already; weights: `.weights` or `.pt`.
        iou_thresh: overlap that counts as found; thresh: confidence for the TP/FP counts.
        points: recall points of AP: 0 (area under the curve), 11 or 101.
        batch: pictures at once (0: chosen); the result does not depend on it.
        progress: show a bar.

    Raises DataError where names and classes differ, MissingFileError for a missing list.
    """
    config = data if isinstance(data, DataConfig) else open_data(data, strict)
    if isinstance(cfg, Detector):
        detector = cfg
    else:
        detector = Detector(cfg, weights, config.class_names(), device=device, strict=strict, overrides=overrides)
    config.check_classes(config.class_names(), detector.classes, detector.network.structure.cfg.path)
    images = evaluation_images(config, detector)
    return run_evaluation(detector, images, iou_thresh, thresh, points, batch, progress)


def evaluation_images(
    config: DataConfig, detector: Detector, labels: bool = True, default: str = "data/train.txt"
) -> EvaluationImages:
    """The pictures of `valid=`, with their truths and those of `difficult=`."""
    valid = config.valid(config.file("train", default) if config.has("train") else default)
    paths = config.listed(valid)
    if not detector.network.strict:
        require_one(paths, valid)
    difficult = config.file("difficult")
    return EvaluationImages(
        paths,
        detector.prepare,
        detector.network.net.channels,
        read_list(difficult, config.folder) if difficult else None,
        labels,
        detector.network.strict,
        annotations=config.annotations,
    )


def run_evaluation(
    detector: Predictor,
    images: EvaluationImages,
    iou_thresh: float = IOU_THRESH,
    thresh: float = CONF_THRESH,
    points: int = 0,
    batch: int = 0,
    progress: bool = True,
    replicas: Single = ALONE,
) -> EvaluationResult:
    """mAP of a detector on pictures with truths; replicas share them out, and all get the same result."""
    began = time.perf_counter()
    parts = shared_out(replicas, lambda: collect(detector, images, batch, progress, replicas))
    result = None
    if replicas.main:
        result = score(parts[0].merge(parts[1:]), list(detector.names), iou_thresh, thresh, points)
        result.seconds = time.perf_counter() - began
    return replicas.share(result)


def shared_out(replicas: Single, work: Callable[[], T]) -> list[T]:
    """What `work` gives on each replica, in the order of ranks, at the main one; [] at the others.

    What there is to tell of pictures and labels, the main one tells.
    """
    with nullcontext([]) if replicas.main else collecting() as told:
        done = work()
    parts = replicas.gather((done, told))
    for _, notes in parts:
        tell(notes)
    return [part for part, _ in parts]


def collect(
    detector: Predictor, images: EvaluationImages, batch: int = 0, progress: bool = True, replicas: Single = ALONE
) -> Matches:
    """Detections of this replica's pictures beside their truths, ready for `score`: `Matches.merge` makes one of what
    the replicas collected, in the order of the list.
    """
    matches = Matches(detector.classes)

    def match(sample: Sample, found: Detections) -> None:
        truth, hard = sample.labels, sample.difficult
        wrong = matches.add(
            found.boxes.float().numpy(),
            found.probs[:, : matches.classes].float().numpy(),
            truth.boxes,
            truth.classes,
            hard.boxes if hard else None,
            hard.classes if hard else None,
            index=sample.index,
        )
        if wrong:
            where = truth.path or sample.path
            say(f"{where}: {wrong} labels have a class outside 0..{matches.classes - 1} and are left out")

    for_each(detector, images, match, THRESH, NMS, HIER, batch, progress, replicas=replicas)
    return matches


def for_each(
    detector: Predictor,
    images: EvaluationImages,
    act: Callable[[Sample, Detections], None],
    thresh: float,
    nms: float,
    hier: float = 0.5,
    batch: int = 0,
    progress: bool = True,
    relative: bool = True,
    replicas: Single = ALONE,
) -> None:
    """Call `act(sample, detections)` for every picture in order, with detections on the CPU; see `for_batches`."""

    def detect(samples: list[Sample]) -> list[Detections]:
        inputs = torch.from_numpy(np.stack([sample.input for sample in samples]))
        sizes = [sample.size for sample in samples]
        return [found.cpu() for found in detector.predict(inputs, sizes, thresh, nms, hier, relative)]

    for_batches(detector, images, detect, act, batch, progress, replicas)


def for_batches(
    network: object,
    images: EvaluationImages,
    compute: Callable[[list[Sample]], Sequence[T]],
    act: Callable[[Sample, T], None],
    batch: int = 0,
    progress: bool = True,
    replicas: Single = ALONE,
) -> None:
    """Compute something for several pictures at once and `act` on one by one, in order; a replica takes every G-th
    picture.

    Every pass has the same number of pictures, the last one filled up with repetitions: libraries round differently for
    batches of different sizes, and so a picture gets the same numbers whoever looks at it. What does not fit the
    device's memory is tried again in halves.
    """
    size = max(1, min(_batch_size(network, batch), len(images)))
    images = images.picked(range(replicas.rank, len(images), replicas.size)) if replicas.size > 1 else images
    shown = progress and replicas.main and sys.stderr.isatty()
    with tqdm(total=len(images), unit="img", disable=not shown, leave=False) as bar:
        for samples in images.batches(size):
            while samples:
                now = samples[:size]
                try:
                    found = compute([*now, *now[-1:] * (size - len(now))])
                except torch.cuda.OutOfMemoryError:
                    if size == 1:
                        raise
                    size //= 2
                    torch.cuda.empty_cache()
                    continue
                for sample, result in zip(now, found[: len(now)], strict=True):
                    act(sample, result)
                bar.update(len(now))
                samples = samples[len(now) :]


def _batch_size(detector: object, wanted: int) -> int:
    """Pictures at once: about 64 of 416 x 416 on a GPU, a megapixel or so on a CPU.

    One by one where layers remember the picture before: there a batch would change the result.
    """
    network = getattr(detector, "network", None)
    if network is None:
        return max(1, wanted)
    if any(isinstance(layer, Recurrent) or layer.type == "history" for layer in network.layers):
        return 1
    pixels = network.net.width * network.net.height
    budget = 64 * 416 * 416 if network.device.type == "cuda" else 4 * 416 * 416
    return wanted if wanted > 0 else max(1, min(64, budget // max(1, pixels)))
