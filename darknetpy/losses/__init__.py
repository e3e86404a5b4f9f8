"""Losses as Darknet's deltas: one file a head, found by layer type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from darknetpy.config import NetOptions
from darknetpy.layers import Layer
from darknetpy.losses import classification, contrastive, detection, gaussian, region, yolo
from darknetpy.losses.base import HeadLoss, LossContext


@dataclass(frozen=True)
class _Head:
    """A head's loss, what Darknet prints of it, and whether Darknet multiplies its delta by `loss_scale`."""

    loss: Callable[..., HeadLoss]
    printed: Callable[..., list[str]] | None = None
    scaled: bool = False


_HEADS = {
    "yolo": _Head(yolo.yolo_loss, yolo.printed, scaled=True),
    "Gaussian_yolo": _Head(gaussian.gaussian_loss, gaussian.printed),
    "region": _Head(region.region_loss, region.printed),
    "detection": _Head(detection.detection_loss, detection.printed),
    "softmax": _Head(classification.softmax_loss, scaled=True),
    "cost": _Head(classification.cost_loss),
    "contrastive": _Head(contrastive.contrastive_loss, contrastive.printed, scaled=True),
}
_SILENT = frozenset({"yolo", "Gaussian_yolo"})
"""Heads that compute no loss with `onlyforward`."""


def has_loss(layer: Layer) -> bool:
    """Whether a head's loss is known."""
    return layer.type in _HEADS


def head_loss(layer: Layer, output: Tensor, truth: Tensor, context: LossContext) -> HeadLoss:
    """Delta and cost of any head."""
    if layer.options.onlyforward and layer.type in _SILENT:
        return HeadLoss(torch.zeros_like(output), output.new_zeros(()))
    return _HEADS[layer.type].loss(layer, output, truth, context)


def propagated(layer: Layer, net: NetOptions) -> float:
    """Factor by which a head's delta goes back into the network (the stored delta and the cost don't have it)."""
    factor = net.loss_scale if _HEADS[layer.type].scaled else 1.0
    factor *= getattr(layer.options, "delta_normalizer", 1.0)
    return factor * layer.options.scale if layer.type == "cost" else factor


def printed(layers: Iterable[Layer], losses: Mapping[int, HeadLoss]) -> list[str]:
    """Lines that Darknet prints after a mini-batch; this reads the numbers back from the device."""
    lines: list[str] = []
    boxes = None
    for layer in layers:
        loss, head = losses.get(layer.index), _HEADS.get(layer.type)
        if loss is None or head is None or head.printed is None or not loss.stats:
            continue
        lines += head.printed(layer, loss)
        if layer.type == "yolo":
            boxes = yolo.printed_boxes(loss)
    return lines if boxes is None else [*lines, boxes]


__all__ = ["HeadLoss", "LossContext", "has_loss", "head_loss", "printed", "propagated"]
