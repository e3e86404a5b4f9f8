"""Detections as Darknet's text, JSON and label files."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING

from darknetpy.assets import locate
from darknetpy.config.datafile import label_path
from darknetpy.detections import Detections
from darknetpy.errors import DataError, UsageError
from darknetpy.files import atomic_write, writable_folder
from darknetpy.images import save_image

if TYPE_CHECKING:
    import numpy as np

JSON_THRESH = 0.005
"""A class is written to JSON above this; boxes were filtered by the command's own threshold before."""


def detection_lines(found: Detections, ext_output: bool = False) -> list[str]:
    """The lines of `detector test`: boxes by their left edge, best class first, then each further class.

    With `ext_output` a bracket with pixel values follows, rounded and not clamped.
    """
    best, ids = found.best()
    left = found.boxes[:, 0] - found.boxes[:, 2] / 2
    pixels = found.to_pixels().boxes.tolist()
    lines = []
    for i in left.argsort(stable=True).tolist():
        if best[i] <= 0:
            continue
        others = [k for k in found.probs[i].nonzero().flatten().tolist() if k != int(ids[i]) and not found.hidden(k)]
        for k in (int(ids[i]), *others):
            tail = f"\t{_bracket(*pixels[i])}" if ext_output else ""
            lines.append(f"{found.name(k)}: {float(found.probs[i, k]) * 100:.0f}%{tail}")
    return lines


def _bracket(x: float, y: float, w: float, h: float) -> str:
    return f"(left_x: {x - w / 2:4.0f}   top_y: {y - h / 2:4.0f}   width: {w:4.0f}   height: {h:4.0f})"


def frame_lines(found: Detections, ext_output: bool = False) -> list[str]:
    """The object lines of `detector demo`: in the order of NMS, all classes of a box on one line.

    With `ext_output` a bracket follows whose left and top are whole pixels inside the frame.
    """
    lines = []
    for i, (x, y, w, h) in enumerate(found.to_pixels().boxes.tolist()):
        classes = [k for k in found.probs[i].nonzero().flatten().tolist() if not found.hidden(k)]
        if not classes or not all(map(math.isfinite, (x, y, w, h))):
            continue
        text = ", ".join(f"{found.name(k)}: {float(found.probs[i, k]) * 100:.0f}% " for k in classes)
        left, top = max(0, int(x - w / 2)), max(0, int(y - h / 2))
        lines.append(f"{text}\t{_bracket(left + w / 2, top + h / 2, w, h)}" if ext_output else text)
    return lines


def json_frame(found: Detections, frame_id: int, filename: str | None = None) -> str:
    """One frame as Darknet's JSON object; `found` must be relative to its picture."""
    head = [f' "frame_id":{frame_id}, ']
    if filename is not None:
        head.append(f' "filename":{json.dumps(filename, ensure_ascii=False)}, ')
    return "\n".join(["{", *head, ' "objects": [ ', ", \n".join(json_objects(found)), " ] ", "}"])


def json_objects(found: Detections) -> list[str]:
    """One JSON object a (box, class), in the order of the boxes. JSON has no number for a box that is not finite."""
    rows = []
    for i, (x, y, w, h) in enumerate(found.boxes.tolist()):
        if not all(map(math.isfinite, (x, y, w, h))):
            continue
        for k in found.probs[i].nonzero().flatten().tolist():
            confidence = float(found.probs[i, k])
            if confidence > JSON_THRESH and not found.hidden(k):
                where = f'"center_x":{x:f}, "center_y":{y:f}, "width":{w:f}, "height":{h:f}'
                name = json.dumps(found.name(k), ensure_ascii=False)
                rows.append(
                    f'  {{"class_id":{k}, "name":{name}, "relative_coordinates":{{{where}}}, '
                    f'"confidence":{confidence:f}}}'
                )
    return rows


class JsonWriter:
    """The `-out` file: an array of frames. It is a whole JSON document whenever the program lets go of it.

    Raises UsageError if the file cannot be created.
    """

    def __init__(self, path: str | os.PathLike):
        try:
            self._stream = open(path, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise UsageError(f"{os.fspath(path)} cannot be written: {error.strerror}") from error
        self._stream.write("[\n")
        self._frames = 0

    def write(self, found: Detections, filename: str | None = None) -> None:
        """Add a frame; `found` must be relative to its picture."""
        self._frames += 1
        self._stream.write((", \n" if self._frames > 1 else "") + json_frame(found, self._frames, filename))
        self._stream.flush()

    def __enter__(self) -> JsonWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.write("\n]")
        self._stream.close()


class Drawings:
    """A folder for pictures with their boxes, `NAME.jpg` for each; of equal names the later ones get a number.

    Raises DataError if the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = writable_folder(folder, remedy="choose another -out_dir")
        self._names: Counter[str] = Counter()

    def write(self, drawn: np.ndarray, image: str | os.PathLike) -> str:
        """Save what was drawn, uint8 (H, W, 3) RGB; returns where. Raises DataError where `image` itself lies."""
        stem = os.path.splitext(os.path.basename(os.fspath(image)))[0]
        self._names[stem] += 1
        path = os.path.join(self.folder, f"{stem}_{self._names[stem]}.jpg" if self._names[stem] > 1 else f"{stem}.jpg")
        if os.path.exists(path) and os.path.samefile(path, locate(image)):
            raise DataError("would be written over by its own boxes", file=path, remedy="choose another -out_dir")
        save_image(path, drawn)
        return path


def label_lines(found: Detections) -> list[str]:
    """`class x y w h` of each box's best class, relative, four decimals."""
    best, ids = found.best()
    return [
        f"{int(ids[i])} {x:2.4f} {y:2.4f} {w:2.4f} {h:2.4f}"
        for i, (x, y, w, h) in enumerate(found.boxes.tolist())
        if best[i] > 0 and all(map(math.isfinite, (x, y, w, h)))
    ]


def save_labels(found: Detections, image: str | os.PathLike) -> str:
    """Write the label file of `image` (its path by Darknet's rule); returns where."""
    path = label_path(os.fspath(image), existing=False)
    with atomic_write(path) as stream:
        stream.write("".join(f"{line}\n" for line in label_lines(found)).encode())
    return path
