"""`.data` files, name files, image lists, and where an image's labels lie (Darknet: `read_data_cfg`, `get_paths`)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from darknetpy.assets import locate
from darknetpy.config.numbers import atoi
from darknetpy.errors import DataError, MissingFileError, closest, warn

MAX_BYTES = 1 << 30
"""A list, names or `.data` file larger than this is something else."""

KEYS = (
    "classes", "train", "valid", "names", "backup", "results", "difficult", "eval", "map", "labels", "leaves",
    "top", "saveweights", "savelast",
)  # fmt: skip
"""What commands look up. Other keys are nobody's business, unless they look like one of these."""

_PIPE_BYTES = 64 << 20
"""Most that is read of what has no size of its own: a pipe, a device."""
_SHORT = 4
"""A label path of no more characters than this is no path."""
_SAMPLE = 4
"""Entries of one folder by which it is judged where the folder lies."""

_FOLDERS = [
    ("/images/train2017/", "/labels/train2017/"),
    ("/images/val2017/", "/labels/val2017/"),
    ("/JPEGImages/", "/labels/"),
    ("\\images\\train2017\\", "\\labels\\train2017\\"),
    ("\\images\\val2017\\", "\\labels\\val2017\\"),
    ("\\images\\train2014\\", "\\labels\\train2014\\"),
    ("\\images\\val2014\\", "\\labels\\val2014\\"),
    ("/images/train2014/", "/labels/train2014/"),
    ("/images/val2014/", "/labels/val2014/"),
    ("\\JPEGImages\\", "\\labels\\"),
]
_SUFFIXES = [".jpg", ".JPG", ".jpeg", ".JPEG", ".png", ".PNG", ".bmp", ".BMP", ".ppm", ".PPM", ".tiff", ".TIFF"]


@dataclass
class DataConfig:
    """The keys of a `.data` file.

    Attributes:
        path: the file; `folder` is where relative paths are looked for when the working directory lacks them.
        values: all keys as text, first occurrence.
    """

    path: str
    strict: bool = False
    values: dict[str, str | None] = field(default_factory=dict)
    _defaults: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)

    def get(self, key: str, default: str | None = None) -> str | None:
        """The text of a key, or the default, which is said once as Darknet does."""
        value = self.values.get(key)
        if value is None and default is not None and key not in self._defaults:
            self._defaults[key] = default
            warn(f"{key}: Using default '{default}'")
        return default if value is None else value

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def number(self, key: str, default: int) -> int:
        """A key that holds a whole number."""
        return atoi(self.get(key, str(default)) or "")

    def file(self, key: str, default: str | None = None) -> str | None:
        """A key that names a file: as it is, or beside the `.data` file, or packaged."""
        value = self.get(key, default)
        return None if value is None else resolve(value, self.folder, self.strict)

    @property
    def annotations(self) -> Any:
        """Boxes that do not lie in label files (`data.sets.Annotations`), None for a `.data` file."""
        return None

    def listed(self, path: str) -> list[str]:
        """Image paths of a list that one of the keys names; see `read_list`."""
        return self._read(path, lambda: read_list(path, self.folder))

    def class_names(self) -> list[str]:
        """Names of the classes; see `read_names`."""
        return self._read(self.names, lambda: read_names(self.names))

    def check_classes(self, names: Sequence[str], classes: int, cfg: str, file: str | None = None) -> None:
        """Raise DataError unless a network with so many classes has a name for each; `file`: of names, if another."""
        if len(names) != classes:
            wrong = f"{len(names)} names, but classes={classes} in {cfg}"
            raise DataError(wrong, file=file or self.names, remedy="make them equal")
        self.compare_classes(classes, cfg)

    def compare_classes(self, classes: int, cfg: str) -> None:
        """Say that `classes=` is not a network's; nothing here depends on it."""
        if not self.strict and self.has("classes") and self.number("classes", classes) != classes:
            warn(f"{self.path}: classes={self.get('classes')}, but classes={classes} in {cfg}; make them equal")

    def _read(self, path: str, read: Callable[[], list[str]]) -> list[str]:
        """What a file holds; that it is missing is said with the key that names it."""
        try:
            return read()
        except MissingFileError as error:
            keys = [key for key in self.values if self.has(key) and self.file(key) == path]
            missing = [key for key in self._defaults if self.file(key, self._defaults[key]) == path]
            if not keys and not missing:
                raise
            remedy = f"{keys[0]}= in {self.path} names it" if keys else f"{self.path} has no {missing[0]}="
            raise MissingFileError(error.path, remedy=remedy) from error

    @property
    def train(self) -> str:
        return self.file("train", "data/train.txt") or ""

    @property
    def names(self) -> str:
        return self.file("names", "data/names.list") or ""

    @property
    def backup(self) -> str:
        return self.get("backup", "/backup/") or ""

    @property
    def results(self) -> str:
        return self.get("results", "results") or ""

    def valid(self, default: str | None) -> str | None:
        """The validation list; commands differ in their default."""
        return self.file("valid") if self.has("valid") else default


