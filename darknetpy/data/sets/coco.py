"""COCO: one JSON file of pictures, boxes in pixels, and categories for each part of the data set."""

from __future__ import annotations

import gc
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from darknetpy.config.datafile import found_in
from darknetpy.data.sets.annotations import Annotations, Oddities, by_image
from darknetpy.data.sets.dataset import DataSet
from darknetpy.errors import DataError, MissingFileError, logger

MAX_BYTES = 2 << 30
"""A longer file is no COCO file of this world (that of 2017 has 470 MB)."""
LONG = 32 << 20
"""Reading more than this takes so long that it is said."""
MAX_WHOLE = 1 << 53
FAR = 1e9
"""No pixel lies as far out."""
ROBOFLOW = "_annotations.coco.json"
VALID = (("train", "val"), ("train", "valid"), ("Train", "Val"), ("train", "test"))


@dataclass
class _File:
    """A JSON file of which the outline has been checked; categories are (id, name, supercategory)."""

    path: Path
    images: list[dict]
    annotations: list[dict]
    categories: list[tuple[int, str, str]]


def train_file(folder: Path) -> Path | None:
    """The JSON file of a folder in COCO's layout, preferably that for training."""
    places = [folder / "train" / ROBOFLOW, folder / ROBOFLOW]
    found = [place for place in places if place.is_file()]
    found += sorted(folder.glob("annotations/instances_*.json")) or sorted(folder.glob("annotations/*.json"))
    found = found or sorted(folder.glob("instances_*.json"))
    return next((path for path in found if "train" in str(path.relative_to(folder))), next(iter(found), None))


def open_file(path: Path, strict: bool = False) -> DataSet:
    """The data set of a JSON file; that for validation is found by its name (`train` becomes `val`).

    Categories become classes 0, 1, ... in the order of their ids. Crowds are left out.
    Raises MissingFileError, or DataError for a file that is no COCO file or whose pictures are not found.
    """
    name, file = os.fspath(path), _load(path)
    names = _class_names(file)
    train, boxes = _read(file, names)
    lists, valid = {name: train}, validation_file(path)
    if valid:
        lists[os.fspath(valid)], more = _read(_load(valid), names, named_by=name)
        boxes.update(more)
    return DataSet.of(name, strict, name, os.fspath(valid) if valid else None, lists, names, boxes)


def validation_file(path: Path) -> Path | None:
    """`instances_val2017.json` for `instances_train2017.json`, `valid/x.json` for `train/x.json`; None without one."""
    text = os.fspath(path.absolute())
    for old, new in VALID:
        head, found, tail = text.rpartition(old)
        if found and os.path.isfile(other := f"{head}{new}{tail}"):
            return Path(os.path.relpath(other)) if not path.is_absolute() else Path(other)
    return None


# --- the file ----------------------------------------------------------------------------------------------------


def _load(path: Path) -> _File:
    name = os.fspath(path)
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DataError(f"is longer than {MAX_BYTES >> 30} GiB, which no COCO file is", file=name)
        if size > LONG:
            logger.info(f"reading {name} ({size >> 20} MiB) ...")
        with _without_collector():
            content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise MissingFileError(name) from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", file=name) from error
    except json.JSONDecodeError as error:
        raise DataError(f"is no JSON: {error.msg}", file=name, line=error.lineno, remedy="save it again") from error
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DataError(f"is no JSON that can be read: {error}"[:200], file=name, remedy="save it again") from error
    return _outline(name, path, content)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Python's collector goes through all objects again and again while millions are made, none of which is garbage."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _outline(name: str, path: Path, content: Any) -> _File:
    for key in ("images", "annotations", "categories"):
        part = content.get(key) if isinstance(content, dict) else None
        if not isinstance(part, list) or not all(isinstance(entry, dict) for entry in part):
            raise DataError(
                f"is no COCO file of objects: `{key}` is not a list of objects", file=name,
                remedy="give the file whose name begins with instances_",
            )  # fmt: skip
    categories = []
    for number, entry in enumerate(content["categories"]):
        number_id, label = _whole(entry.get("id")), entry.get("name")
        if number_id is None or not isinstance(label, str) or not label.strip():
            raise DataError(
                f"categories[{number}] needs an `id` and a `name`", file=name, value=str(entry)[:60], remedy="add them"
            )
        categories.append((number_id, label.strip(), str(entry.get("supercategory"))))
    if not categories or not content["images"]:
        raise DataError("has no images or no categories", file=name, remedy="give the file of another part")
    return _File(path, content["images"], content["annotations"], sorted(categories))


def _class_names(file: _File) -> list[str]:
    """Names by ascending id. A category without boxes that merely groups others (as exporters add) is none."""
    used = {_whole(entry.get("category_id")) for entry in file.annotations}
    groups = {group for _, name, group in file.categories if group != name}
    kept = [name for number, name, _ in file.categories if number in used or name not in groups]
    return list(dict.fromkeys(kept))


