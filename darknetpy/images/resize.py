"""Darknet's own ways to bring a picture to a size (Darknet: `image.c`). Pictures are float32 (C, H, W)."""

from __future__ import annotations

import functools

import numpy as np

GREY = np.float32(0.5)


@functools.lru_cache(maxsize=256)
def _taps(source: int, target: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index of the first tap, of the second one, and the second one's weight, for each target position."""
    scale = np.float32(source - 1) / np.float32(target - 1) if target > 1 else np.float32(0)
    position = np.arange(target, dtype=np.float32) * scale
    first = np.minimum(position.astype(np.int64), source - 1)
    return first, np.minimum(first + 1, source - 1), position - first.astype(np.float32)


def resize_image(image: np.ndarray, w: int, h: int) -> np.ndarray:
    """Bilinear with corners aligned: scale (in-1)/(out-1), columns first, then rows, in float32.

    This is not `cv2.resize`. Bit for bit what Darknet's `resize_image` gives without fused multiply-adds.
    """
    _, in_h, in_w = image.shape
    if (in_w, in_h) == (w, h):
        return image.copy()
    left, right, weight = _taps(in_w, w)
    part = (1 - weight) * image[:, :, left] + weight * image[:, :, right]
    part[:, :, -1] = image[:, :, -1]
    if in_w == 1:
        part[:] = image
    top, bottom, weight = _taps(in_h, h)
    weight = weight[:, None]
    result = (1 - weight) * part[:, top]
    if in_h > 1:
        # The last row gets its first tap only. Where rounding puts that a hair above the last source row, the row
        # comes out nearly black; so it does in Darknet, and networks were trained and measured on it.
        result[:, :-1] += (weight * part[:, bottom])[:, :-1]
    return result


def letterbox_size(in_w: int, in_h: int, w: int, h: int) -> tuple[int, int]:
    """Size of a picture of in_w x in_h inside w x h with its aspect kept, in integers."""
    if np.float32(w) / np.float32(in_w) < np.float32(h) / np.float32(in_h):
        return w, max(1, in_h * w // in_w)
    return max(1, in_w * h // in_h), h


def letterbox_image(image: np.ndarray, w: int, h: int) -> np.ndarray:
    """The picture inside w x h with its aspect kept, centred on grey 0.5."""
    _, in_h, in_w = image.shape
    new_w, new_h = letterbox_size(in_w, in_h, w, h)
    canvas = np.full((image.shape[0], h, w), GREY, np.float32)
    x, y = (w - new_w) // 2, (h - new_h) // 2
    canvas[:, y : y + new_h, x : x + new_w] = resize_image(image, new_w, new_h)
    return canvas


def crop_image(image: np.ndarray, dx: int, dy: int, w: int, h: int) -> np.ndarray:
    """The w x h window at (dx, dy); outside, border pixels repeat."""
    _, in_h, in_w = image.shape
    rows = np.clip(np.arange(dy, dy + h), 0, in_h - 1)
    columns = np.clip(np.arange(dx, dx + w), 0, in_w - 1)
    return image[:, rows[:, None], columns[None]]


def resize_min(image: np.ndarray, side: int) -> np.ndarray:
    """The shorter side becomes `side`."""
    _, in_h, in_w = image.shape
    w, h = (side, in_h * side // in_w) if in_w < in_h else (in_w * side // in_h, side)
    return image if (w, h) == (in_w, in_h) else resize_image(image, w, h)


def resize_max(image: np.ndarray, side: int) -> np.ndarray:
    """The longer side becomes `side`."""
    _, in_h, in_w = image.shape
    w, h = (side, in_h * side // in_w) if in_w > in_h else (in_w * side // in_h, side)
    return image if (w, h) == (in_w, in_h) else resize_image(image, w, h)


def flip_image(image: np.ndarray) -> np.ndarray:
    """Left and right exchanged."""
    return np.ascontiguousarray(image[:, :, ::-1])
