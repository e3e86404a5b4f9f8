"""Pictures changed until a layer of a network answers more strongly to them (Darknet: `nightmare.c`, "deep dream")."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from darknetpy.errors import ConfigError
from darknetpy.network import Network

LONGEST = 512
"""Longer side that a picture is brought to first, pixels."""
SHIFT = 8
"""The picture is moved by up to so many pixels each time, so that no grid of the network's strides is left on it."""
OCTAVE = 4 / 3
"""Ratio of two sizes at which the network sees the picture."""
LEAST = 32
"""Sides of the smallest such picture."""


@dataclass(frozen=True)
class Settings:
    """How pictures are changed.

    Attributes:
        span: so many layers around the wanted one take turns (`-range`). octaves: so many sizes do.
        rate: size of a step, in colours of 0..1; norm: whether a step's values have mean 0 and deviation 1.
        thresh: outputs count that are above the mean by more than so many standard deviations.
    """

    span: int = 1
    octaves: int = 4
    rate: float = 0.04
    norm: bool = True
    thresh: float = 1.0


class Dream:
    """Steps that make layer `layer` of a network answer more strongly to a picture.

    Args:
        network: in inference mode; its weights are not changed. seed: of all random draws; None draws it.

    Raises ConfigError where there is no such layer.
    """

    def __init__(self, network: Network, layer: int, settings: Settings | None = None, seed: int | None = None):
        self.network, self.layer, self.settings = network, layer, settings or Settings()
        count = len(network.layers)
        if not 0 <= layer < count:
            raise ConfigError(
                f"there is no layer {layer}", file=network.structure.cfg.path, remedy=f"choose one of 0 to {count - 1}"
            )
        self._random = torch.Generator()
        self._random.manual_seed(torch.seed() if seed is None else seed)

    def step(self, picture: Tensor) -> Tensor:
        """One step up the gradient: a picture (1, C, H, W) in 0..1 like the given one."""
        given, draw = picture.detach().requires_grad_(), self._draw
        first = self.layer - self.settings.span // 2
        layer = min(max(first + draw(self.settings.span), 0), len(self.network.layers) - 1)
        scale = OCTAVE ** -draw(self.settings.octaves)
        left, top, flip = draw(2 * SHIFT), draw(2 * SHIFT), draw(2)
        height, width = picture.shape[2:]
        sizes = [max(LEAST, round(side * scale)) for side in (height, width)]
        self.network.reset_state()
        with torch.enable_grad():
            moved = F.pad(given, (SHIFT,) * 4, mode="replicate")[..., top : top + height, left : left + width]
            seen = F.interpolate(moved, sizes, mode="bilinear", align_corners=True)
            seen = seen.flip(3) if flip else seen
            answer = self.network.run(seen, keep_all=True, layers=layer + 1).outputs[layer]
            if not answer.requires_grad:
                raise ConfigError(f"layer {layer} has no gradient", file=self.network.structure.cfg.path)
            strong = answer > answer.mean() + self.settings.thresh * answer.std()
            gradient = torch.autograd.grad((answer * strong).square().sum() / 2, given)[0]
        if self.settings.norm:
            gradient = (gradient - gradient.mean()) / gradient.std().clamp_min(1e-12)
        return (picture + self.settings.rate * gradient).clamp(0, 1)

    def _draw(self, below: int) -> int:
        """A whole number of 0 up to, but without, `below`."""
        return int(torch.randint(max(1, below), (), generator=self._random))


def turned(picture: Tensor, zoom: float, angle: float) -> Tensor:
    """The middle of a picture (1, C, H, W), its part `zoom` enlarged to all of it, turned by `angle` radians."""
    height, width = picture.shape[2:]
    sine, cosine, aspect = math.sin(angle), math.cos(angle), height / width
    rows = [[zoom * cosine, -zoom * sine * aspect, 0], [zoom * sine / aspect, zoom * cosine, 0]]
    grid = F.affine_grid(picture.new_tensor([rows]), list(picture.shape), align_corners=False)
    return F.grid_sample(picture, grid, padding_mode="border", align_corners=False)


def start(picture: np.ndarray, device: torch.device) -> Tensor:
    """A loaded picture (C, H, W) as (1, C, H, W), its longer side no more than 512."""
    from darknetpy.images import resize_max

    picture = resize_max(picture, LONGEST) if max(picture.shape[1:]) > LONGEST else picture
    return torch.from_numpy(np.ascontiguousarray(picture))[None].to(device)


__all__ = ["LONGEST", "Dream", "Settings", "start", "turned"]