def _read(file: _File, names: list[str], named_by: str = "") -> tuple[list[str], Annotations]:
    """Image paths and their boxes."""
    name, odd = os.fspath(file.path), Oddities(os.fspath(file.path))
    numbers, sizes, entries = _images(file, odd)
    paths = _located(file, entries)
    index = {label: i for i, label in enumerate(names)}
    classes = {number: index.get(label, -1) for number, label, _ in file.categories}
    boxes = np.zeros((len(file.annotations), 5))
    which = np.full(len(file.annotations), -1)
    crowds = 0
    for row, entry in enumerate(file.annotations):
        if entry.get("iscrowd"):
            crowds += 1
            continue
        here = f"annotations[{row}]"
        image, label = numbers.get(_whole(entry.get("image_id"))), classes.get(_whole(entry.get("category_id")))
        box = _box(entry.get("bbox"))
        if image is None:
            odd.see("boxes of a picture that `images` lacks are left out", f"{here}: image_id {entry.get('image_id')}")
        elif label is None:
            odd.see("boxes of an unknown category are left out", f"{here}: category_id {entry.get('category_id')}")
        elif label < 0:
            raise DataError(
                f"{here} has a category that {named_by or name} doesn't name", file=name,
                value=entry.get("category_id"), remedy="make the categories of both files equal",
            )  # fmt: skip
        elif box is None:
            odd.see("boxes that are not four numbers are left out", f"{here}: {str(entry.get('bbox'))[:60]}")
        else:
            which[row], boxes[row] = image, (label, *box)
    odd.see("crowds (iscrowd=1) are left out", count=crowds)
    odd.tell()
    kept = which >= 0
    boxes, which = boxes[kept], which[kept]
    pixels = np.array(sizes, float).reshape(-1, 2)[which]
    boxes[:, 1:3] = (boxes[:, 1:3] + boxes[:, 3:5] / 2) / pixels
    boxes[:, 3:5] /= pixels
    return paths, Annotations(by_image(paths, which, boxes))


def _images(file: _File, odd: Oddities) -> tuple[dict[int, int], list[tuple[int, int]], list[str]]:
    """Position by id, sizes and file names of the usable pictures; a repeated name is one picture."""
    numbers: dict[int, int] = {}
    sizes: list[tuple[int, int]] = []
    entries: dict[str, int] = {}
    for row, entry in enumerate(file.images):
        number, path = _whole(entry.get("id")), entry.get("file_name")
        size = _whole(entry.get("width")), _whole(entry.get("height"))
        if number is None or not isinstance(path, str) or not path.strip() or "\0" in path:
            odd.see("pictures without `id` or `file_name` are left out", f"images[{row}]")
        elif not all(side and side > 0 for side in size):
            odd.see("pictures without `width` and `height` are left out", f"images[{row}]: {path[:60]}")
        else:
            if path not in entries:
                entries[path] = len(sizes)
                sizes.append(size)
            numbers[number] = entries[path]
    if not entries:
        odd.tell()
        raise DataError(
            "has no picture with id, file_name, width and height", file=os.fspath(file.path), remedy="add them"
        )
    return numbers, sizes, list(entries)


def _located(file: _File, entries: list[str]) -> list[str]:
    """The pictures, wherever COCO's users keep them: in a folder named as the file's part or `images`, or beside it."""
    beside = file.path.parent
    part = re.sub(r"^(instances|person_keypoints|captions|annotations|_annotations)?_?|\.coco$", "", file.path.stem)
    folders = [root / sub for root in (beside, beside.parent) for sub in ("", part, "images", f"images/{part}")]
    paths = found_in(entries, [os.fspath(folder) for folder in folders])
    if not any(os.path.exists(path) for path in paths):
        raise DataError(
            f"none of its {len(paths)} pictures is found", file=os.fspath(file.path), value=entries[0][:80],
            remedy=f"put them into {beside.parent / 'images'} or {beside.parent / (part or 'images')}",
        )  # fmt: skip
    return paths


def _box(value: Any) -> tuple[float, ...] | None:
    """x, y, width, height in pixels, or None."""
    if not isinstance(value, list) or len(value) != 4:
        return None
    x, y, w, h = value
    try:  # comparing is also false for NaN
        usable = -FAR < x < FAR and -FAR < y < FAR and -FAR < w < FAR and -FAR < h < FAR
    except TypeError:
        return None
    return (x, y, w, h) if usable else None


def _whole(value: Any) -> int | None:
    """A whole number that JSON may have as 5, 5.0 or "5"; None for anything else."""
    if type(value) is int and -MAX_WHOLE < value < MAX_WHOLE:
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) < 16:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MAX_WHOLE:
        return None
    return int(value) if value == int(value) else None
