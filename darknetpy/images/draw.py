"""Detections drawn into a picture in Darknet's look (Darknet: `draw_detections_v3`)."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import cv2
import numpy as np

from darknetpy.errors import ImageError
from darknetpy.files import atomic_write
from darknetpy.images.decode import to_bytes

if TYPE_CHECKING:
    from darknetpy.detections import Detections

_WHEEL = np.array([[1, 0, 1], [0, 0, 1], [0, 1, 1], [0, 1, 0], [1, 1, 0], [1, 0, 0]], np.float32)
_LABEL_ALPHA = 0.7
_FONT, _SMALL = cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_COMPLEX_SMALL


def class_color(class_id: int, classes: int) -> tuple[int, int, int]:
    """Darknet's colour of a class as (R, G, B) bytes."""
    offset = (class_id * 123457) % max(classes, 1)
    position = offset / max(classes, 1) * 5
    low, high = math.floor(position), math.ceil(position)
    mix = _WHEEL[low] * (1 - (position - low)) + _WHEEL[high] * (position - low)
    return tuple(int(255 * v) for v in mix[::-1])


def draw_detections(picture: np.ndarray, found: Detections) -> np.ndarray:
    """A copy of `picture` with boxes and labels, weakest first so that the strongest is on top.

    Args:
        picture: float (C, H, W) in 0..1 or uint8 (H, W, 3), RGB.
        found: boxes relative to the picture or in its pixels.

    Returns: uint8 (H, W, 3), RGB.
    """
    image = to_bytes(picture) if picture.dtype != np.uint8 else picture.copy()
    if image.shape[2] == 1:
        image = np.repeat(image, 3, axis=2)
    image = np.ascontiguousarray(image[:, :, :3])
    height, width = image.shape[:2]
    line_width = max(1, int(height * 0.002))
    places = _pixels(found, width, height)
    best, ids = found.best()
    for i in best.argsort(stable=True).tolist():
        if best[i] <= 0:
            continue
        box = _corners(*places[i], width, height)
        if box is None:
            continue
        color = class_color(int(ids[i]), found.probs.shape[1])
        for k in range(line_width):
            cv2.rectangle(image, (box[0] + k, box[1] + k), (box[2] - k, box[3] - k), color, 1)
        _label(image, _text(found, i, int(ids[i]), float(best[i])), box, color, line_width)
    return image


def _pixels(found: Detections, width: int, height: int) -> list[list[float]]:
    """Boxes in pixels of the picture that is drawn on."""
    scale = found.boxes.new_tensor([width, height, width, height]) if found.relative else 1
    return (found.boxes * scale).tolist()


def _corners(x: float, y: float, w: float, h: float, width: int, height: int) -> tuple[int, int, int, int] | None:
    """Left, top, right, bottom inside the picture; None for no number: an untrained network may say anything."""
    if any(v != v for v in (x - w / 2, x + w / 2, y - h / 2, y + h / 2)):
        return None
    left, right = (int(min(max(v, 0), width - 1)) for v in (x - w / 2, x + w / 2))
    top, bottom = (int(min(max(v, 0), height - 1)) for v in (y - h / 2, y + h / 2))
    return left, top, right, bottom


def _text(found: Detections, i: int, best: int, confidence: float) -> str:
    others = [k for k in found.probs[i].nonzero().flatten().tolist() if k != best and not found.hidden(k)]
    return ", ".join([f"{found.name(best)}: {confidence:.2f}", *(found.name(k) for k in others)])


def _label(image: np.ndarray, text: str, box: tuple[int, int, int, int], color, line_width: int) -> None:
    """Black letters on the class colour, seven tenths opaque, above the box or inside its top edge."""
    height, width = image.shape[:2]
    letters = max(9, int(height * 0.02))
    font_scale = letters / 22
    thickness = max(1, round(letters / 14))
    (text_w, text_h), baseline = cv2.getTextSize(text, _FONT, font_scale, thickness)
    pad = max(2, letters // 5)
    box_w, box_h = text_w + 2 * pad, text_h + baseline + 2 * pad
    left = min(box[0], max(0, width - 1))
    top = box[1] + line_width - box_h if box[1] + line_width >= box_h else box[1] + line_width
    right, bottom = min(width, left + box_w), min(height, top + box_h)
    if right <= left or bottom <= top:
        return
    label = np.empty((box_h, box_w, 3), np.uint8)
    label[:] = color
    cv2.putText(label, text, (pad, pad + text_h), _FONT, font_scale, (0, 0, 0), thickness, cv2.LINE_AA)
    label = label[: bottom - top, : right - left]
    area = image[top:bottom, left:right]
    area[:] = cv2.addWeighted(label, _LABEL_ALPHA, np.ascontiguousarray(area), 1 - _LABEL_ALPHA, 0)


def draw_frame(frame: np.ndarray, found: Detections) -> np.ndarray:
    """Draw on a video frame in the look of Darknet's `demo`: `name (69%)` in black on a filled bar above the box.

    Args:
        frame: uint8 (H, W, 3), BGR, changed in place.
        found: boxes relative to the frame.
    """
    height, width = frame.shape[:2]
    line_width, scale = max(1, int(height * 0.002)), height / 1000
    for i, place in enumerate(_pixels(found, width, height)):
        classes = [k for k in found.probs[i].nonzero().flatten().tolist() if not found.hidden(k)]
        box = _corners(*place, width, height)
        if not classes or box is None:
            continue
        left, top, right, bottom = box
        first = f"{found.name(classes[0])} ({float(found.probs[i, classes[0]]) * 100:.0f}%)"
        text = ", ".join([first, *(found.name(k) for k in classes[1:])])
        color = class_color(classes[0], found.probs.shape[1])[::-1]
        cv2.rectangle(frame, (left, top), (right, bottom), color, line_width)
        end = max(right, left + cv2.getTextSize(text, _SMALL, scale, 1)[0][0])
        cv2.rectangle(frame, (left, top - int(3 + 18 * scale)), (end, top), color, cv2.FILLED)
        cv2.putText(frame, text, (left + 4, top - 4), _SMALL, scale, (0, 0, 0), 1, cv2.LINE_AA)
    return frame


def encode_image(image: np.ndarray, suffix: str = ".jpg", quality: int = 80) -> bytes:
    """uint8 (H, W, 3) RGB to the bytes of a picture file."""
    options = [cv2.IMWRITE_JPEG_QUALITY, quality] if suffix.lower() in (".jpg", ".jpeg") else []
    try:
        done, data = cv2.imencode(suffix, np.ascontiguousarray(image[:, :, ::-1]), options)
    except cv2.error:
        done = False
    if not done:
        raise ImageError(f"a picture cannot be written as {suffix}", remedy="use .jpg or .png")
    return data.tobytes()


def save_image(path: str | os.PathLike, image: np.ndarray, quality: int = 80) -> None:
    """Write a picture, whole or not at all."""
    data = encode_image(image, os.path.splitext(os.fspath(path))[1] or ".jpg", quality)
    with atomic_write(path) as stream:
        stream.write(data)
