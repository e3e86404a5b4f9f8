"""`.pt` files of other programs: state dicts of the PyTorch ports of YOLOv3 and v4, whose order is Darknet's.

The ports build their modules in the order of the cfg, so the n-th convolution of the file belongs to the n-th of the
network, whatever its name; shapes and the kinds of tensors tell whether that is so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from darknetpy.errors import WeightsError
from darknetpy.network import Network
from darknetpy.ptfile import FORMAT, load_plain
from darknetpy.weights import Header, WeightsFile

WRAPPERS = ("ema", "model", "state_dict", "model_state_dict", "net")
"""Keys under which checkpoints keep a state dict, the best one first."""
WORDS = ("weight", "bias", "running_mean", "running_var")
"""How the tensors that matter are named last; everything else (counters, grids) is the port's own business."""
NAMES = {"running_mean": "rolling_mean", "running_var": "rolling_variance"}


@dataclass(frozen=True)
class Match:
    """A layer of the network and the tensors of the file that it took."""

    layer: int
    type: str
    shape: tuple[int, ...]
    keys: tuple[str, ...]


def is_foreign(path: str | os.PathLike) -> bool:
    """Whether a readable `.pt` is another program's. Raises WeightsError for a file that holds more than tensors."""
    content = load_plain(path, mapped=True)
    return not (isinstance(content, dict) and content.get("format") == FORMAT)


def read_foreign(network: Network, path: str | os.PathLike) -> list[Match]:
    """Take the weights of another program's state dict into a network of the same structure.

    Raises WeightsError where the two do not fit, and leaves the network as it was.
    """
    name = os.fspath(path)
    groups = _modules(_state_dict(load_plain(name, mapped=True), name), name)
    arrays: dict[tuple[int, str], np.ndarray] = {}
    report = []
    for layer in network.layers:
        specs = {spec.name: spec.shape for spec in layer.tensors() if spec.stored}
        if not specs:
            continue
        found = next(groups, None)
        if found is None:
            raise WeightsError(f"ends before layer {layer.index} [{layer.type}]", file=name, remedy=_REMEDY)
        keys, tensors = found
        for wanted, shape in specs.items():
            tensor = tensors.get(wanted)
            if tensor is None or tuple(tensor.shape) != tuple(shape):
                has = f"{keys[0]} has none" if tensor is None else f"{keys[0]} has {tuple(tensor.shape)}"
                raise WeightsError(
                    f"layer {layer.index} [{layer.type}] needs {wanted} {tuple(shape)}, {has}",
                    file=name,
                    remedy=_REMEDY,
                )
            arrays[layer.index, wanted] = tensor.detach().to(torch.float32).contiguous().numpy()
        report.append(Match(layer.index, layer.type, tuple(specs["weights"]), tuple(keys)))
    rest = next(groups, None)
    if rest is not None:
        raise WeightsError(f"goes on with {rest[0][0]} where the network ends", file=name, remedy=_REMEDY)
    network.assign(WeightsFile(Header(), arrays, len(network.layers)), named=True)
    return report


_REMEDY = "give the cfg that the file was trained with"


def _state_dict(content, name: str) -> dict[str, Tensor]:
    """The tensors by name, out of whatever wraps them."""
    for _ in range(3):
        if isinstance(content, dict):
            tensors = {k: v for k, v in content.items() if isinstance(k, str) and isinstance(v, Tensor)}
            if tensors:
                return tensors
            content = next((content[k] for k in WRAPPERS if content.get(k)), None)
    raise WeightsError(
        "holds no state dict", file=name, remedy="save one with torch.save(model.state_dict(), path) in that program"
    )


def _modules(tensors: dict[str, Tensor], name: str) -> Iterator[tuple[list[str], dict[str, Tensor]]]:
    """The convolutions and linear layers in order, each with its batch normalisation, by Darknet's names."""
    keys: list[str] = []
    found: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        word = key.rsplit(".", 1)[-1]
        if word not in WORDS or not tensor.is_floating_point():
            continue
        begins = word == "weight" and tensor.dim() > 1
        if begins and keys:
            yield keys, found
            keys, found = [], {}
        if not begins and not keys:
            raise WeightsError(f"begins with {key}, which is no convolution", file=name, remedy=_REMEDY)
        keys.append(key)
        role = "weights" if begins else "scales" if word == "weight" else NAMES.get(word, "biases")
        found[role] = tensor
    if keys:
        yield keys, found
