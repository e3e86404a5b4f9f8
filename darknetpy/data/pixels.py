"""Augmentation of the pixels, in 8 bits as Darknet does it with OpenCV (Darknet: `image_data_augmentation`)."""

from __future__ import annotations

import cv2
import numpy as np

from darknetpy.data.draws import Draws
from darknetpy.data.geometry import Crop
from darknetpy.errors import DataError

BACKGROUND_KERNEL = 17
MAX_PIXELS = 1 << 28
"""More than this a padded picture may not have."""
Window = tuple[slice, slice]
WHOLE: Window = (slice(None), slice(None))
F = np.float32
LANES, WIDEST, ALONE = 32, 64, 15
"""Pixels that OpenCV computed together where Darknet ran; the most that any processor does; fewer than any does."""


def augment(
    image: np.ndarray, crop: Crop, w: int, h: int, d: Draws, rows: np.ndarray, smallest: int, window: Window = WHOLE
) -> np.ndarray:
    """uint8 (h, w, C), or the `window` of it that is needed, from a source (oh, ow, C), RGB.

    Args:
        rows: truth rows of the result, whose rectangles background blur leaves sharp.
        smallest: shortest side of a box, network pixels; blur is bounded by an eighth of it.
        window: slices of rows and columns; colours are changed only there.
    """
    result = _cut(image, crop)
    if result.shape[:2] != (h, w):
        result = cv2.resize(result, (w, h), interpolation=cv2.INTER_LINEAR)
    if d.flip:
        result = cv2.flip(result, 1)
    if result.ndim == 2:
        result = result[:, :, None]
    blur = limited_blur(d.blur, smallest)
    if not blur and not d.noise:
        rows_only, columns = window  # whole rows: OpenCV's conversion rounds by the place of a pixel in its row
        return _colour(result[rows_only], d)[:, columns]
    result = _colour(result, d)
    if blur:
        result = _blurred(result, blur, rows)
    if d.noise:
        result = _noisy(result, d)
    return result[window]


def limited_blur(blur: int, smallest: int) -> int:
    """Blur never exceeds an eighth of the shortest side; 1, the background mode, is left alone."""
    return smallest // 8 if blur > 1 and smallest // 8 < blur else blur


def _cut(image: np.ndarray, crop: Crop) -> np.ndarray:
    """The rectangle; outside the source its mean colour."""
    oh, ow = image.shape[:2]
    x, y, w, h = crop.left, crop.top, crop.width, crop.height
    if (x, y, w, h) == (0, 0, ow, oh):
        return image
    if w * h > MAX_PIXELS:
        raise DataError(
            f"jitter= and resize= blow a picture of {ow} x {oh} up to {w} x {h}", remedy="choose smaller ones"
        )
    left, top, right, bottom = max(x, 0), max(y, 0), min(x + w, ow), min(y + h, oh)
    if (left, top, right, bottom) == (x, y, x + w, y + h):
        return image[y : y + h, x : x + w]
    mean = np.rint(cv2.mean(image)[: image.shape[2]]).tolist()
    part = image[top:bottom, left:right]
    margins = (top - y, y + h - bottom, left - x, x + w - right)
    return cv2.copyMakeBorder(part, *margins, cv2.BORDER_CONSTANT, value=mean).reshape(h, w, -1)


def _factor_table(factor: float) -> np.ndarray:
    """uint8 times a float32 factor, rounded to even, saturated."""
    return np.clip(np.rint(np.arange(256, dtype=F) * F(factor)), 0, 255).astype(np.uint8)


def _colour(image: np.ndarray, d: Draws) -> np.ndarray:
    if d.dsat == 1 and d.dexp == 1 and d.dhue == 0:
        return image
    if image.shape[2] < 3:
        return cv2.LUT(image, _factor_table(d.dexp)).reshape(image.shape)
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    shift = int(np.rint(F(179) * F(d.dhue)))
    hue = np.clip(np.arange(256) + shift, 0, 255).astype(np.uint8)
    tables = (hue, _factor_table(d.dsat), _factor_table(d.dexp))
    planes = [cv2.LUT(plane, table) for plane, table in zip(cv2.split(hsv), tables, strict=True)]
    return _to_rgb(cv2.merge(planes))


def _to_rgb(hsv: np.ndarray) -> np.ndarray:
    """uint8 hue (0..179), saturation, value as RGB, as OpenCV 4 computes it, whatever version and processor are here.

    OpenCV truncates where vectors of pixels are computed together and rounds at the end of a row, where fewer are left
    than a vector holds; how many it holds (16, 32, 64) depends on both. Darknet's bytes are those of 32.
    """
    height, width = hsv.shape[:2]
    together = width // LANES * LANES
    result = np.empty_like(hsv)
    if together:
        flat = hsv[:, :together].reshape(-1, 3)
        filled = np.resize(flat, (-(-len(flat) // WIDEST), WIDEST, 3)) if len(flat) % WIDEST else flat
        rgb = cv2.cvtColor(filled.reshape(-1, WIDEST, 3), cv2.COLOR_HSV2RGB)
        result[:, :together] = rgb.reshape(-1, 3)[: len(flat)].reshape(height, together, 3)
    for x in range(together, width, ALONE):
        result[:, x : x + ALONE] = cv2.cvtColor(np.ascontiguousarray(hsv[:, x : x + ALONE]), cv2.COLOR_HSV2RGB)
    return result


def _blurred(image: np.ndarray, blur: int, rows: np.ndarray) -> np.ndarray:
    kernel = BACKGROUND_KERNEL if blur == 1 else blur // 2 * 2 + 1
    result = cv2.GaussianBlur(image, (kernel, kernel), 0).reshape(image.shape)
    if blur == 1:
        h, w = image.shape[:2]
        ended = np.flatnonzero(rows[:, 0] == 0)  # a row with x = 0 ends the list
        for x, y, bw, bh in rows[: ended[0] if len(ended) else None, :4]:
            left, top = int((x - bw / 2) * w), int((y - bh / 2) * h)
            right, bottom = left + int(bw * w), top + int(bh * h)
            left, top = max(left, 0), max(top, 0)
            result[top:bottom, left:right] = image[top:bottom, left:right]
    return result


def _noisy(image: np.ndarray, d: Draws) -> np.ndarray:
    """Normal noise drawn in 8 bits, so that negative numbers are 0: the picture only gets brighter."""
    if d.noise_seed is not None:
        cv2.setRNGSeed(d.noise_seed)
    sigma = min(max(d.noise, 0), 127)
    noise = np.zeros_like(image)
    cv2.randn(noise, (0,) * image.shape[2], (sigma,) * image.shape[2])
    return cv2.add(image, noise).reshape(image.shape)
