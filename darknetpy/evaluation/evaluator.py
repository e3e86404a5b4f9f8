"""Running a detector over a list of pictures with truths."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from tqdm import tqdm

from darknetpy.config.datafile import DataConfig, read_data, read_list, read_names
from darknetpy.data.evaluation import EvaluationImages, Sample
from darknetpy.errors import DataError, warn
from darknetpy.evaluation.average_precision import EvaluationResult, score
from darknetpy.evaluation.matches import Matches
from darknetpy.inference import Detector

THRESH, NMS = 0.005, 0.45
"""Detections enter the ranking above this confidence, after suppression at this overlap."""
IOU_THRESH, CONF_THRESH = 0.5, 0.25


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
        data: `.data` file; cfg: network file, or a Detector that exists already; weights: `.weights` or `.pt`.
        iou_thresh: overlap that counts as found; thresh: confidence for the TP/FP counts.
        points: recall points of AP: 0 (area under the curve), 11 or 101.
        batch: pictures at once (0: chosen); the result does not depend on it.
        progress: show a bar.

    Raises DataError where names and classes differ, MissingFileError for a missing list.
    """
    config = data if isinstance(data, DataConfig) else read_data(data, strict)
    if isinstance(cfg, Detector):
        detector = cfg
    else:
        detector = Detector(cfg, weights, read_names(config.names), device=device, strict=strict, overrides=overrides)
    check_names(config, detector)
    images = evaluation_images(config, detector)
    return run_evaluation(detector, images, iou_thresh, thresh, points, batch, progress)


def check_names(config: DataConfig, detector: Detector) -> None:
    """Raise DataError unless there is one name for each class."""
    names = read_names(config.names)
    if len(names) != detector.classes:
        raise DataError(
            f"{len(names)} names, but classes={detector.classes} in {detector.network.structure.cfg.path}",
            file=config.names,
            remedy="make them equal",
        )


def evaluation_images(
    config: DataConfig, detector: Detector, labels: bool = True, default: str = "data/train.txt"
) -> EvaluationImages:
    """The pictures of `valid=`, with their truths and those of `difficult=`."""
    valid = config.valid(config.file("train", default) if config.has("train") else default)
    paths = read_list(valid, config.folder)
    difficult = config.file("difficult")
    return EvaluationImages(
        paths,
        detector.prepare,
        detector.network.net.channels,
        read_list(difficult, config.folder) if difficult else None,
        labels,
        detector.network.strict,
    )


def run_evaluation(
    detector: Detector,
    images: EvaluationImages,
    iou_thresh: float = IOU_THRESH,
    thresh: float = CONF_THRESH,
    points: int = 0,
    batch: int = 0,
    progress: bool = True,
) -> EvaluationResult:
    """mAP of a detector on pictures with truths."""
    began = time.perf_counter()
    matches = Matches(detector.classes)

    def match(sample: Sample, found) -> None:
        hard = sample.difficult
        wrong = matches.add(
            found.boxes.numpy(), found.probs.numpy(), sample.labels.boxes, sample.labels.classes,
            hard.boxes if hard else None, hard.classes if hard else None,
        )  # fmt: skip
        if wrong:
            warn(f"{sample.path}: {wrong} labels have a class outside 0..{detector.classes - 1} and are left out")

    for_each(detector, images, match, THRESH, NMS, batch, progress)
    result = score(matches, list(detector.names), iou_thresh, thresh, points)
    result.seconds = time.perf_counter() - began
    return result


def for_each(
    detector: Detector,
    images: EvaluationImages,
    act: Callable,
    thresh: float,
    nms: float,
    batch: int = 0,
    progress: bool = True,
    relative: bool = True,
) -> None:
    """Call `act(sample, detections)` for every picture in order, with detections on the CPU."""
    size = batch or _batch_size(detector)
    shown = progress and sys.stderr.isatty()
    with tqdm(total=len(images), unit="img", disable=not shown, leave=False) as bar:
        for samples in images.batches(size):
            inputs = torch.from_numpy(np.stack([sample.input for sample in samples]))
            found = detector.predict(inputs, [s.size for s in samples], thresh, nms, relative=relative)
            for sample, detections in zip(samples, found, strict=True):
                act(sample, detections.cpu())
            bar.update(len(samples))


def _batch_size(detector: Detector) -> int:
    """Pictures at once: about 64 of 416 x 416 on a GPU, a megapixel or so on a CPU."""
    pixels = detector.network.net.width * detector.network.net.height
    budget = 64 * 416 * 416 if detector.network.device.type == "cuda" else 4 * 416 * 416
    return max(1, min(64, budget // max(1, pixels)))
