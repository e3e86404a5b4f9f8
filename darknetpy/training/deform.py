"""Kernels tied as rotated, swayed or stretched copies (Darknet: `rotate`, `sway`, `stretch`, `stretch_sway`).

The k x k planes of a convolution form consecutive groups, one a stage; each stage is the first group seen through its
own linear transform of the plane. Before an update the accumulated gradients are transformed back and averaged over
quarters; after it the first quarter is copied into all of them and transformed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from darknetpy.layers import Layer

QUARTERS = 4


@dataclass
class Deformation:
    """The stages of one layer: `forward[s]` and `inverse[s]` are (k*k, k*k) matrices acting on flat planes."""

    forward: Tensor
    inverse: Tensor

    def average_update(self, update: Tensor) -> Tensor:
        """Undo each stage's transform and average the quarters, position by position."""
        planes = self._staged(update, self.inverse).reshape(QUARTERS, -1)
        return planes.mean(dim=0).repeat(QUARTERS).view_as(update)

    def copy_weights(self, weights: Tensor) -> Tensor:
        """The first quarter in every quarter, each stage transformed."""
        first = weights.reshape(QUARTERS, -1)[0].repeat(QUARTERS)
        return self._staged(first.view_as(weights), self.forward).view_as(weights)

    def _staged(self, weights: Tensor, matrices: Tensor) -> Tensor:
        stages, taps = matrices.shape[:2]
        planes = weights.reshape(stages, -1, taps)
        return torch.einsum("sij,spj->spi", matrices.to(weights), planes)


def deformation_of(layer: Layer) -> Deformation | None:
    """The deformation that a layer's options ask for, or None."""
    options = layer.options
    if layer.type != "convolutional" or not (options.rotate or options.sway or options.stretch or options.stretch_sway):
        return None
    k, angle = layer.size, options.angle
    if options.rotate:
        turns = [_quarter_turns(k, n) for n in range(4)]
        back = [_quarter_turns(k, -n) for n in range(4)]
    elif options.sway:
        turns = [_identity(k), _rotation(k, angle), _rotation(k, -angle), _mirror(k)]
        back = [_identity(k), _rotation(k, -angle), _rotation(k, angle), _mirror(k)]
    elif options.stretch:
        scales = (0.65, 0.8, 1.3)
        turns = [_identity(k)] + [_stretch(k, s) / s for s in scales]
        back = [_identity(k)] + [_stretch(k, 1 / s) * s for s in scales]
    else:
        scales = (0.65, 0.8, 1.2, 1.4)
        turns = [_identity(k), *(_stretch(k, s) / max(s, 1.0) for s in scales)]
        back = [_identity(k), *(_stretch(k, 1 / s) / max(1 / s, 1.0) for s in scales)]
        turns += [_rotation(k, angle), _rotation(k, -angle), _mirror(k)]
        back += [_rotation(k, -angle), _rotation(k, angle), _mirror(k)]
    return Deformation(torch.stack(turns), torch.stack(back))


def _identity(k: int) -> Tensor:
    return torch.eye(k * k)


def _quarter_turns(k: int, n: int) -> Tensor:
    """n quarter turns clockwise as a permutation."""
    taps = torch.arange(k * k).view(k, k)
    return torch.eye(k * k)[torch.rot90(taps, -n).reshape(-1)]


def _mirror(k: int) -> Tensor:
    taps = torch.arange(k * k).view(k, k)
    return torch.eye(k * k)[taps.flip(1).reshape(-1)]


def _rotation(k: int, degrees: float) -> Tensor:
    """Bilinear rotation about the integer centre; what falls outside is made up for by the total."""
    a = math.radians(degrees)
    matrix = _bilinear(k, math.cos(a), math.sin(a), -math.sin(a), math.cos(a))
    return matrix * (k * k / float(matrix.sum()))


def _stretch(k: int, scale: float) -> Tensor:
    """Bilinear scaling about the integer centre; outside is 0."""
    return _bilinear(k, 1 / scale, 0.0, 0.0, 1 / scale)


def _bilinear(k: int, xx: float, xy: float, yx: float, yy: float) -> Tensor:
    """Matrix that samples a k x k plane at centre + [xx xy; yx yy] (position - centre)."""
    matrix, centre = torch.zeros(k * k, k * k), k // 2
    for y in range(k):
        for x in range(k):
            dx, dy = x - centre, y - centre
            sx, sy = centre + dx * xx + dy * xy, centre + dx * yx + dy * yy
            x0, y0 = math.floor(sx), math.floor(sy)
            for tx, wx in ((x0, x0 + 1 - sx), (x0 + 1, sx - x0)):
                for ty, wy in ((y0, y0 + 1 - sy), (y0 + 1, sy - y0)):
                    if 0 <= tx < k and 0 <= ty < k:
                        matrix[y * k + x, ty * k + tx] += wx * wy
    return matrix
