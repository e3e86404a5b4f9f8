"""Which part of the source picture is taken, in whole source pixels (Darknet: `load_data_detection`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from darknetpy.data.draws import Augmentation, Draws

F = np.float32


@dataclass
class Crop:
    """Margins to cut off (negative: to pad), source pixels. `ow, oh`: size of the source."""

    ow: int
    oh: int
    left: int
    right: int
    top: int
    bottom: int

    def __post_init__(self):
        """A rectangle that is empty or lies beside the picture becomes the whole picture; right and bottom stay."""
        self.width, self.height = self.ow - self.left - self.right, self.oh - self.top - self.bottom
        beside = (
            self.left >= self.ow or self.top >= self.oh or self.left + self.width <= 0 or self.top + self.height <= 0
        )
        if self.width <= 0 or self.height <= 0 or beside:
            self.left = self.top = 0
            self.width, self.height = self.ow, self.oh

    @property
    def scale(self) -> tuple[np.float32, np.float32]:
        """(sx, sy): taken over source size."""
        return F(self.width) / F(self.ow), F(self.height) / F(self.oh)

    @property
    def inverse_scale(self) -> tuple[np.float32, np.float32]:
        """(1/sx, 1/sy): source over taken size."""
        sx, sy = self.scale
        return F(1) / sx, F(1) / sy

    @property
    def shift(self) -> tuple[np.float32, np.float32]:
        """(dx, dy): origin relative to the taken rectangle."""
        sx, sy = self.scale
        return F(self.left) / F(self.ow) / sx, F(self.top) / F(self.oh) / sy


def crop_of(ow: int, oh: int, w: int, h: int, options: Augmentation, d: Draws, tile: int | None = None) -> Crop:
    """The rectangle that draws give for a source of ow x oh and a network of w x h.

    `tile` is the number of the mosaic pass, whose margin may move to one side.
    """
    dw, dh = int(F(ow) * F(options.jitter)), int(F(oh) * F(options.jitter))
    left, right = (int(F(-dw) + F(2 * dw) * F(r)) for r in d.r[:2])
    top, bottom = (int(F(-dh) + F(2 * dh) * F(r)) for r in d.r[2:])
    if options.resize != 1:
        left, right, top, bottom = _resized(ow, oh, options.resize, d.q, (left, right, top, bottom))
    if options.letter_box:
        left, right, top, bottom = _letterboxed(ow, oh, w, h, (left, right, top, bottom))
    if tile is not None and d.move:
        left, right, top, bottom = _moved((left, right, top, bottom), tile, d.flip)
    return Crop(ow, oh, left, right, top, bottom)


def _resized(ow: int, oh: int, resize: float, q, margins):
    """Zoom: each side moves between the outermost and the innermost rectangle, left and top together."""
    down, up = min(F(resize), F(1) / F(resize)), max(F(resize), F(1) / F(resize))

    def amount(size: int, k: float) -> np.float32:
        low, high = int(F(size) * (F(1) - F(1) / down) / F(2)), int(F(size) * (F(1) - F(1) / up) / F(2))
        return F(low) + F(k) * F(0 - low) if resize < 1 else F(low) + F(k) * F(high - low)

    left, right, top, bottom = margins
    return (
        int(F(left) + amount(ow, q[0])), int(F(right) + amount(ow, q[1])),
        int(F(top) + amount(oh, q[0])), int(F(bottom) + amount(oh, q[1])),
    )  # fmt: skip


def _letterboxed(ow: int, oh: int, w: int, h: int, margins):
    left, right, top, bottom = margins
    image, net = F(ow) / F(oh), F(w) / F(h)
    if image > net:
        delta = (F(ow) / net - F(oh)) / F(2)
        return left, right, int(F(top) - delta), int(F(bottom) - delta)
    delta = (F(oh) * net - F(ow)) / F(2)
    return int(F(left) - delta), int(F(right) - delta), top, bottom


def _moved(margins, tile: int, flip: bool):
    """The whole margin goes to the side that the tile loses anyway."""
    left, right, top, bottom = margins
    if (tile % 2 == 0) != flip:
        left, right = 0, right + left
    else:
        left, right = left + right, 0
    return (left, right, 0, bottom + top) if tile < 2 else (left, right, top + bottom, 0)
