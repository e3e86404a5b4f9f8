"""Augmentation of classifiers (Darknet: `random_augment_image`, `load_data_augment`): all in float, by other rules than
that of detectors. Unless said otherwise pictures are float32 (C, H, W) in 0..1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from darknetpy.data.draws import CUTMIX, MIXUP, MOSAIC
from darknetpy.images import resize_image

F = np.float32
TO_UNIT = F(1 / 255)
"""Darknet's compiler multiplies by it; a division differs in the last bit, which truncation shows."""
BLUR_OF_ONE = 15
"""Kernel of `blur=1`."""


@dataclass(frozen=True)
class View:
    """What is drawn for one picture.

    Attributes:
        aspect: the picture is squeezed by it; scale: of the picture; rad: angle of the view, radians.
        dx, dy: of the view's middle from the picture's, in pixels of the view.
        flip: mirror; dhue, dsat, dexp: shift of the hue in turns, factors on saturation and value.
    """

    aspect: float = 1.0
    scale: float = 1.0
    rad: float = 0.0
    dx: float = 0.0
    dy: float = 0.0
    flip: bool = False
    dhue: float = 0.0
    dsat: float = 1.0
    dexp: float = 1.0

    @classmethod
    def placed(
        cls, w: int, h: int, size: int, aspect: float, side: int, degrees: float, u: float, v: float, **colour
    ) -> View:
        """The view of a w x h picture whose shorter side becomes `side` pixels.

        Args:
            size: of the square view; degrees: its angle; u, v: in -1..1, where it lies in the room that is left.
        """
        aspect = F(aspect)
        squeezed = F(w) * aspect
        scale = F(side) / F(max(1, h if h < squeezed else int(squeezed)))
        room = (F(w) * scale / aspect - F(size)) / 2, (F(h) * scale - F(size)) / 2
        dx, dy = (F(max(0.0, float(most))) * F(place) for most, place in zip(room, (u, v), strict=True))
        return cls(float(aspect), float(scale), math.radians(degrees), float(dx), float(dy), **colour)


@dataclass(frozen=True)
class Mix:
    """How several pictures become one: `mode`, and of cutmix the patch (x, y, w, h), of mosaic the cut (x, y)."""

    mode: int
    cut: tuple[int, ...] = ()


def seen(picture: np.ndarray, view: View, w: int, h: int) -> np.ndarray:
    """A picture, uint8 (H, W, C), through a view: (C, h, w), the square cut out, mirrored, coloured and resized."""
    image = rotate_crop(picture, view, max(w, h))
    if view.flip:
        image = np.ascontiguousarray(image[:, :, ::-1])
    return resize_image(recolour(image, view.dhue, view.dsat, view.dexp), w, h)


def rotate_crop(picture: np.ndarray, view: View, size: int) -> np.ndarray:
    """(C, size, size) of a view of a picture, uint8 (H, W, C): bilinear, with zeros outside the picture
    (Darknet: `rotate_crop_image`)."""
    h, w = picture.shape[:2]
    s, place = F(view.scale), np.arange(size, dtype=np.float32) - F(size / 2)
    across = (place / s * F(view.aspect) + F(view.dx) / s * F(view.aspect))[None].astype(np.float64)
    down = (place / s + F(view.dy) / s)[:, None].astype(np.float64)
    cos, sin = math.cos(view.rad), math.sin(view.rad)
    x = (cos * across - sin * down + w / 2).astype(np.float32)
    y = (sin * across + cos * down + h / 2).astype(np.float32)
    return np.ascontiguousarray(_bilinear(picture, x, y).transpose(2, 0, 1))


