"""Losses as Darknet's deltas: one file a head, found by layer type."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from darknetpy.config import NetOptions
from darknetpy.layers import Layer
from darknetpy.losses.base import HeadLoss, LossContext
from darknetpy.losses.classification import cost_loss, softmax_loss
from darknetpy.losses.contrastive import contrastive_loss
from darknetpy.losses.region import printed as region_printed
from darknetpy.losses.region import region_loss
from darknetpy.losses.yolo import printed as yolo_printed
from darknetpy.losses.yolo import yolo_loss

_LOSSES: dict[str, Callable[..., HeadLoss]] = {
    "yolo": yolo_loss,
    "region": region_loss,
    "softmax": softmax_loss,
    "cost": cost_loss,
    "contrastive": contrastive_loss,
}
_PRINTED: dict[str, Callable[..., str]] = {"yolo": yolo_printed, "region": region_printed}
_SCALED = frozenset({"yolo", "softmax", "contrastive"})
"""Heads whose delta Darknet multiplies by `loss_scale`."""


def head_loss(layer: Layer, output: Tensor, truth: Tensor, context: LossContext) -> HeadLoss:
    """Delta and cost of any head."""
    return _LOSSES[layer.type](layer, output, truth, context)


def has_loss(layer: Layer) -> bool:
    """Whether a head's loss is known."""
    return layer.type in _LOSSES


def propagated(layer: Layer, net: NetOptions) -> float:
    """Factor by which a head's delta goes back into the network (the stored delta and the cost don't have it)."""
    factor = net.loss_scale if layer.type in _SCALED else 1.0
    factor *= getattr(layer.options, "delta_normalizer", 1.0)
    return factor * layer.options.scale if layer.type == "cost" else factor


def printed(layer: Layer, loss: HeadLoss) -> str | None:
    """What Darknet prints of a head after a mini-batch; this reads the numbers back from the device."""
    function = _PRINTED.get(layer.type)
    return function(layer, loss) if function else None


__all__ = ["HeadLoss", "LossContext", "has_loss", "head_loss", "printed", "propagated"]
