"""`detector valid`: result files for a benchmark's own tools (Darknet: `validate_detector`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from darknetpy.config.datafile import DataConfig
from darknetpy.data.evaluation import EvaluationImages, Sample
from darknetpy.detections import Detections
from darknetpy.errors import DataError, MissingFileError
from darknetpy.evaluation.evaluator import ALONE, evaluation_images, for_each, shared_out
from darknetpy.evaluation.result_files import FORMATS, Found
from darknetpy.inference import Detector
from darknetpy.parallel import Single

THRESH, NMS = 0.001, 0.6


def run_valid(
    data: DataConfig, detector: Detector, out: str | None = None, batch: int = 0, replicas: Single = ALONE
) -> list[str]:
    """Write what a detector finds in the `valid=` list, in the format of `eval=`.

    Args:
        data: its `results=` folder is made if need be; `map=` names a file that says, for each class of the result,
            which class of the network it is.
        out: replaces the format's own file name, or its prefix, or its folder.
        replicas: those that share the pictures out; the main one writes.

    Returns the files, [] at other replicas. Raises DataError where a file cannot be written or `map=` does not fit.
    """
    images = evaluation_images(data, detector, labels=False, default="data/train.list")
    mapping = read_map(data.file("map") or "", detector.classes) if data.has("map") else None
    form = FORMATS.get(data.get("eval", "voc") or "", FORMATS["voc"])
    folder = data.results
    try:
        os.makedirs(folder or ".", exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot be made a folder: {error.strerror}", file=folder, remedy="change results=") from error
    found = collect(detector, images, mapping, batch, replicas)
    return form.write(found, folder, form.default if out is None else out) if replicas.main else []


def collect(
    detector: Detector, images: EvaluationImages, mapping: Sequence[int] | None = None, batch: int = 0,
    replicas: Single = ALONE,
) -> Found:  # fmt: skip
    """Everything above confidence .001 in a list of pictures; at the main replica what all have found."""
    parts = []

    def act(sample: Sample, found: Detections) -> None:
        parts.append((sample.index, sample.path, sample.size, *pairs(found, mapping)))

    def work() -> list[tuple]:
        for_each(detector, images, act, THRESH, NMS, batch=batch, relative=False, replicas=replicas)
        return parts

    parts = sorted((one for part in shared_out(replicas, work) for one in part), key=lambda one: one[0])
    names = detector.names if mapping is None else [detector.names[i] for i in mapping]
    return join(parts, names)


def pairs(found: Detections, mapping: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Class, probability and pixel corners of every (box, class), box by box. `found` is in pixels."""
    probs, boxes = found.probs.numpy(), found.boxes.numpy().astype(np.float64)
    if mapping is not None:
        probs = probs[:, list(mapping)]
    row, class_id = np.nonzero(probs > 0)
    half = boxes[:, 2:] / 2
    corners = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1).astype(np.float32)
    return class_id, probs[row, class_id], corners[row]


def join(parts: Sequence[tuple], names: Sequence[str]) -> Found:
    """Single pictures (index, path, size, class, prob, corners) as one table."""
    if not parts:
        return Found(
            [], np.zeros((0, 2)), *(np.zeros(0, np.int64) for _ in range(2)), np.zeros(0), np.zeros((0, 4)), names
        )
    _, paths, sizes, class_id, prob, corners = zip(*parts, strict=True)
    image = np.repeat(np.arange(len(parts)), [len(part) for part in class_id])
    return Found(
        paths, np.array(sizes), image, np.concatenate(class_id), np.concatenate(prob), np.concatenate(corners), names
    )


def read_map(path: str, classes: int) -> list[int]:
    """The whole numbers of a `map=` file, one a line (Darknet: `read_map`).

    Raises MissingFileError, or DataError for what is no class of the network.
    """
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as stream:
            lines = [(number, line.strip()) for number, line in enumerate(stream, 1)]
    except OSError as error:
        raise MissingFileError(path) from error
    mapping = []
    for number, line in lines:
        if not line:
            continue
        if not line.isdecimal() or int(line) >= classes:
            raise DataError(f"is no class from 0 to {classes - 1}", file=path, line=number, value=line)
        mapping.append(int(line))
    return mapping
