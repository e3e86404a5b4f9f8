"""Arrays of numbers as pictures: the filters or the outputs of a layer, one tile each."""

from __future__ import annotations

import math

import numpy as np

GAP = 1
"""Dark pixels between two tiles."""
SIDE = 24
"""Tiles smaller than this are enlarged, by a whole factor."""
LONGEST = 4096
"""Sides of a picture of tiles; those that do not fit into it are left out."""


def filter_tiles(weights: np.ndarray) -> np.ndarray:
    """Filters (N, C, h, w) as a picture uint8 (H, W, 3) RGB.

    Of three channels, a filter is a tile in colours; else it is a row of grey tiles, one for each channel.
    """
    return _colours(weights) if weights.shape[1] == 3 else _rows(weights)


def output_tiles(outputs: np.ndarray) -> np.ndarray:
    """Outputs (C, H, W) of a layer as a picture uint8 (H, W, 3) RGB: a grey tile for each channel."""
    return _grid(np.repeat(_stretched(outputs[:, None]), 3, 1))


def _colours(weights: np.ndarray) -> np.ndarray:
    return _grid(_stretched(weights))


def _rows(weights: np.ndarray) -> np.ndarray:
    count, channels, h, w = weights.shape
    zoom = max(1, min(SIDE // max(h, w), LONGEST // ((w + GAP) * channels)))
    count, channels = (min(n, LONGEST // (side * zoom + GAP)) for n, side in ((count, h), (channels, w)))
    tiles = _stretched(weights[:count, :channels]).reshape(-1, 1, h, w)
    return _laid_out(_enlarged(np.repeat(tiles, 3, 1), zoom), channels)


def _grid(tiles: np.ndarray) -> np.ndarray:
    """Tiles (N, 3, h, w) in about as many rows as columns."""
    h, w = tiles.shape[2:]
    zoom = max(1, SIDE // max(h, w))
    most = (LONGEST // (h * zoom + GAP)) * (LONGEST // (w * zoom + GAP))
    tiles = tiles[: max(1, most)]
    columns = min(math.ceil(math.sqrt(len(tiles))), max(1, LONGEST // (w * zoom + GAP)))
    return _laid_out(_enlarged(tiles, zoom), columns)


def _stretched(values: np.ndarray) -> np.ndarray:
    """Each of N arrays brought to 0..255; one whose numbers are all equal becomes grey."""
    values = np.nan_to_num(values.astype(np.float64))
    axes = tuple(range(1, values.ndim))
    low, high = values.min(axes, keepdims=True), values.max(axes, keepdims=True)
    span = high - low
    shares = np.divide(values - low, span, out=np.full_like(values, 0.5), where=span > 0)
    return np.rint(shares * 255).astype(np.uint8)


def _enlarged(tiles: np.ndarray, zoom: int) -> np.ndarray:
    return tiles.repeat(zoom, 2).repeat(zoom, 3)


def _laid_out(tiles: np.ndarray, columns: int) -> np.ndarray:
    """Tiles (N, 3, h, w) in rows of `columns`, with gaps between them."""
    count, _, h, w = tiles.shape
    rows = math.ceil(count / columns)
    sheet = np.zeros((rows, columns, h + GAP, w + GAP, 3), np.uint8)
    sheet.reshape(-1, h + GAP, w + GAP, 3)[:count, :h, :w] = tiles.transpose(0, 2, 3, 1)
    return sheet.transpose(0, 2, 1, 3, 4).reshape(rows * (h + GAP), columns * (w + GAP), 3)
