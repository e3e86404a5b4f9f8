"""Edits of trained weights that Darknet's helper commands make (Darknet: `darknet.c`).

Each takes a network that holds the weights and changes it, or returns the one that fits the changed cfg; saving is the
caller's. `strict` gives Darknet's own arithmetic where that is not what the edit means; docs/differences.md lists it.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from darknetpy.errors import ConfigError, UsageError, WeightsError, silenced
from darknetpy.layers import Layer, read_structure, registry
from darknetpy.layers.batchnorm import BN_EPSILON, fold
from darknetpy.layers.convolutional import Convolutional
from darknetpy.network import LayerTensors, Network
from darknetpy.weights import WeightsFile, read_header, read_weights

AVERAGED = ("convolutional", "connected")
"""Types that Darknet averages and gives a batch normalisation."""
STATISTICS = ("scales", "rolling_mean", "rolling_variance")
NEUTRAL = 1.0 - BN_EPSILON
"""The variance with which batch normalisation changes nothing."""
CLASSIFIER_FILTERS = 9372
"""Outputs of the classifier that Darknet's `oneoff` was written for."""
BOX_ENTRIES = 5


def load_part(network: Network, path: str | os.PathLike, layers: int, strict: bool = False) -> WeightsFile:
    """Load the first `layers` layers of a file and forget how long they were trained.

    The file may go on, or belong to a network that goes on otherwise. Raises WeightsError where it is shorter;
    strict leaves random values there.
    """
    if layers < 0:
        raise UsageError(f"{layers} layers cannot be cut off", remedy="say how many layers to keep")
    loaded = network.load_weights(path, cutoff=layers)
    wanted = min(layers, len(network.layers))
    if loaded.layers < wanted and not strict:
        raise WeightsError(
            f"holds {loaded.layers} layers, {wanted} are wanted", file=path, remedy="the rest would be random numbers"
        )
    network.header = replace(loaded.header, seen=0)
    return loaded


@torch.no_grad()
def average(
    network: Network,
    paths: Sequence[str | os.PathLike],
    strict: bool = False,
    load: Callable[[str | os.PathLike], object] | None = None,
) -> None:
    """Leave the mean of several weight files, read by `load`, in the network; `seen` is the first one's.

    Strict averages convolutional and connected layers only (of the latter no statistics); all else is the first's.
    """
    header, sums = None, {}
    for path in paths:
        (load or network.load_weights)(path)
        header = header or network.header
        for layer, spec, tensor in network.named_tensors():
            key = layer.index, spec.name
            if key not in sums:
                sums[key] = tensor.double()
            elif not strict or _averaged_by_darknet(layer, spec.name):
                sums[key] += tensor
    for layer, spec, tensor in network.named_tensors():
        count = len(paths) if not strict or _averaged_by_darknet(layer, spec.name) else 1
        tensor.copy_(sums[layer.index, spec.name] / count)
    network.header = header


def _averaged_by_darknet(layer: Layer, name: str) -> bool:
    return layer.type in AVERAGED and not (layer.type == "connected" and name in STATISTICS)


@torch.no_grad()
def swap_red_and_blue(network: Network, strict: bool = False) -> None:
    """The network for pictures with red and blue exchanged. Raises ConfigError where it reads no three channels."""
    layer = _first_convolution(network, strict)
    if layer is not None:
        weights = network.tensors_of(layer.index).weights
        weights.copy_(weights.flip(1))


@torch.no_grad()
def rescale(network: Network, strict: bool = False) -> None:
    """The network for pixels in 0..1, made from one for pixels in -1..1: it gives for x what it gave for 2 x - 1.

    With zero padding that holds where the first convolution sees no border: a border of 0 used to be grey and is black
    now. Strict moves the bias even where batch normalisation stands between.
    """
    layer = _first_convolution(network, strict)
    if layer is None:
        return
    tensors = network.tensors_of(layer.index)
    shift = tensors.weights.double().sum((1, 2, 3))
    tensors.weights.mul_(2)
    if layer.batch_normalize and not strict:
        tensors.rolling_mean.copy_(tensors.rolling_mean + shift)
    else:
        tensors.biases.copy_(tensors.biases - shift)


