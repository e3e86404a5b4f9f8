"""Detections as the result files that benchmarks read (Darknet: `print_cocos`, `print_detector_detections`, ...).

Each format is one function from `Found` to files; which values it clips, and where it counts from, is the format's own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from darknetpy.errors import DataError
from darknetpy.files import atomic_write

# The 80 trained classes in the numbering of the 2014 annotations, which has holes.
COCO_IDS = tuple(i for i in range(1, 91) if i not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
BDD_NAMES = ("bike", "bus", "car", "motor", "person", "rider", "traffic light", "traffic sign", "train", "truck")
KITTI_NAMES = ("car", "pedestrian", "cyclist")


@dataclass
class Found:
    """All (box, class) pairs of a list of pictures, in Darknet's order.

    Attributes:
        paths: pictures; sizes: (P, 2) their width and height.
        image: (N,) row in `paths`; class_id: (N,); prob: (N,).
        corners: (N, 4) left, top, right, bottom in pixels, not clipped.
        names: class names.
    """

    paths: Sequence[str]
    sizes: np.ndarray
    image: np.ndarray
    class_id: np.ndarray
    prob: np.ndarray
    corners: np.ndarray
    names: Sequence[str]

    def clipped(self, low: float, shift: float = 0.0) -> np.ndarray:
        """Corners moved by `shift`, left and top not under `low`, right and bottom not over the picture's size."""
        corners = self.corners + np.float32(shift)
        corners[:, :2] = np.maximum(corners[:, :2], np.float32(low))
        corners[:, 2:] = np.minimum(corners[:, 2:], self.sizes[self.image].astype(np.float32))
        return corners


def image_name(path: str) -> str:
    """File name up to its first dot (Darknet: `basecfg`)."""
    return os.path.basename(path.replace("\\", "/")).split(".", 1)[0]


def coco_image_id(path: str) -> int:
    """The number a file name begins with, else the digits behind its last underscore, else 0."""
    name = image_name(path)
    digits = re.match(r"\d+", name) or re.search(r"(?<=_)\d+$", name)
    return int(digits[0]) if digits else 0


def coco_category(class_id: int) -> int:
    """COCO's number of a class; classes behind the 80 known ones go on counting from 91."""
    return COCO_IDS[class_id] if class_id < len(COCO_IDS) else class_id + 11


def write_coco(found: Found, folder: str, out: str) -> list[str]:
    """`OUT.json`: boxes as x, y, width, height from 0, clipped to the picture."""
    ids = [coco_image_id(path) for path in found.paths]
    corners = found.clipped(0)
    sizes = corners[:, 2:] - corners[:, :2]
    lines = [
        f'{{"image_id":{ids[image]}, "category_id":{coco_category(class_id)}, '
        f'"bbox":[{x:f}, {y:f}, {w:f}, {h:f}], "score":{prob:f}}}'
        for image, class_id, prob, (x, y), (w, h) in _rows(found, corners[:, :2], sizes)
    ]
    return [_write(folder, f"{out}.json", _json_array(lines))]


def write_voc(found: Found, folder: str, out: str) -> list[str]:
    """`OUT<class>.txt` for every class: corners counted from 1."""
    ids = [image_name(path) for path in found.paths]
    files = [f"{out}{_file_part(name)}.txt" for name in found.names]
    lines: dict[str, list[str]] = {file: [] for file in files}  # classes of one name share a file
    for image, class_id, prob, (left, top, right, bottom) in _rows(found, found.clipped(1, shift=1)):
        lines[files[class_id]].append(f"{ids[image]} {prob:f} {left:f} {top:f} {right:f} {bottom:f}\n")
    return [_write(folder, file, "".join(rows)) for file, rows in lines.items()]


def write_imagenet(found: Found, folder: str, out: str) -> list[str]:
    """`OUT.txt`: number of the picture and of the class, both from 1, then probability and corners."""
    lines = [
        f"{image + 1} {class_id + 1} {prob:f} {left:f} {top:f} {right:f} {bottom:f}\n"
        for image, class_id, prob, (left, top, right, bottom) in _rows(found, found.clipped(0))
    ]
    return [_write(folder, f"{out}.txt", "".join(lines))]


def write_bdd(found: Found, folder: str, out: str) -> list[str]:
    """`OUT.json`: picture's file name, name of the class, corners."""
    names = BDD_NAMES if len(found.names) == len(BDD_NAMES) else found.names
    files = [json.dumps(os.path.basename(path), ensure_ascii=False) for path in found.paths]
    kinds = [json.dumps(name, ensure_ascii=False) for name in names]
    lines = [
        f'\t{{\n\t\t"name":{files[image]},\n\t\t"category":{kinds[class_id]},\n'
        f'\t\t"bbox":[{left:f}, {top:f}, {right:f}, {bottom:f}],\n\t\t"score":{prob:f}\n\t}}'
        for image, class_id, prob, (left, top, right, bottom) in _rows(found, found.clipped(0))
    ]
    return [_write(folder, f"{out}.json", _json_array(lines))]


def write_kitti(found: Found, folder: str, out: str) -> list[str]:
    """`OUT/data/<id>.txt`, one for each picture: KITTI's 16 columns, unknown ones as placeholders."""
    names = KITTI_NAMES if len(found.names) == len(KITTI_NAMES) else found.names
    kinds = [name.replace(" ", "_") for name in names]
    lines: list[list[str]] = [[] for _ in found.paths]
    for image, class_id, prob, (left, top, right, bottom) in _rows(found, found.clipped(0)):
        box = f"{left:f} {top:f} {right:f} {bottom:f}"
        lines[image].append(f"{kinds[class_id]} 0 0 0 {box} -1 -1 -1 -1 0 0 0 {prob:f}\n")
    folder = os.path.join(folder, out, "data")
    os.makedirs(folder, exist_ok=True)
    files = [f"{image_name(path)}.txt" for path in found.paths]
    return [_write(folder, name, "".join(rows)) for name, rows in zip(files, lines, strict=True)]


@dataclass(frozen=True)
class Format:
    """A kind of result file: what writes it and how it is called unless `-out` says otherwise."""

    write: Callable[[Found, str, str], list[str]]
    default: str


FORMATS = {
    "voc": Format(write_voc, "comp4_det_test_"),
    "coco": Format(write_coco, "coco_results"),
    "imagenet": Format(write_imagenet, "imagenet-detection"),
    "bdd": Format(write_bdd, "bdd_results"),
    "kitti": Format(write_kitti, "kitti_results"),
}
"""By the word after `eval=`; an unknown word means voc."""


def _rows(found: Found, *columns: np.ndarray) -> Iterable[tuple]:
    return zip(
        found.image.tolist(), found.class_id.tolist(), found.prob.tolist(), *(c.tolist() for c in columns), strict=True
    )


def _json_array(objects: Sequence[str]) -> str:
    return "[\n" + ",\n".join(objects) + "\n]\n" if objects else "[]\n"


def _file_part(name: str) -> str:
    """A class name as part of a file name: it must not lead into another folder."""
    return re.sub(r"[/\\\0]", "_", name)


def _write(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    try:
        with atomic_write(path) as stream:
            stream.write(text.encode("utf-8", errors="surrogateescape"))
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror}", file=path) from error
    return path
