"""Putting several pictures together: mosaic and mixup (Darknet: `blend_images_cv`, `blend_truth_mosaic`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from darknetpy.data.geometry import Crop

F = np.float32


@dataclass(frozen=True)
class Padding:
    """How much of a tile's picture is padding, network pixels (Darknet's estimate is by the source, not the crop)."""

    left: int
    right: int
    top: int
    bottom: int


def padding_of(crop: Crop, flip: bool, w: int, h: int, cut_x: int, cut_y: int, exact: bool = False) -> Padding:
    """In whole numbers, bounded by the tile that the cut leaves. `exact` counts by the crop, as the picture does."""
    left, right, top, bottom, ow, oh = crop.left, crop.right, crop.top, crop.bottom, crop.ow, crop.oh
    if exact:
        right, bottom = ow - left - crop.width, oh - top - crop.height
        ow, oh = crop.width, crop.height
    if flip:
        left, right = right, left

    def part(margin: int, net: int, source: int, most: int) -> int:
        return min(most, max(0, int(-margin * net / source)))

    return Padding(
        part(left, w, ow, cut_x), part(right, w, ow, w - cut_x), part(top, h, oh, cut_y), part(bottom, h, oh, h - cut_y)
    )


@dataclass(frozen=True)
class Tile:
    """A part of the canvas and what it shows: the window at (x, y) of its own picture, which has the canvas' size.

    The four pictures meet at the cut with their corners; what a tile cannot show is lost at the outer borders.
    """

    w: int
    h: int
    left: int
    top: int
    right: int
    bottom: int
    x: int
    y: int

    @classmethod
    def of(cls, number: int, w: int, h: int, cut: tuple[int, int], pad: Padding) -> Tile:
        """Tile 0 top left, 1 top right, 2 bottom left, 3 bottom right of a canvas of w x h cut at `cut`."""
        cut_x, cut_y = cut
        left, right, x = (0, cut_x, w - cut_x - pad.right) if number % 2 == 0 else (cut_x, w, pad.left)
        top, bottom, y = (0, cut_y, h - cut_y - pad.bottom) if number < 2 else (cut_y, h, pad.top)
        return cls(w, h, left, top, right, bottom, x, y)

    @property
    def window(self) -> tuple[slice, slice]:
        """Rows and columns of the picture that are shown."""
        return slice(self.y, self.y + self.bottom - self.top), slice(self.x, self.x + self.right - self.left)

    @property
    def place(self) -> tuple[slice, slice]:
        """Rows and columns of the canvas where they are shown."""
        return slice(self.top, self.bottom), slice(self.left, self.right)

    def truth(self, rows: np.ndarray, room: int, bound: bool) -> np.ndarray:
        """Truth rows (N, 6) of the picture, in the canvas.

        Only the first `room` rows are looked at. Boxes are clipped to the canvas, with `bound` to the tile; corners
        are truncated to whole pixels, boxes under a pixel or as large as the canvas vanish.
        """
        rows = rows[: max(0, room)]
        if not len(rows):
            return rows.reshape(0, 6)
        length = np.array([self.w, self.h])
        canvas = length.astype(F)
        centre = rows[:, :2].astype(F) + np.array([self.left - self.x, self.top - self.y], F) / canvas
        if bound:
            centre, size, fits = _rebuilt(
                centre, rows[:, 2:4], canvas, (self.left, self.top), (self.right, self.bottom)
            )
        else:
            centre, size, fits = _clipped(centre, rows[:, 2:4], canvas, (0, 0), length)
        keep = (fits & (centre > 0) & (centre < 1) & (size > F(1) / canvas) & (size < 1)).all(1)
        return np.concatenate([centre, size, rows[:, 4:5], np.zeros((len(rows), 1), F)], 1)[keep].astype(F)


def _clipped(centre: np.ndarray, size: np.ndarray, canvas: np.ndarray, low, high):
    """Centre and size (N, 2) less the whole pixels that stick out of low..high; whether anything is left."""
    begin = ((centre - size / F(2)) * canvas).astype(np.int64)
    end = ((centre + size / F(2)) * canvas).astype(np.int64)
    before = np.maximum(low - begin, 0).astype(F) / canvas
    after = np.maximum(end - high, 0).astype(F) / canvas
    centre = centre + before / F(2) - after / F(2)
    return centre, size - before - after, np.maximum(begin, low) <= np.minimum(end, high)


def _rebuilt(centre: np.ndarray, size: np.ndarray, canvas: np.ndarray, low, high):
    """As `_clipped`, from whole-pixel corners throughout: what clipping to the tile does to every box."""
    begin = np.maximum(((centre - size / F(2)) * canvas).astype(np.int64), low)
    end = np.minimum(((centre + size / F(2)) * canvas).astype(np.int64), high)
    middle = (begin + end).astype(F) / F(2) / canvas
    return middle, (end - begin).astype(F) / canvas, begin <= end


def mix(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Mixup of two float pictures."""
    return F(0.5) * second + F(0.5) * first


def mix_truth(first: np.ndarray, second: np.ndarray, most: int) -> np.ndarray:
    """Rows of the first picture, then those of the second without track ids."""
    second = second.copy()
    second[:, 5] = 0
    return np.concatenate([first, second])[:most]
