"""Label files: `class x y w h` in numbers relative to the picture (Darknet: `read_boxes`)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import numpy as np

from darknetpy.config.datafile import label_path
from darknetpy.errors import DataError, warn

MAX_BYTES = 64 << 20
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RECORD = re.compile(rf"\s*([+-]?\d+)\s*({_NUMBER})\s*({_NUMBER})\s*({_NUMBER})\s*({_NUMBER})")
_FIELDS = re.compile(rf"\s*{_NUMBER}(?:\s+{_NUMBER}){{4}}\s*")


@dataclass
class Labels:
    """Boxes of one picture: `boxes` (N, 4) x, y, w, h; `classes` (N,); `tracks` (N,) ids. All float32 but classes."""

    boxes: np.ndarray
    classes: np.ndarray
    tracks: np.ndarray

    def __len__(self) -> int:
        return len(self.classes)


def empty_labels() -> Labels:
    return Labels(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32))


def labels_of(image: str, strict: bool = False, remember: bool = True) -> Labels:
    """The labels of a picture; a missing file is said, noted in `bad.list`, and means no objects."""
    path = label_path(image, strict)
    try:
        return read_labels(path, strict)
    except FileNotFoundError:
        warn(f"Can't open label file. (This can be normal only if you use MSCOCO): {path} ")
        if remember:
            append_line("bad.list", path)
        return empty_labels()


def read_labels(path: str, strict: bool = False) -> Labels:
    """Read a label file.

    Strict reads a stream of `%d %f %f %f %f` up to the first record that doesn't parse, whatever the lines. The
    default reads line by line and warns of every line that has not five numbers.
    Raises FileNotFoundError, or DataError for a file that is no label file.
    """
    if os.path.isdir(path):
        raise DataError("is a folder, not a label file", file=path)
    if os.path.getsize(path) > MAX_BYTES:
        raise DataError(f"is {os.path.getsize(path)} bytes long, which no label file is", file=path)
    with open(path, encoding="utf-8-sig" if not strict else "utf-8", errors="replace") as stream:
        text = stream.read()
    records = _stream(text) if strict else _by_line(text, path)
    if not records:
        return empty_labels()
    numbers = np.array(records, np.float64)
    first = (_djb2(path) % 4000) * 4000
    tracks = (np.arange(len(records)) + first).astype(np.float32)
    return Labels(numbers[:, 1:].astype(np.float32), numbers[:, 0].astype(np.int64), tracks)


def _stream(text: str) -> list[tuple]:
    records, at = [], 0
    while match := _RECORD.match(text, at):
        records.append(tuple(float(part) for part in match.groups()))
        at = match.end()
    return records


def _by_line(text: str, path: str) -> list[tuple]:
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if _FIELDS.fullmatch(line):
            records.append(tuple(float(part) for part in line.split()))
        else:
            warn(f"{path}, line {number}: `{line.strip()[:60]}` is not `class x y w h` and is left out")
    return records


def _djb2(text: str) -> int:
    value = 5381
    for byte in os.fsencode(text):
        value = (value * 33 + byte) & 0xFFFFFFFFFFFFFFFF
    return value


_WRITTEN: set[tuple[str, str]] = set()


def append_line(name: str, line: str) -> None:
    """Add a line to `bad.list` or `bad_label.list` in the working directory, once for each process."""
    if (name, line) in _WRITTEN:
        return
    _WRITTEN.add((name, line))
    try:
        with open(name, "a", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(f"{line}\n")
    except OSError as error:
        warn(f"{name} cannot be written: {error.strerror}")
