"""Layer outputs and boxes of small networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from darknetpy import Network
from darknetpy.inference.postprocess import detections_of
from darknetpy.layers import ForwardContext
from tools.golden.common import Outcome, Places, Worst, inside, load_json, relative

LAYER, END_TO_END, BOX, PROBABILITY = 1e-5, 1e-4, 1e-5, 1e-5
NMS_BETA = 0.6


def is_case(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("net.cfg", "net.weights", "golden.npz", "meta.json"))


def check(folder: Path, places: Places) -> list[Outcome]:
    meta = load_json(folder / "meta.json")
    skip, with_boxes = _not_targets(folder, meta)
    if skip == "all":
        return [Outcome(_name(folder), "not checked", note="not a target")]
    worst = Worst()
    with inside(folder):
        golden = np.load("golden.npz")
        network = Network("net.cfg", "net.weights", batch=meta["batch"], time_steps=meta.get("time_steps", 1))
        for call in range(meta.get("calls", 1)):
            first = call == 0
            x = torch.from_numpy(golden["input" if first else f"input_call{call + 1}"])
            outputs = network.layer_outputs(x, fused=meta.get("fused", False))
            prefix = "" if first else f"call{call + 1}_"
            _compare(network, outputs, golden, prefix, skip, worst, meta, x if first else None)
        if with_boxes and Path("dets.json").is_file():
            _boxes(network, outputs if meta.get("calls", 1) == 1 else None, golden, worst)
    return [worst.outcome(_name(folder))]


def _name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def _not_targets(folder: Path, meta: dict):
    """Layers that are no target, and whether boxes are one."""
    listed = folder.parent / "not_target.json"
    entry = load_json(listed).get(folder.name, {}) if listed.is_file() else {}
    skip = entry.get("layers", [])
    if "source" in meta and skip == []:
        skip = _zero_layers(folder, meta)
    return skip, entry.get("dets", True)


def _zero_layers(folder: Path, meta: dict) -> list[int]:
    """GPU cases record activations that come out as zeros there: the true function is the target instead."""
    if "zero" not in meta.get("note", "").lower():
        return []
    golden = np.load(folder / "golden.npz")
    return [i for i in range(len(meta["layers"])) if not np.any(golden[f"layer_{i:03d}"])]


def _compare(network, outputs, golden, prefix, skip, worst, meta, x) -> None:
    """End to end within 1e-5 (1 + |b|); a layer above that must pass from stored inputs, and 1e-4 end to end."""
    layer_by_layer = network.layers[0].type == "convolutional" and any(
        getattr(layer, "xnor", False) for layer in network.layers
    )
    for i, output in enumerate(outputs):
        key = f"{prefix}layer_{i:03d}"
        if i in skip or key not in golden:
            continue
        name = f"{prefix}{i} [{network.layers[i].type}]"
        error = relative(output.numpy(), golden[key])
        if error <= LAYER:
            worst.see(name, error, LAYER)
        elif x is None:
            worst.see(name, error, END_TO_END)
        else:
            worst.see(f"{name} from stored inputs", _alone(network, i, golden, prefix, x, meta), LAYER)
            if not layer_by_layer:
                worst.see(name, error, END_TO_END)


def _alone(network, index: int, golden, prefix: str, x, meta) -> float:
    """Error of one layer fed with the stored outputs of those before it."""
    layer = network.layers[index]
    context = ForwardContext(net_w=x.shape[-1], net_h=x.shape[-2] if x.dim() == 4 else 0)
    context.time_steps = meta.get("time_steps", 1)
    context.fused = meta.get("fused", False)
    if context.fused:
        network.fuse()
    context.tensors = network._fused[index] if context.fused else network.tensors_of(index)
    context.outputs = [torch.from_numpy(golden[f"{prefix}layer_{j:03d}"]) for j in range(index)]
    given = x if index == 0 else context.outputs[index - 1]
    with torch.no_grad():
        return relative(layer.forward(given, context).numpy(), golden[f"{prefix}layer_{index:03d}"])


def _boxes(network, outputs, golden, worst: Worst) -> None:
    """Boxes of the first picture for every way of asking that is recorded."""
    heads = [layer for layer in network.structure.heads if hasattr(layer, "decode")]
    if outputs is None or not heads:
        return
    net_size = (golden["input"].shape[3], golden["input"].shape[2])
    options = heads[-1].options
    as_layer = getattr(options, "nms_kind", "default"), getattr(options, "beta_nms", NMS_BETA)
    for entry in load_json(Path("dets.json")):
        found = detections_of(
            heads, outputs, net_size, [(entry["im_w"], entry["im_h"])], entry["thresh"], entry["hier_thresh"],
            bool(entry["relative"]), bool(entry["letter"]),
        )[0]  # fmt: skip
        name = f"boxes {entry['nms']} {entry['im_w']}x{entry['im_h']}"
        worst.see(f"{name} count", abs(len(found) - entry["nboxes"]), 0.0)
        found = _suppressed(found, entry, as_layer)
        found = found.select((found.probs > 0).any(1))
        _compare_boxes(found, entry, name, worst)


def _suppressed(found, entry, as_layer):
    kind, thresh = entry["nms"], entry["nms_thresh"]
    if kind == "none":
        return found
    if kind == "do_nms_obj":
        return found.nms_objectness(thresh)
    if kind == "as_layer":
        return found.nms(as_layer[0], thresh, as_layer[1])
    if kind == "do_nms_sort":
        return found.nms("default", thresh)
    return found.nms(kind.removeprefix("diounms_sort_"), thresh, NMS_BETA)


def _compare_boxes(found, entry, name: str, worst: Worst) -> None:
    stored = entry["boxes"]
    if len(found) != len(stored):
        worst.fail(f"{name}: {len(found)} boxes, stored are {len(stored)}")
        return
    if not stored:
        return
    boxes = np.array([b["box"] for b in stored])
    scale = 1.0 if entry["relative"] else max(entry["im_w"], entry["im_h"])
    worst.see(name, (np.abs(found.boxes.numpy() - boxes) / np.maximum(scale, np.abs(boxes))).max(), BOX)
    for key, mine in (("objectness", found.objectness), ("uc", found.uncertainty)):
        if key in stored[0]:
            wanted = np.array([b[key] for b in stored])
            off = np.abs(mine.numpy() - wanted).max() if mine is not None else np.inf
            worst.see(f"{name} {key}", off, PROBABILITY)
    probs = np.zeros(tuple(found.probs.shape))
    for row, box in zip(probs, stored, strict=True):
        for class_id, value in box["probs"]:
            row[class_id] = value
    worst.see(f"{name} probabilities", np.abs(found.probs.numpy() - probs).max(), PROBABILITY)
