"""Whether a network can be trained with a cfg, answered before torch is loaded."""

from __future__ import annotations

from darknetpy.errors import ConfigError, at, warn
from darknetpy.layers.build import Structure

BOX_HEADS = frozenset({"yolo", "Gaussian_yolo", "region"})
"""Heads whose truths are rows of boxes."""
TARGET_HEADS = frozenset({"softmax", "cost", "contrastive"})
"""Heads whose truth is a target for each output: of classifiers and of networks for texts."""
FEW = 8
"""Fewer images than this in a batch are warned of."""


def check_trainable(structure: Structure, heads: frozenset[str] = BOX_HEADS) -> None:
    """Raise ConfigError for a network without one of these heads, or batch arithmetic that nothing can be trained
    with."""
    net, cfg = structure.net, structure.cfg
    line = next((option.line for option in cfg.net.options if option.key == "batch"), cfg.net.line)
    boxes = heads is BOX_HEADS
    if not boxes and any(head.type in BOX_HEADS for head in structure.heads):
        raise ConfigError("has a detection layer", file=cfg.path, remedy="train it with `detector train`")
    if not any(head.type in heads for head in structure.heads):
        raise ConfigError(f"has no {'detection' if boxes else '[softmax] or [cost]'} layer to train", file=cfg.path)
    if net.subdivisions < 1:
        raise ConfigError(f"subdivisions={net.subdivisions} must be at least 1", file=cfg.path, line=line)
    if net.batch < net.subdivisions:
        raise ConfigError(
            f"batch={net.batch} is less than subdivisions={net.subdivisions}", file=cfg.path, line=line,
            remedy="a mini-batch is batch/subdivisions images",
        )  # fmt: skip
    if net.batch % net.subdivisions:
        raise ConfigError(
            f"batch={net.batch} is not divisible by subdivisions={net.subdivisions}", file=cfg.path, line=line,
            remedy=f"use subdivisions={_divisor(net.batch, net.subdivisions)}",
        )  # fmt: skip
    if net.images_per_update == 1 and boxes and structure.strict:
        raise ConfigError("batch=1 cannot be trained with", file=cfg.path, line=line, remedy="use batch=64")
    if net.images_per_update < FEW:
        warn(f"{cfg.path}, {at(line)}: batch={net.batch} is very small, batch=64 is usual")
    if net.max_batches < 1:
        raise ConfigError(
            "max_batches= is missing or 0", file=cfg.path, line=cfg.net.line, remedy="say how long to train"
        )


def check_classes(structure: Structure, classes: int) -> None:
    """Raise ConfigError where a classifier has not so many outputs."""
    last = next((layer for layer in reversed(structure.layers) if layer.type != "cost"), None)
    if last is None or last.outputs != classes:
        raise ConfigError(
            f"num of filters = {last.outputs if last else 0} in the last conv-layer in cfg-file doesn't match to "
            f"classes = {classes} in data-file", file=structure.cfg.path, remedy="make them equal",
        )  # fmt: skip


def _divisor(batch: int, wanted: int) -> int:
    """The divisor of `batch` nearest to `wanted`."""
    return min((n for n in range(1, batch + 1) if batch % n == 0), key=lambda n: abs(n - wanted))
