"""`.data` files, name files, image lists, and where an image's labels lie (Darknet: `read_data_cfg`, `get_paths`)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from darknetpy.assets import locate
from darknetpy.config.numbers import atoi
from darknetpy.errors import DataError, MissingFileError, warn

MAX_BYTES = 1 << 30
"""A list, names or `.data` file larger than this is something else."""

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

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)

    def get(self, key: str, default: str | None = None) -> str | None:
        """The text of a key, or the default."""
        value = self.values.get(key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def number(self, key: str, default: int) -> int:
        value = self.values.get(key)
        return default if value is None else atoi(value)

    def file(self, key: str, default: str | None = None) -> str | None:
        """A key that names a file: as it is, or beside the `.data` file, or packaged."""
        value = self.get(key, default)
        return None if value is None else resolve(value, self.folder, self.strict)

    @property
    def train(self) -> str:
        return self.file("train", "data/train.txt") or ""

    @property
    def names(self) -> str:
        if not self.has("names"):
            warn("names: Using default 'data/names.list'")
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

    A relative path that the working directory lacks is looked for beside the list and in `folder`.
    Raises MissingFileError, or DataError for a list without a path.
    """
    name = locate(path)
    entries = [line.strip("\r\n") for line in _lines(name)]
    entries = [entry.strip() for entry in entries if entry.strip()]
    if not entries:
        raise DataError("lists no image", file=name)
    base = _base_folder(entries, [os.path.dirname(name), folder])
    return [os.path.join(base, entry) for entry in entries] if base else entries


def _base_folder(entries: list[str], folders: list[str]) -> str:
    """The folder that the relative entries belong to, judged by the first few of them."""
    sample = entries[:5]
    for folder in ["", *folders]:
        if any(os.path.exists(os.path.join(folder, entry)) for entry in sample):
            return folder
    return ""


def label_path(image: str, strict: bool = False, existing: bool = True) -> str:
    """Where the labels of an image lie (Darknet: `replace_image_to_label`).

    Known folder pairs are exchanged (first occurrence each), blanks at the ends go, the suffix becomes `.txt`.
    Unless `strict`, a file that doesn't exist there is looked for beside the image and in `/labels/` for `/images/`;
    `existing=False` only computes the name.
    """
    path = image
    for old, new in _FOLDERS:
        path = path.replace(old, new, 1)
    path = path.strip(" \t")
    for suffix in _SUFFIXES:
        if path.endswith(suffix):
            path = path[: -len(suffix)] + ".txt"
            break
    else:
        stem, suffix = os.path.splitext(path)
        if strict or not suffix:
            warn(f"Failed to infer label file name (check image extension is supported): {path} ")
            return path
        path = f"{stem}.txt"
    if strict or not existing or os.path.exists(path):
        return path
    beside = os.path.splitext(image.strip())[0] + ".txt"
    swapped = re.sub(r"([/\\])images([/\\])", r"\1labels\2", beside)
    return next((other for other in (beside, swapped) if os.path.exists(other)), path)


def _lines(name: str) -> list[str]:
    """Lines of a text file without its byte order mark."""
    try:
        if os.path.isdir(name):
            raise DataError("is a folder, not a file", file=name)
        if os.path.getsize(name) > MAX_BYTES:
            raise DataError(f"is {os.path.getsize(name)} bytes long, which no list is", file=name)
        with open(name, "rb") as stream:
            data = stream.read()
    except OSError as error:
        raise MissingFileError(name) from error
    if b"\0" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError("is not a text file", file=name)
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    lines = data.decode(encoding, errors="surrogateescape").split("\n")
    return lines[:-1] if lines and not lines[-1] else lines
