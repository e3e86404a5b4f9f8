"""Antialiasing: a fixed depth-wise blur behind a convolution or pool that carries its stride."""

from __future__ import annotations

from typing import TYPE_CHECKING

from darknetpy.layers.constants import constant
from darknetpy.layers.gradients import add_stale_gradient
from darknetpy.lazy import torch

if TYPE_CHECKING:
    from darknetpy.layers.base import Layer

Strides = tuple[int, int]


def _window(mode: int) -> tuple[int, int]:
    """Kernel side and padding: mode 2 is 2x2 without padding, all others are 3x3 with one."""
    return (2, 0) if mode == 2 else (3, 1)


def blurred_size(w: int, h: int, mode: int, strides: Strides) -> tuple[int, int]:
    """(width, height) after the blur; strides are (x, y)."""
    size, pad = _window(mode)
    return (w + 2 * pad - size) // strides[0] + 1, (h + 2 * pad - size) // strides[1] + 1


def _kernel(mode: int, channels: int, like):
    """(C, 1, side, side), of the same type and on the same device as `like`."""
    row = (1, 1) if mode == 2 else (1, 2, 1)
    plane = constant([a * b / sum(row) ** 2 for a in row for b in row], like)
    return plane.view(len(row), len(row)).expand(channels, 1, -1, -1)


def blur(x, mode: int, strides: Strides, strict: bool = False):
    """Depth-wise [1 2 1] x [1 2 1] / 16 (mode 2: 2x2 mean), zeros outside.

    Strict training repeats a defect of Darknet's: the gradient of the blur is added to a buffer that still holds the
    incoming one, flat from the start.
    """
    if strict:
        return add_stale_gradient(x, blur(x, mode, strides))
    channels = int(x.shape[1])
    return torch.nn.functional.conv2d(x, _kernel(mode, channels, x), None, strides[::-1], _window(mode)[1], 1, channels)


def row(layer: Layer, mode: int, strides: Strides, host: tuple[int, int]) -> str:
    """The extra line of the load table."""
    size, _ = _window(mode)
    c, (w, h) = layer.out_c, host
    stride = f"{size:2d} x{size:2d}/{strides[0]:2d}   "
    if strides[0] != strides[1]:
        stride = f"{size:2d}x{size:2d}/{strides[0]:2d}x{strides[1]:2d} "
    flops = 2.0 * size * size * c * layer.out_w * layer.out_h / 1e9
    sizes = f"{w:4d} x{h:4d} x{c:4d} -> {layer.out_w:4d} x{layer.out_h:4d} x{c:4d}"
    return f"  AA:  conv  {c:5d}/{c:4d} {stride}{sizes} {flops:5.3f} BF"