def _first_convolution(network: Network, strict: bool) -> Convolutional | None:
    """The convolution that reads the picture; strict: None where it doesn't read three channels."""
    path = network.structure.cfg.path
    layer = next((layer for layer in network.layers if layer.type == "convolutional"), None)
    if layer is None:
        raise ConfigError("has no convolutional layer", file=path)
    if layer.c // layer.groups != 3:
        if strict:
            return None
        channels = f"{layer.c}" if layer.groups == 1 else f"{layer.c} in {layer.groups} groups of"
        raise ConfigError(f"layer {layer.index} reads {channels} channels, not red, green and blue", file=path)
    if layer.shared_by_others and not strict:
        raise ConfigError(f"layer {layer.index} shares its weights, other layers would change with it", file=path)
    return layer


def _normalized(network: Network) -> Iterator[LayerTensors]:
    """Convolutions and dense layers with batch normalisation, those inside recurrent layers included."""
    for slot in network.slots:
        for part in slot.modules():
            if all(hasattr(part, name) for name in ("weights", "biases", *STATISTICS)):
                yield part


@torch.no_grad()
def reset_normalization(network: Network, strict: bool = False) -> None:
    """Move batch normalisation into weights and biases; what is left of it does nothing.

    Strict leaves variances of 1, which the epsilon of 1e-5 makes a factor of 0.999995.
    """
    for part in _normalized(network):
        folded = fold(part)
        part.weights.copy_(folded.weights)
        part.biases.copy_(folded.biases)
        part.scales.fill_(1.0)
        part.rolling_mean.zero_()
        part.rolling_variance.fill_(1.0 if strict else NEUTRAL)


def denormalize(network: Network, strict: bool = False) -> Network:
    """The same function without batch normalisation, for the cfg with `batch_normalize=0`."""
    reset_normalization(network, strict)
    return _with(network, normalization_words(network, False))


def normalize(network: Network, strict: bool = False) -> Network:
    """The same function with a batch normalisation everywhere, for the cfg with `batch_normalize=1`.

    Strict gives it to convolutional and connected layers only, with Darknet's variance of 0, a factor of 316, and
    empties that of gated layers likewise.
    """
    twin = _with(network, normalization_words(network, True, strict))
    before = {(layer.index, spec.name) for layer, spec, _ in network.named_tensors()}
    neutral = {"scale": 1.0, "mean": 0.0, "variance": 0.0 if strict else NEUTRAL}
    with torch.no_grad():
        for layer, spec, tensor in twin.named_tensors():
            emptied = strict and layer.type in ("gru", "lstm")
            if spec.role in neutral and (emptied or (layer.index, spec.name) not in before):
                tensor.fill_(neutral[spec.role])
    return twin


def normalization_words(network: Network, on: bool, strict: bool = False) -> list[str]:
    """The `-set` words that switch batch normalisation on or off in every layer that can have it."""
    types = {layer.type: layer for layer in network.layers if hasattr(layer.options, "batch_normalize")}
    words = [f"{name}.batch_normalize={int(on)}" for name in types if not strict or name in AVERAGED]
    if not on and any(getattr(layer.options, "cbn", 0) for layer in network.layers):
        words.append("convolutional.cbn=0")
    return words


def _with(network: Network, words: Sequence[str]) -> Network:
    """A network for the cfg changed by `words`, with all tensors that both have."""
    old = network.structure
    cfg = copy.deepcopy(old.cfg)
    cfg.override(words, registry.canonical)
    batch = None if old.training else old.batch
    with silenced():
        structure = read_structure(cfg, old.strict, batch=batch, time_steps=old.time_steps)
    twin = Network.from_structure(structure, network.device)
    known = {(layer.index, spec.name): tensor for layer, spec, tensor in network.named_tensors()}
    with torch.no_grad():
        for layer, spec, tensor in twin.named_tensors():
            if (layer.index, spec.name) in known:
                tensor.copy_(known[layer.index, spec.name])
    twin.header = network.header
    return twin


