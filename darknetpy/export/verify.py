"""Whether two files hold the same network: the largest difference of what they compute, or that of their tensors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from darknetpy.config import parse_cfg
from darknetpy.detections import Detections
from darknetpy.errors import MissingFileError, UsageError, WeightsError, silenced
from darknetpy.export.module import BOXES, NMS, RAW, Exported, Facts, boxes_and_scores, facts_of
from darknetpy.export.onnx import MISSING, MOST_PER_CLASS
from darknetpy.export.torchscript import FACTS
from darknetpy.images import letterbox_image, load_image, resize_image
from darknetpy.network import Network
from darknetpy.ptfile import is_pt, load_pt
from darknetpy.weights import Block, read_weights

TOLERANCE = 1e-4
"""Of |a-b| / (1 + |b|)."""
RANDOM_PICTURES = 2
CONFIDENCE = 0.25
"""Scores above it count as detections in the table."""
Pairs = Iterator[tuple[str, torch.Tensor, torch.Tensor | None]]
"""Of each stored tensor its name, the network's, and the file's, None where it has none."""


@dataclass(frozen=True)
class Row:
    """One output: its name, its shape, the largest absolute and relative difference."""

    name: str
    shape: tuple[int, ...]
    absolute: float
    relative: float


@dataclass(frozen=True)
class Comparison:
    """What two files have in common.

    Attributes:
        rows: of each output; detections: scores above 0.25 in each of the two; pictures: how many were compared.
    """

    rows: tuple[Row, ...]
    detections: tuple[int, int]
    pictures: int

    @property
    def worst(self) -> float:
        return max((row.relative for row in self.rows), default=0.0)

    @property
    def same(self) -> bool:
        """Whether all outputs agree to 1e-4 of |a-b| / (1 + |b|)."""
        return self.worst <= TOLERANCE and self.detections[0] == self.detections[1]

    def sentence(self) -> str:
        row = max(self.rows, key=lambda row: row.relative)
        return f"output {row.name} differs by {row.absolute:.2g} ({row.relative:.2g} of 1 + its size)"


class Runner:
    """Something that computes outputs by name from pictures (B, C, H, W), 0..1.

    Attributes:
        facts: what is known of the network.
    """

    facts: Facts

    def __call__(self, images: np.ndarray) -> dict[str, np.ndarray]:
        raise NotImplementedError


class OfNetwork(Runner):
    """A network of this program."""

    def __init__(self, network: Network):
        self.module = Exported(network)
        self.facts = facts_of(network)

    @torch.inference_mode()
    def __call__(self, images: np.ndarray) -> dict[str, np.ndarray]:
        found = self.module(torch.from_numpy(images).to(self.module.network.device))
        return dict(zip(self.module.output_names, (tensor.cpu().numpy() for tensor in found), strict=True))


class OfOnnx(Runner):
    """An ONNX file, by ONNX Runtime on the CPU."""

    def __init__(self, path: str):
        try:
            import onnxruntime
        except ImportError as error:
            raise UsageError("running ONNX files needs the package onnxruntime", remedy=MISSING) from error
        try:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises many kinds
            raise WeightsError(f"is no ONNX file that can be run: {str(error)[:160]}", file=path) from error
        self.facts = Facts.read(self.session.get_modelmeta().custom_metadata_map, path)
        self.input = self.session.get_inputs()[0].name

    def __call__(self, images: np.ndarray) -> dict[str, np.ndarray]:
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, {self.input: images}), strict=True))


class OfTorchScript(Runner):
    """A TorchScript file."""

    def __init__(self, path: str):
        extra = {FACTS: ""}
        try:
            self.module = torch.jit.load(path, "cpu", extra)
        except RuntimeError as error:
            raise WeightsError(f"is no TorchScript file: {str(error).splitlines()[0][:160]}", file=path) from error
        text = extra[FACTS]
        self.facts = Facts.read(json.loads(text) if text else {}, path)
        heads = [f"head_{head['layer']}" for head in self.facts.heads]
        self.names = ["boxes", "scores"] if self.facts.contents == BOXES else heads or ["output"]

    @torch.inference_mode()
    def __call__(self, images: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(self.names, (t.numpy() for t in self.module(torch.from_numpy(images))), strict=True))


def runner_of(source: Network | str | os.PathLike) -> Runner:
    """A runner for a network or a file: `A.cfg,A.weights`, `.pt`, `.onnx`, `.torchscript`.

    Raises UsageError, MissingFileError, ConfigError or WeightsError.
    """
    if isinstance(source, Network):
        return OfNetwork(source)
    name = os.fspath(source)
    cfg, comma, weights = name.partition(",")
    if comma:
        return OfNetwork(Network(cfg, weights))
    if not os.path.isfile(name):
        raise MissingFileError(name)
    suffix = os.path.splitext(name)[1].lower()
    if suffix == ".onnx":
        return OfOnnx(name)
    if suffix == ".torchscript":
        return OfTorchScript(name)
    if is_pt(name):
        return OfNetwork(network_of_pt(name))
    if suffix == ".cfg":
        return OfNetwork(Network(name))
    raise UsageError("cannot be run by itself", value=name, remedy="give A.cfg,A.weights, .pt, .onnx or .torchscript")


def network_of_pt(path: str) -> Network:
    """The network of a `.pt` file, laid out by the cfg inside."""
    return Network(parse_cfg(load_pt(path)["cfg"]), path)


def verify(
    a: Network | str | os.PathLike, b: Network | str | os.PathLike, images: Sequence[str] = (), seed: int = 0
) -> Comparison:
    """Run two networks on the same pictures and compare what they compute.

    Args:
        a, b: networks or files, as `runner_of` takes them; images: paths; without any, random numbers from `seed`.
    """
    first, second = runner_of(a), runner_of(b)
    wanted, other = first.facts, second.facts
    if (wanted.channels, len(wanted.heads)) != (other.channels, len(other.heads)):
        raise UsageError(
            f"{len(wanted.heads)} heads and {wanted.channels} channels cannot be compared with {len(other.heads)} and "
            f"{other.channels}"
        )
    batch = _pictures(wanted, images, seed)
    x, y = _comparable(first, batch, other.contents), _comparable(second, batch, wanted.contents)
    detections = _count(first, x), _count(second, y)
    return Comparison(tuple(_row(name, x[name], y[name]) for name in x if name in y), detections, len(batch))


def _pictures(facts: Facts, paths: Sequence[str], seed: int) -> np.ndarray:
    """(B, C, H, W), 0..1."""
    if not paths:
        shape = (RANDOM_PICTURES, facts.channels, facts.height, facts.width)
        return np.random.default_rng(seed).random(shape, np.float32)
    fit = letterbox_image if facts.letter_box else resize_image
    return np.stack([fit(load_image(path, facts.channels), facts.width, facts.height) for path in paths])


def _comparable(runner: Runner, batch: np.ndarray, other: str) -> dict[str, np.ndarray]:
    """Outputs in the form that both sides can have: raw where both are, else boxes and scores."""
    found = runner(batch)
    contents = runner.facts.contents
    if contents == NMS:
        raise UsageError(
            "a file with suppression inside has no outputs to compare", remedy="compare its -outputs boxes"
        )
    if contents == RAW and other == BOXES:
        heads = _network_of(runner).structure.detectors
        raw = [torch.from_numpy(found[f"head_{head.index}"]) for head in heads]
        boxes, scores = boxes_and_scores(heads, raw, batch.shape[3], batch.shape[2])
        return {"boxes": boxes.numpy(), "scores": scores.numpy()}
    return found


def _network_of(runner: Runner) -> Network:
    if isinstance(runner, OfNetwork):
        return runner.module.network
    return Network(parse_cfg(runner.facts.cfg))


def _count(runner: Runner, outputs: dict[str, np.ndarray]) -> int:
    """Scores, or objectness in raw outputs, above the usual confidence."""
    if "scores" in outputs:
        return int((outputs["scores"] > CONFIDENCE).sum())
    return 0


def _row(name: str, a: np.ndarray, b: np.ndarray) -> Row:
    if a.shape != b.shape:
        raise UsageError(f"output {name} has shape {a.shape} in one and {b.shape} in the other")
    finite = np.isfinite(a) & np.isfinite(b)
    if not (finite | (a == b) | (np.isnan(a) & np.isnan(b))).all():
        return Row(name, a.shape, float("inf"), float("inf"))
    x, y = np.where(finite, a, 0).astype(np.float64), np.where(finite, b, 0).astype(np.float64)
    apart = np.abs(x - y)
    return Row(name, a.shape, float(apart.max(initial=0.0)), float((apart / (1 + np.abs(x))).max(initial=0.0)))


# --- what is not run, and what is appended ---------------------------------------------------------------------------


def pairs_of_weights(network: Network, path: str) -> Pairs:
    """The tensors of a `.weights` file beside the network's."""
    stored = list(network.file_order(network.header))
    layout = [Block(layer.index, layer.type, [(spec.name, tuple(tensor.shape))]) for layer, spec, tensor in stored]
    arrays = read_weights(path, layout).arrays
    for layer, spec, tensor in stored:
        found = arrays.get((layer.index, spec.name))
        yield f"{layer.index}.{spec.name}", tensor, None if found is None else torch.from_numpy(found.copy())


