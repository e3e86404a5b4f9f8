"""YOLO `.yaml`: folders or lists of pictures and the names of classes; labels lie in Darknet's label files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from darknetpy.config.datafile import found_in, read_list
from darknetpy.data.sets.dataset import DataSet
from darknetpy.data.sets.yaml import read_yaml
from darknetpy.errors import DataError
from darknetpy.files import pictures_in

DESCRIPTIONS = ("data.yaml", "dataset.yaml", "data.yml")


def description(folder: Path) -> Path | None:
    """The `.yaml` of a folder that holds a data set."""
    return next((folder / name for name in DESCRIPTIONS if (folder / name).is_file()), None)


def open_file(path: Path, strict: bool = False) -> DataSet:
    """The data set that a `.yaml` describes with `path:`, `train:`, `val:` and `names:`.

    Raises MissingFileError, or DataError for a file that lacks one of them or whose pictures are not found.
    """
    content, name = read_yaml(path), os.fspath(path)
    names = _names(content, name)
    roots = _roots(content, path)
    if not content.get("train"):
        raise DataError("has no train:", file=name, remedy="add the folder or list of the pictures for training")
    keys = ["train", *[key for key in ("val", "valid", "test") if content.get(key)][:1]]
    found = [_pictures(content[key], roots, name, key) for key in keys]
    (train, _), valid = found[0], found[1][0] if len(found) > 1 else None
    return DataSet.of(name, strict, train, valid, dict(found), names)


def _names(content: dict[str, Any], file: str) -> list[str]:
    """Names from a list, or from a mapping of 0, 1, 2, ... to names."""
    given = content.get("names")
    if isinstance(given, dict):
        keys = {str(key).strip(): value for key, value in given.items()}
        missing = next((i for i in range(len(keys)) if str(i) not in keys), None)
        if missing is not None:
            raise DataError(f"names: has {len(keys)} entries, but no {missing}", file=file, remedy="count from 0 on")
        given = [keys[str(i)] for i in range(len(keys))]
    if not isinstance(given, list) or not given or not all(isinstance(name, str | int | float) for name in given):
        raise DataError("names: is neither a list nor a mapping of names", file=file, remedy="write names: [cat, dog]")
    count = content.get("nc")
    if count is not None and str(count).strip() != str(len(given)):
        raise DataError(f"has {len(given)} names", file=file, value=f"nc: {count}"[:40], remedy="make them equal")
    return [str(name).strip() for name in given]


def _roots(content: dict[str, Any], file: Path) -> list[Path]:
    """Folders in which the parts are looked for: `path:`, relative to the file or to the working directory."""
    beside, path = file.parent, content.get("path")
    if not isinstance(path, str) or not path:
        return [beside]
    inner = os.path.expanduser(path)
    return [beside / inner, Path(inner), beside]


def _pictures(value: Any, roots: list[Path], file: str, key: str) -> tuple[str, list[str]]:
    """A name for a part of the set, and its pictures: those of a folder, of a list, or of several of them."""
    parts = value if isinstance(value, list) else [value]
    places = []
    for part in parts:
        place = _place(str(part), roots)
        if place is None:
            raise DataError(
                f"{key}: names neither a folder nor a list", file=file, value=str(part)[:80],
                remedy=f"it is looked for in {' and '.join(dict.fromkeys(map(os.fspath, roots)))}",
            )  # fmt: skip
        places.append(place)
    pictures = [picture for place in places for picture in _inside(place)]
    if not pictures:
        raise DataError(f"{key}: has no picture", file=file, value=os.fspath(places[0]))
    return ", ".join(map(os.fspath, places)), pictures


def _place(part: str, roots: list[Path]) -> Path | None:
    """A part's folder or list. Exporters write `../train/images` for what lies beside the file: that works too."""
    inner = Path(os.path.expanduser(part))
    lower = Path(*[step for step in inner.parts if step != ".."]) if ".." in inner.parts else inner
    candidates = [root / shape for root in roots for shape in (inner, lower)]
    return next((place for place in candidates if place.exists()), None)


def _inside(place: Path) -> list[str]:
    """Pictures in and under a folder, sorted, or those of a list, which may be relative to it (`./images/...`)."""
    if place.is_file():
        entries = read_list(place)
        return found_in(entries, [os.fspath(place.parent)])
    return pictures_in(place)
