"""Label files: `class x y w h` in numbers relative to the picture (Darknet: `read_boxes`)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from darknetpy.config.datafile import label_path
from darknetpy.config.numbers import atoi
from darknetpy.data.notes import BAD_IMAGES, BAD_LABELS, append_line, say
from darknetpy.errors import DataError

if TYPE_CHECKING:
    from darknetpy.data.sets import Annotations

MAX_BYTES = 16 << 20
"""A label file longer than this (some 400 000 boxes) is something else."""
TRACKS = 4000
"""Track ids of a file begin at a multiple of this, and there are so many multiples."""

_BLANK = rb"[ \t\n\v\f\r]*"
_INT = re.compile(_BLANK + rb"([+-]?[0-9]+)")
_FLOAT = re.compile(_BLANK + rb"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_LARGEST = float(np.finfo(np.float32).max)

Record = tuple[int, float, float, float, float]


@dataclass
class Labels:
    """Boxes of one picture: `boxes` (N, 4) x, y, w, h; `classes` (N,); `tracks` (N,) ids. All float32 but classes."""

    boxes: np.ndarray
    classes: np.ndarray
    tracks: np.ndarray
    path: str = ""

    def __len__(self) -> int:
        return len(self.classes)


def empty_labels(path: str = "") -> Labels:
    return Labels(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32), path)


def labels_of(image: str, strict: bool = False, annotations: Annotations | None = None) -> Labels:
    """The labels of a picture, from `annotations` if it is there, else from its label file.

    A missing file, or one that is none, is said, noted in `bad.list`, and has no boxes. A side longer than the picture
    is said and noted in `bad_label.list` (Darknet: only in `calc_anchors`), and kept: the box is clipped in training.
    """
    if annotations is not None and image in annotations:
        return annotations.labels(image)
    path = _place(image, strict)
    try:
        labels = read_labels(path, strict)
        if not strict:
            _report_long(labels)
        return labels
    except OSError:
        say(f"Can't open label file. (This can be normal only if you use MSCOCO): {path} ")
    except DataError as error:
        say(str(error))
    append_line(BAD_IMAGES, path)
    return empty_labels(path)


def _place(image: str, strict: bool) -> str:
    """Where a picture's label file lies; that this isn't where Darknet looks is said once a run."""
    darknets = label_path(image, strict, existing=False)
    path = darknets if strict or os.path.exists(darknets) else label_path(image)
    if path != darknets:
        say(
            f"labels are read from places like {path}, because {darknets}, where Darknet looks, doesn't exist",
            once="label files elsewhere",
        )
    return path


def within(labels: Labels) -> Labels:
    """Without boxes whose centre lies outside the picture; each is said and noted in `bad_label.list`."""
    centres = labels.boxes[:, :2]
    outside = ((centres < 0) | (centres > 1)).any(1)
    if not outside.any():
        return labels
    for x, y in centres[outside].tolist():
        wrong_annotation(labels.path, f"x = {x:f}, y = {y:f}")
    kept = ~outside
    return Labels(labels.boxes[kept], labels.classes[kept], labels.tracks[kept], labels.path)


def _report_long(labels: Labels) -> None:
    for axis, side in ((2, "w"), (3, "h")):
        for value in labels.boxes[labels.boxes[:, axis] > 1, axis].tolist():
            wrong_annotation(labels.path, f"{side} = {value:f}")


def wrong_annotation(path: str, text: str, listed: str | None = None) -> None:
    """Darknet's sentence for the user and its line for the list, which differ in one case."""
    say(f" Wrong annotation: {text}, file: {path} ")
    append_line(BAD_LABELS, f"{path} Wrong annotation: {listed or text}")


def read_labels(path: str, strict: bool = False) -> Labels:
    """Read a label file.

    Strict reads a stream of `%d %f %f %f %f` up to the first record that doesn't parse, whatever the lines. The
    default reads line by line and leaves out lines that aren't five numbers; both say so.
    Raises OSError for a file that cannot be read, or DataError for one that is no label file.
    """
    if os.path.isdir(path):
        raise DataError("is a folder, not a label file", file=path)
    with open(path, "rb") as stream:
        data = stream.read(min(MAX_BYTES, os.fstat(stream.fileno()).st_size or MAX_BYTES) + 1)
        if len(data) > MAX_BYTES or stream.read(1):
            raise DataError(f"is longer than {MAX_BYTES >> 20} MiB, which no label file is", file=path)
    if strict:
        _by_line(data, path, "is read as Darknet does, which shifts the numbers behind it")
        records = _stream(data)
    else:
        records = _by_line(_decoded(data, path), path, "is left out")
    if not records:
        return empty_labels(path)
    numbers = np.array(records, np.float64)
    with np.errstate(over="ignore"):
        boxes = numbers[:, 1:].astype(np.float32)
    return Labels(boxes, numbers[:, 0].astype(np.int64), track_ids(path, len(records)), path)


def _decoded(data: bytes, path: str) -> bytes:
    """Plain bytes of a text file, whatever its byte order mark says. Raises DataError for a binary file."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace").encode()
    if b"\0" in data:
        raise DataError("is not a text file", file=path)
    return data.removeprefix(b"\xef\xbb\xbf")


def _stream(data: bytes) -> list[Record]:
    """Records as `fscanf` takes them: each conversion takes all it can and never gives anything back."""
    records, at = [], 0
    while True:
        record = []
        for kind in (_INT, _FLOAT, _FLOAT, _FLOAT, _FLOAT):
            match = kind.match(data, at)
            if not match:
                return records
            at = match.end()
            record.append(float(match[1]) if record else atoi(match[1].decode()))
        records.append(tuple(record))


def _by_line(data: bytes, path: str, verdict: str) -> list[Record]:
    """Records of the lines that have five numbers; of the others one sentence tells."""
    records, odd = [], []
    for number, line in enumerate(data.splitlines(), 1):
        parts = line.split()
        if not parts:
            continue
        record = _record(parts)
        if record:
            records.append(record)
        else:
            odd.append((number, line))
    if odd:
        number, line = odd[0]
        shown = line.strip()[:60].decode("utf-8", "backslashreplace")
        more = f" (and {len(odd) - 1} more lines)" if len(odd) > 1 else ""
        say(f"{path}, line {number}: `{shown}` is not `class x y w h` and {verdict}{more}")
    return records


def _record(parts: list[bytes]) -> Record | None:
    """Five finite numbers of which the first is whole (`1` or `1.0`), or None."""
    if len(parts) != 5 or not all(_FLOAT.fullmatch(part) for part in parts):
        return None
    label, *box = (float(part) for part in parts)
    if label != int(min(max(label, -(2**31)), 2**31 - 1)) or any(abs(value) > _LARGEST for value in box):
        return None
    return int(label), *box


def track_ids(path: str, count: int) -> np.ndarray:
    """Ids that hardly any two files share: from djb2 of the path in 64 bits."""
    value = 5381
    for byte in os.fsencode(path):
        value = (value * 33 + byte) & 0xFFFFFFFFFFFFFFFF
    return (np.arange(count) + value % TRACKS * TRACKS).astype(np.float32)