@torch.no_grad()
def head_from_classifier(network: Network, path: str | os.PathLike, strict: bool = False) -> WeightsFile:
    """Start a [region] network of three anchors from a classifier of its classes (Darknet: `oneoff`).

    The last layer before the head gets the classifier's filters behind those of box and objectness, for all anchors
    alike. Strict knows one classifier only, that of 9372 classes.
    """
    layer = network.layers[-2] if len(network.layers) > 1 else network.layers[-1]
    cfg = network.structure.cfg.path
    if layer.type != "convolutional" or layer.batch_normalize or layer.filters % 3:
        raise ConfigError("needs a convolution of 3 x (5 + classes) filters without BN before its head", file=cfg)
    blocks = [block for block in network.layout() if block.layer != layer.index]
    each = 1 + layer.nweights // layer.filters
    header, others = read_header(path), sum(block.count for block in blocks)
    given = CLASSIFIER_FILTERS if strict else (os.path.getsize(path) - header.size - 4 * others) / (4 * each)
    third = layer.filters // 3
    if given + BOX_ENTRIES != third if not strict else given + BOX_ENTRIES > layer.filters:
        raise WeightsError(
            f"has {given:g} filters in layer {layer.index}, this cfg's head is for {third - BOX_ENTRIES} classes",
            file=path,
        )
    own = next(block for block in network.layout() if block.layer == layer.index)
    shapes = [(name, (int(given), *shape[1:])) for name, shape in own.tensors]
    loaded = read_weights(path, sorted([*blocks, replace(own, tensors=shapes)], key=lambda block: block.layer), strict)
    head = {name: loaded.arrays.pop((layer.index, name)) for name, _ in shapes}
    network.assign(loaded)
    for name, array in head.items():
        tensor = network.slots[layer.index].get(name)
        tensor[BOX_ENTRIES : BOX_ENTRIES + len(array)] = torch.from_numpy(array.copy())
        tensor.copy_(tensor[:third].repeat(3, *[1] * (tensor.dim() - 1)))
    network.header = replace(loaded.header, seen=0)
    return loaded


@dataclass(frozen=True)
class TensorStatistics:
    """Numbers of one tensor: `rms` is what Darknet prints as MSE, `variance` is over all its values."""

    layer: int
    type: str
    name: str
    count: int
    rms: float
    mean: float
    variance: float
    least: float
    most: float


def statistics(network: Network) -> list[TensorStatistics]:
    """One row a stored tensor, in the order of the file."""
    return [
        TensorStatistics(layer.index, layer.type, spec.name, spec.count, *_numbers(tensor))
        for layer, spec, tensor in network.named_tensors()
        if spec.stored and spec.count
    ]


def _numbers(tensor: Tensor) -> tuple[float, ...]:
    values = tensor.detach().double()
    rms, variance = math.sqrt(float((values * values).mean())), float(values.var(unbiased=False))
    return rms, float(values.mean()), variance, float(values.min()), float(values.max())


DARKNET_SHOWS = {
    "connected": ("Connected", {"": ""}),
    "gru": (
        "GRU",
        {f"{kind}_{gate}": f"{kind.title()} {gate.upper()}" for kind in ("input", "state") for gate in "zrh"},
    ),
    "lstm": ("LSTM", {f"{kind}{gate}": f"{kind}{gate}" for kind in "wu" for gate in "figo"}),
}
"""Types whose batch normalisation Darknet's `statistics` looks at: title, and titles of the parts."""


def darknet_statistics(network: Network) -> str:
    """What Darknet prints: dense layers with batch normalisation, and an empty line after every layer."""
    rows = {(row.layer, row.name): row for row in statistics(network)}
    lines = []
    for layer in network.layers:
        title, parts = DARKNET_SHOWS.get(layer.type, ("", {}))
        if parts and layer.options.batch_normalize:
            lines.append(f"{title} Layer {layer.index}")
            for part, heading in parts.items():
                lines += [heading] if heading else []
                lines += [_line(name, rows[layer.index, f"{part}.{name}".lstrip(".")]) for name in _SHOWN]
        lines.append("")
    return "\n".join(lines)


_SHOWN = ("scales", "biases", "weights")


def _line(name: str, row: TensorStatistics) -> str:
    return f"{name.title()} MSE: {row.rms:.6f}, Mean: {row.mean:.6f}, Variance: {row.variance:.6f}"
