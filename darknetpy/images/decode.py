"""Picture files to arrays.

One rule: what a picture shows is what is used. EXIF orientation is applied, palettes are resolved, an alpha channel is
dropped, 16 bits become 8, a grey picture fills three channels when the network wants colour.
"""

from __future__ import annotations

import os
import re
import struct

import cv2
import numpy as np

from darknetpy.errors import ImageError

MAX_PIXELS = 1 << 28
"""Larger pictures than this (268 megapixels) are refused before they are decoded."""
MAX_BYTES = 1 << 29
"""Nothing longer than this is read: it is no picture."""
_PNG, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"


def read_image(path: str | os.PathLike, channels: int = 3, opencv_grey: bool = False) -> np.ndarray:
    """A picture as uint8 (H, W, channels), RGB.

    With one channel, `opencv_grey` takes OpenCV's luma (as Darknet's training loader) instead of Darknet's own.

    Raises ImageError for a file that is missing, empty, cut off, too large or no picture.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ImageError(f"Cannot load image {name}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_BYTES:
        raise ImageError(f"Cannot load image {name}: the file is larger than {MAX_BYTES} bytes")
    return decode_image(data, channels, name, opencv_grey)


def decode_image(data: bytes, channels: int = 3, name: str = "image", opencv_grey: bool = False) -> np.ndarray:
    """As `read_image`, from the bytes of a file."""
    if not data:
        raise ImageError(f"Cannot load image {name}: the file is empty")
    size = declared_size(data)
    if size and size[0] * size[1] > MAX_PIXELS:
        raise ImageError(f"Cannot load image {name}: {size[0]} x {size[1]} pixels are more than {MAX_PIXELS} allowed")
    if _cut_off(data):
        raise ImageError(f"Cannot load image {name}: the file is cut off")
    try:
        flags = cv2.IMREAD_GRAYSCALE if channels < 3 and opencv_grey else cv2.IMREAD_COLOR
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise ImageError(f"Cannot load image {name}: {error.err}") from error
    if image is None:
        raise ImageError(f"Cannot load image {name}: it is no picture that OpenCV knows")
    if channels < 3:
        return image[:, :, None] if image.ndim == 2 else _grey(image)
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def _grey(image: np.ndarray) -> np.ndarray:
    """BGR to luma in Darknet's whole-number weights: (77 R + 150 G + 29 B) / 256, truncated."""
    b, g, r = (image[:, :, i].astype(np.uint16) for i in range(3))
    return ((77 * r + 150 * g + 29 * b) >> 8).astype(np.uint8)[:, :, None]


def load_image(path: str | os.PathLike, channels: int = 3) -> np.ndarray:
    """A picture as float32 (channels, H, W), RGB, 0..1 (Darknet: `load_image`)."""
    return to_planar(read_image(path, channels))


def to_planar(image: np.ndarray) -> np.ndarray:
    """uint8 (H, W, C) to float32 (C, H, W) in 0..1."""
    return np.ascontiguousarray(image.transpose(2, 0, 1), np.float32) / np.float32(255)


def to_bytes(image: np.ndarray) -> np.ndarray:
    """float (C, H, W) in 0..1 to uint8 (H, W, C), truncated as Darknet writes pictures."""
    return np.ascontiguousarray((np.clip(image, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0))


def _cut_off(data: bytes) -> bool:
    """A JPEG without its end marker or a PNG without its last chunk: decoders would fill the rest with grey."""
    if data[:2] == b"\xff\xd8":
        return b"\xff\xd9" not in data[-4096:] and b"\xff\xd9" not in data[len(data) // 2 :]
    return data[:8] == _PNG and not data.endswith(_PNG_END) and _PNG_END not in data


def declared_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) that a picture's header claims; None for a format that OpenCV itself must judge.

    PNG, JPEG, BMP, GIF, WebP, TIFF and the PNM family are known.
    """
    try:
        for start, read in _HEADERS.items():
            if data.startswith(start):
                return read(data)
    except (struct.error, IndexError):  # cut off inside its header
        return None
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Walk the markers of a JPEG to its frame header."""
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            h, w = struct.unpack(">HH", data[at + 5 : at + 9])
            return w, h
        at += (
            2 if marker in (0xFF, 0x01) or 0xD0 <= marker <= 0xD9 else 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
        )
    return None


def _bmp_size(data: bytes) -> tuple[int, int]:
    if struct.unpack_from("<I", data, 14)[0] == 12:  # OS/2
        return struct.unpack_from("<HH", data, 18)
    w, h = struct.unpack_from("<ii", data, 18)
    return abs(w), abs(h)


def _webp_size(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if data[8:12] != b"WEBP":
        return None
    if kind == b"VP8 ":
        w, h = struct.unpack_from("<HH", data, 26)
        return w & 0x3FFF, h & 0x3FFF
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return tuple(int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))


def _tiff_size(data: bytes) -> tuple[int, int] | None:
    """Tags 256 and 257 of the first directory."""
    order = "<" if data[:2] == b"II" else ">"
    at = struct.unpack_from(f"{order}I", data, 4)[0]
    found = {}
    for entry in range(struct.unpack_from(f"{order}H", data, at)[0]):
        tag, kind = struct.unpack_from(f"{order}HH", data, at + 2 + 12 * entry)
        if tag in (256, 257):
            found[tag] = struct.unpack_from(f"{order}{'H' if kind == 3 else 'I'}", data, at + 10 + 12 * entry)[0]
    return (found[256], found[257]) if len(found) == 2 else None


def _pnm_size(data: bytes) -> tuple[int, int] | None:
    match = re.match(rb"P[1-7fF](?:\s+|#[^\n]*\n|WIDTH)*(\d+)(?:\s+|#[^\n]*\n|HEIGHT)*(\d+)\s", data[:4096])
    return (int(match[1]), int(match[2])) if match else None


_HEADERS = {
    _PNG: lambda data: struct.unpack_from(">II", data, 16),
    b"\xff\xd8": _jpeg_size,
    b"BM": _bmp_size,
    b"GIF": lambda data: struct.unpack_from("<HH", data, 6),
    b"RIFF": _webp_size,
    b"II*\0": _tiff_size,
    b"MM\0*": _tiff_size,
    b"P": _pnm_size,
}
"""How the size stands in a format, by the first bytes of the file."""