def _bilinear(picture: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(N, M, C) in 0..1 at positions (N, M) in pixels; zero outside. Bytes are gathered, not floats: the gathering is
    what takes the time."""
    h, w, channels = picture.shape
    left, top = np.floor(x), np.floor(y)
    fx, fy = (x - left)[..., None], (y - top)[..., None]
    padded = np.zeros((h + 4, w + 4, channels), np.uint8)
    padded[2:-2, 2:-2] = picture
    flat = padded.reshape(-1, channels)
    at = (np.clip(top, -2, h).astype(np.int32) + 2) * (w + 4) + np.clip(left, -2, w).astype(np.int32) + 2

    def value(shift: int) -> np.ndarray:
        return flat.take(at + shift, 0) * TO_UNIT

    upper = (1 - fx) * value(0) + fx * value(1)
    lower = (1 - fx) * value(w + 4) + fx * value(w + 5)
    return (1 - fy) * upper + fy * lower


def recolour(image: np.ndarray, dhue: float, dsat: float, dexp: float) -> np.ndarray:
    """Hue turned (all the way round), saturation and value multiplied, then clipped to 0..1; grey only brightened."""
    if len(image) < 3:
        return np.clip(image * F(dexp), 0, 1)
    hue, saturation, value = _to_hsv(*image[:3])
    hue = hue + F(dhue)
    hue = np.where(hue > 1, hue - F(1), np.where(hue < 0, hue + F(1), hue))
    rgb = _to_rgb(hue, saturation * F(dsat), value * F(dexp))
    return np.clip(np.concatenate([rgb, image[3:]]) if len(image) > 3 else rgb, 0, 1)


def _to_hsv(r: np.ndarray, g: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hue in turns, saturation, value. Not OpenCV's: its small addition to denominators shows after truncation."""
    value = np.maximum(np.maximum(r, g), b)
    range_ = value - np.minimum(np.minimum(r, g), b)
    divisor = np.where(range_ == 0, F(1), range_)
    hue = np.where(
        r == value, (g - b) / divisor, np.where(g == value, F(2) + (b - r) / divisor, F(4) + (r - g) / divisor)
    )
    hue = np.where(hue < 0, hue + F(6), hue) / F(6)
    return hue, range_ / np.where(value == 0, F(1), value), value


def _to_rgb(hue: np.ndarray, saturation: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(3, H, W) in 0..1 from hue in turns, saturation and value."""
    sixths = hue * F(6)
    sector = np.floor(sixths)
    rest = sixths - sector
    p, q = value * (1 - saturation), value * (1 - saturation * rest)
    t = value * (1 - saturation * (1 - rest))
    sector = sector.astype(np.intp) % 6
    order = ((value, t, p), (q, value, p), (p, value, t), (p, q, value), (t, p, value), (value, p, q))
    return np.stack([np.choose(sector, [one[channel] for one in order]) for channel in range(3)])


def mixed(images: Sequence[np.ndarray], targets: Sequence[np.ndarray], mix: Mix) -> tuple[np.ndarray, np.ndarray]:
    """One picture (C, H, W) and target (classes,) from two or four: mixup the mean, cutmix a patch of the second in the
    first, mosaic a quarter of each where it lies; targets by the share of the area."""
    first, h, w = images[0].copy(), *images[0].shape[1:]
    if mix.mode == MIXUP:
        return (first + images[1]) / F(2), (targets[0] + targets[1]) / F(2)
    if mix.mode == CUTMIX:
        x, y, cut_w, cut_h = mix.cut
        first[:, y : y + cut_h, x : x + cut_w] = images[1][:, y : y + cut_h, x : x + cut_w]
        share = F(cut_w * cut_h) / F(w * h)
        return first, targets[0] * (1 - share) + targets[1] * share
    assert mix.mode == MOSAIC
    x, y = mix.cut
    first[:, :y, x:], first[:, y:, :x], first[:, y:, x:] = (
        images[1][:, :y, x:], images[2][:, y:, :x], images[3][:, y:, x:],
    )  # fmt: skip
    areas = (x * y, (w - x) * y, x * (h - y), (w - x) * (h - y))
    return first, sum(target * (F(area) / F(w * h)) for target, area in zip(targets, areas, strict=True))


def blurred(image: np.ndarray, kernel: int) -> np.ndarray:
    """Gaussian blur in 8 bits, truncated; the kernel is the key's value, of 1 fifteen, of an even one the next odd."""
    size = BLUR_OF_ONE if kernel == 1 else kernel | 1
    pixels = (np.clip(image, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    result = cv2.GaussianBlur(np.ascontiguousarray(pixels), (size, size), 0).reshape(pixels.shape)
    return result.transpose(2, 0, 1).astype(np.float32) * TO_UNIT
