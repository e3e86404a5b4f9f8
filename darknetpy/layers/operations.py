"""Floating point operations of a network (Darknet: `operations`)."""

from __future__ import annotations

from darknetpy.layers.base import Layer
from darknetpy.layers.build import Structure
from darknetpy.layers.connected import Connected
from darknetpy.layers.convolutional import Convolutional
from darknetpy.layers.recurrent import Recurrent

NOT_COUNTED = ("crnn", "conv_lstm")
"""Recurrent types that Darknet leaves out."""


def operations(structure: Structure, as_darknet: bool = True) -> int:
    """Twice the multiplications of all convolutions and dense layers, for one sample and one time step.

    `as_darknet` counts grouped convolutions as if they had no groups and leaves out [crnn] and [conv_lstm].
    """
    return sum(_of(layer, as_darknet) for layer in structure.layers)


def _of(layer: Layer, as_darknet: bool) -> int:
    if isinstance(layer, Convolutional):
        w, h = layer.host_size
        channels = layer.c if as_darknet else layer.c // layer.groups
        return 2 * layer.filters * layer.size**2 * channels * w * h
    if isinstance(layer, Connected):
        return 2 * layer.inputs * layer.outputs
    if isinstance(layer, Recurrent) and not (as_darknet and layer.type in NOT_COUNTED):
        return sum(_of(part, as_darknet) for part in layer.parts.values())
    return 0