def check_tensors(pairs: Callable[[Network, str], Pairs], network: Network, path: str) -> str | None:
    """What to say of a file whose tensors are not, bit by bit, the network's; else None."""
    try:
        with silenced():
            for name, ours, found in pairs(network, path):
                if found is None or not np.array_equal(ours.numpy(), found.numpy(), equal_nan=True):
                    return f"tensor {name} was not read back as it is"
    except WeightsError:
        return "it was not read back whole"
    return None


def check_suppression(decoded: str, path: str, thresh: float, overlap: float) -> str | None:
    """What to say of an ONNX file whose suppression keeps other boxes than ours does, of random pictures; else None.

    Args:
        decoded: the file with the boxes and scores that the suppression was appended to.
    """
    first = OfOnnx(decoded)
    pictures = _pictures(first.facts, (), 0)
    found = first(pictures)
    ours = np.concatenate(
        [
            _suppressed(i, *map(torch.from_numpy, pair), thresh, overlap)
            for i, pair in enumerate(zip(found["boxes"], found["scores"], strict=True))
        ]
    )
    theirs = OfOnnx(path)(pictures)["detections"]
    if len(ours) != len(theirs):
        return f"its suppression keeps {len(theirs)} boxes, not {len(ours)}"
    rows = [array[np.lexsort(array.T[::-1])] for array in (theirs, ours)]
    return None if np.allclose(*rows, TOLERANCE, TOLERANCE) else "its suppression keeps other boxes"


def _suppressed(picture: int, boxes: torch.Tensor, scores: torch.Tensor, thresh: float, overlap: float) -> np.ndarray:
    """Rows (M, 7) of a picture, as `append_suppression` gives them, from boxes (N, 4) and scores (N, classes)."""
    found = Detections(boxes, torch.ones(len(boxes)), torch.where(scores > thresh, scores, 0.0)).above(thresh)
    kept, rows = found.nms("default", overlap), []
    for class_id in range(scores.shape[1]):
        strongest = torch.argsort(kept.probs[:, class_id], descending=True, stable=True)[:MOST_PER_CLASS]
        for i in strongest[kept.probs[strongest, class_id] > 0].tolist():
            rows.append([picture, class_id, float(kept.probs[i, class_id]), *kept.boxes[i].tolist()])
    return np.array(rows, np.float32).reshape(-1, 7)
