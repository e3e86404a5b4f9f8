"""Putting several pictures together: mosaic and mixup (Darknet: `blend_images_cv`, `blend_truth_mosaic`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from darknetpy.data.geometry import Crop

F = np.float32


@dataclass(frozen=True)
class Padding:
    """How much of a tile's picture is padding, network pixels (Darknet's estimate: by the source, not the crop)."""

    left: int
    right: int
    top: int
    bottom: int


def padding_of(crop: Crop, flip: bool, w: int, h: int, cut_x: int, cut_y: int) -> Padding:
    """In whole numbers, bounded by the tile that the cut leaves."""
    left, right = (crop.right, crop.left) if flip else (crop.left, crop.right)

    def part(margin: int, net: int, source: int, most: int) -> int:
        return min(most, max(0, int(-margin * net / source)))

    return Padding(
        part(left, w, crop.ow, cut_x), part(right, w, crop.ow, w - cut_x),
        part(crop.top, h, crop.oh, cut_y), part(crop.bottom, h, crop.oh, h - cut_y),
    )  # fmt: skip


def paste_tile(canvas: np.ndarray, image: np.ndarray, tile: int, cut_x: int, cut_y: int, pad: Padding) -> None:
    """Copy the part of `image` (h, w, C) that tile 0..3 shows; the four pictures meet at the cut with their corners."""
    h, w = canvas.shape[:2]
    x, y = (w - cut_x - pad.right if tile % 2 == 0 else pad.left), (h - cut_y - pad.bottom if tile < 2 else pad.top)
    left, right = (0, cut_x) if tile % 2 == 0 else (cut_x, w)
    top, bottom = (0, cut_y) if tile < 2 else (cut_y, h)
    canvas[top:bottom, left:right] = image[y : y + bottom - top, x : x + right - left]


def tile_truth(
    rows: np.ndarray, have: int, most: int, tile: int, w: int, h: int, cut_x: int, cut_y: int, pad: Padding, bound: bool
) -> np.ndarray:
    """(N, 6) truth rows of a tile in the canvas.

    Only the first `most - have` rows are looked at. Boxes are clipped to the canvas, with `bound` to the tile; corners
    are truncated to whole pixels, boxes under a pixel or as large as the canvas vanish.
    """
    rows = rows[: max(0, most - have)].copy()
    if not len(rows):
        return rows
    dx = -(w - cut_x - pad.right) if tile % 2 == 0 else cut_x - pad.left
    dy = -(h - cut_y - pad.bottom) if tile < 2 else cut_y - pad.top
    x, y, bw, bh = rows[:, :4].T.astype(F)
    x, y = x + F(dx) / F(w), y + F(dy) / F(h)
    low_x, high_x = ((0, cut_x) if tile % 2 == 0 else (cut_x, w)) if bound else (0, w)
    low_y, high_y = ((0, cut_y) if tile < 2 else (cut_y, h)) if bound else (0, h)
    clip = _rebuilt if bound else _clipped
    x, bw, fits_x = clip(x, bw, w, low_x, high_x)
    y, bh, fits_y = clip(y, bh, h, low_y, high_y)
    keep = fits_x & fits_y & (x > 0) & (x < 1) & (y > 0) & (y < 1)
    keep &= (bw > F(1) / F(w)) & (bw < 1) & (bh > F(1) / F(h)) & (bh < 1)
    result = np.stack([x, y, bw, bh, rows[:, 4], np.zeros_like(x)], 1)
    return result[keep].astype(F)


def _clipped(centre: np.ndarray, size: np.ndarray, length: int, low: int, high: int):
    """Centre and size along one axis, less the whole pixels that stick out of low..high, and whether anything is left."""
    begin = ((centre - size / F(2)) * F(length)).astype(np.int64)
    end = ((centre + size / F(2)) * F(length)).astype(np.int64)
    before = np.maximum(low - begin, 0).astype(F) / F(length)
    after = np.maximum(end - high, 0).astype(F) / F(length)
    centre = centre + before / F(2) - after / F(2)
    return centre, size - before - after, np.maximum(begin, low) <= np.minimum(end, high)


def _rebuilt(centre: np.ndarray, size: np.ndarray, length: int, low: int, high: int):
    """As `_clipped`, from whole-pixel corners throughout: what clipping to the tile does to every box."""
    begin = np.maximum(((centre - size / F(2)) * F(length)).astype(np.int64), low)
    end = np.minimum(((centre + size / F(2)) * F(length)).astype(np.int64), high)
    middle = (begin + end).astype(F) / F(2) / F(length)
    return middle, (end - begin).astype(F) / F(length), begin <= end


def mix(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Mixup of two float pictures."""
    return F(0.5) * second + F(0.5) * first


def mix_truth(first: np.ndarray, second: np.ndarray, most: int) -> np.ndarray:
    """Rows of the first picture, then those of the second without track ids."""
    second = second.copy()
    second[:, 5] = 0
    return np.concatenate([first, second])[:most]