def read_data(path: str | os.PathLike, strict: bool = False) -> DataConfig:
    """Read a `.data` file. Raises MissingFileError or DataError."""
    name = locate(path)
    data = DataConfig(name, strict)
    for number, line in enumerate(_lines(name), 1):
        text = re.sub(r"[ \t\r\n]", "", line) if strict else line.strip()
        if not text or text[0] in "#;":
            continue
        key, equals, value = (part.strip() for part in text.partition("="))
        if equals and not value:
            warn(f"Config file error line {number}, could parse: {key}")
            continue
        if not strict and key not in KEYS and (meant := closest(key, KEYS, 0.7)):
            warn(f"{name}, line {number}: {key[:60]}= is not used; did you mean {meant}=?")
        data.values.setdefault(key, value if equals else None)
    return data


def resolve(path: str, folder: str = "", strict: bool = False) -> str:
    """`path` as it is if it exists, else inside `folder`, else the packaged file, else unchanged."""
    if strict or os.path.isabs(path) or os.path.exists(path):
        return path
    beside = os.path.join(folder, path)
    return beside if folder and os.path.exists(beside) else locate(path)


def read_names(path: str | os.PathLike) -> list[str]:
    """Class names, one a line. A blank last line is no class. Raises MissingFileError."""
    names = [line.strip("\r\n") for line in _lines(locate(path))]
    while names and not names[-1].strip():
        names.pop()
    return [name.strip() for name in names]


def read_list(path: str | os.PathLike, folder: str = "") -> list[str]:
    """Image paths, one a line; CRs go, blank lines are skipped.

    A relative path that the working directory lacks is looked for beside the list, in `folder`, and in the folders
    above the list: lists are often written for the folder that a project's programs are started in.
    Raises MissingFileError, or DataError for a list without a path.
    """
    name = locate(path)
    entries = [line.strip("\r\n") for line in _lines(name)]
    entries = [entry.strip() for entry in entries if entry.strip()]
    if not entries:
        raise DataError("lists no image", file=name, remedy="write the path of a picture on each line")
    beside = Path(os.path.dirname(name))
    return found_in(entries, [str(beside), folder, *map(str, beside.absolute().parents)])


def found_in(entries: list[str], folders: list[str]) -> list[str]:
    """Paths as they are where they exist so, else inside the first of `folders` that has them, else unchanged."""
    bases = _bases(entries, folders)
    return [os.path.join(bases[os.path.dirname(entry)], entry) for entry in entries]


def _bases(entries: list[str], folders: list[str]) -> dict[str, str]:
    """For each folder that occurs in the entries the one it lies in: "" (the working directory) or one of `folders`.

    The first few entries of a folder decide for all of it, so that a list of a million images costs a few look-ups.
    """
    samples: dict[str, list[str]] = {}
    for entry in entries:
        sample = samples.setdefault(os.path.dirname(entry), [])
        if len(sample) < _SAMPLE:
            sample.append(entry)
    candidates = ["", *dict.fromkeys(folder for folder in folders if folder not in ("", "."))]
    return {part: _base(sample, candidates) for part, sample in samples.items()}


def _base(sample: list[str], candidates: list[str]) -> str:
    return next((c for c in candidates if any(os.path.exists(os.path.join(c, entry)) for entry in sample)), "")


def label_path(image: str, strict: bool = False, existing: bool = True) -> str:
    """Where the labels of an image lie (Darknet: `replace_image_to_label`).

    Known folder pairs are exchanged (first occurrence each), blanks at the ends go, the suffix becomes `.txt`.
    Unless `strict`, any other suffix does too, and a file that doesn't exist there is looked for beside the image and
    in `labels` for one of its folders `images`, the last one first; `existing=False` only computes the name.
    """
    path = image
    for old, new in _FOLDERS:
        path = path.replace(old, new, 1)
    path = path.strip(" \t")
    suffix = next((suffix for suffix in _SUFFIXES if path.endswith(suffix)), None)
    if suffix:
        path = f"{path.removesuffix(suffix)}.txt"
    elif not strict:
        path = f"{os.path.splitext(path)[0]}.txt"
    if len(path) <= _SHORT:
        warn(f"Label file name is too short: {path} ")
    elif not path.endswith(".txt"):
        warn(f"Failed to infer label file name (check image extension is supported): {path} ")
    if strict or not existing or os.path.exists(path):
        return path
    return next((other for other in _elsewhere(image.strip()) if os.path.exists(other)), path)


def _elsewhere(image: str) -> list[str]:
    """Beside the image, and in the `labels` folders that go with the `images` folders of its path, from the last on."""
    beside = f"{os.path.splitext(image)[0]}.txt"
    folders = list(re.finditer(r"(?<![^/\\])images(?=[/\\])", beside))
    return [beside, *(f"{beside[: at.start()]}labels{beside[at.end() :]}" for at in reversed(folders))]


def _lines(name: str) -> list[str]:
    """Lines of a text file without its byte order mark."""
    if os.path.isdir(name):
        raise DataError("is a folder, not a file", file=name)
    try:
        with open(name, "rb") as stream:
            data = stream.read(min(MAX_BYTES, os.fstat(stream.fileno()).st_size or _PIPE_BYTES) + 1)
            more = bool(stream.read(1))
    except FileNotFoundError as error:
        raise MissingFileError(name) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise DataError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=name) from error
    if more:
        raise DataError("is far longer than any list", file=name)
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in data and not wide:
        raise DataError("is not a text file", file=name)
    text = data.decode("utf-16", "replace") if wide else data.decode("utf-8-sig", "surrogateescape")
    return text.removesuffix("\n").split("\n") if text else []
