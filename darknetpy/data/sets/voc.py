"""Pascal VOC: one XML file a picture, with boxes in pixels; lists of names in `ImageSets/Main`.

Boxes become relative as Darknet's `scripts/voc_label.py` makes them. XML that declares a document type is refused:
entities could make a small file huge or read others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

import numpy as np
from tqdm import tqdm

from darknetpy.config.datafile import read_names
from darknetpy.data.sets.annotations import Annotations, Oddities
from darknetpy.data.sets.dataset import DataSet
from darknetpy.errors import DataError, ImageError
from darknetpy.files import IMAGE_SUFFIXES

MAX_BYTES = 16 << 20
"""A longer XML file is no description of one picture."""
NAME_FILES = ("classes.txt", "predefined_classes.txt", "labels.txt", "obj.names", "voc.names")
"""Where class names stand in the order that is wanted; without one they are sorted (which is the order of VOC's 20)."""
TRAIN, VALID = ("train", "trainval"), ("val", "valid", "test")
SIDES = ("xmin", "ymin", "xmax", "ymax")


@dataclass
class _Object:
    name: str = ""
    difficult: bool = False
    box: dict[str, float] = field(default_factory=dict)


@dataclass
class _Picture:
    """What an XML file says. `size` is (0, 0) where it doesn't."""

    path: Path
    filename: str = ""
    width: int = 0
    height: int = 0
    objects: list[_Object] = field(default_factory=list)


def is_voc(folder: Path) -> bool:
    """Whether a folder holds XML files as VOC's tools write them: in `Annotations`, by themselves, or by parts."""
    return bool(_xml_folders(folder))


def open_folder(folder: Path, strict: bool = False) -> DataSet:
    """The data set of a folder with `Annotations`, `JPEGImages` and `ImageSets`, or of XML files beside pictures.

    Objects marked difficult are not trained on and neither count as missed nor as wrong in evaluation.
    Raises DataError.
    """
    parts = _parts(folder)
    unique = list(dict.fromkeys(path for part in parts.values() for path in part))
    shown = sys.stderr.isatty()
    pictures = {path: _parse(path) for path in tqdm(unique, "reading XML", unit="file", disable=not shown, leave=False)}
    names = _names(folder, pictures.values())
    odd, boxes, found = Oddities(os.fspath(folder)), Annotations(), _Images(folder)
    index = {name: i for i, name in enumerate(names)}
    located = {path: _add(picture, found, index, boxes, odd) for path, picture in pictures.items()}
    odd.tell()
    lists = {key: [located[path] for path in part if located[path]] for key, part in parts.items()}
    for key, images in lists.items():
        if not images:
            raise DataError(
                f"none of the pictures of {len(parts[key])} XML files is found", file=key,
                remedy=f"put them into {folder / 'JPEGImages'}",
            )  # fmt: skip
    train, valid = [*lists, None][:2]
    return DataSet.of(os.fspath(folder), strict, train, valid, lists, names, boxes)


# --- which files -------------------------------------------------------------------------------------------------


def _xml_folders(folder: Path) -> list[Path]:
    candidates = [folder / "Annotations", folder / "annotations", folder, *(folder / name for name in (*TRAIN, *VALID))]
    return [place for place in candidates if place.is_dir() and any(place.glob("*.xml"))]


def _parts(folder: Path) -> dict[str, list[Path]]:
    """XML files for training and, where there are any, for validation, by the list or folder that names them."""
    folders = _xml_folders(folder)
    main = folder / "ImageSets" / "Main"
    lists = {path.stem: path for path in sorted((main if main.is_dir() else folder / "ImageSets").glob("*.txt"))}
    train = next((name for name in TRAIN if name in lists), None)
    valid = next((name for name in VALID if name in lists and not (name == "val" and train == "trainval")), None)
    if train or valid:
        chosen = [name for name in (train, valid) if name]
        return {os.fspath(lists[name]): _listed(lists[name], folders[0]) for name in chosen}
    by_name = {place.name: place for place in folders if place.parent == folder}
    chosen = [next((by_name[name] for name in kind if name in by_name), None) for kind in (TRAIN, VALID)]
    places = [place for place in chosen if place] or folders[:1]
    return {os.fspath(place): sorted(place.glob("*.xml")) for place in places}


def _listed(path: Path, annotations: Path) -> list[Path]:
    """The XML files of the names in a list, which may have a column of flags behind them."""
    entries = [line.strip() for line in read_names(path) if line.strip()]
    files = [annotations / f"{entry}.xml" for entry in entries]
    files = [f if f.is_file() else annotations / f"{e.split()[0]}.xml" for f, e in zip(files, entries, strict=True)]
    present = [file for file in files if file.is_file()]
    if len(present) < len(files):
        missing = next(file for file in files if not file.is_file())
        odd = Oddities(os.fspath(path))
        odd.see("pictures without an XML file are left out", os.fspath(missing), len(files) - len(present))
        odd.tell()
    if not present:
        raise DataError("lists no picture that has an XML file", file=path, remedy=f"put them into {annotations}")
    return present


class _Images:
    """Picture files of a data set by their name without suffix."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._names: dict[Path, dict[str, str]] = {}

    def of(self, picture: _Picture) -> str | None:
        """In the usual folders, by the XML file's own name, then by the name that it gives."""
        base = os.path.basename(picture.filename.replace("\\", "/"))
        for place in (self.folder / "JPEGImages", self.folder / "images", picture.path.parent, self.folder):
            names = self._listing(place)
            for name in (picture.path.stem, os.path.splitext(base)[0]):
                if name in names:
                    return os.fspath(place / names[name])
        return None

    def _listing(self, place: Path) -> dict[str, str]:
        if place not in self._names:
            entries = sorted(os.listdir(place)) if place.is_dir() else []
            parts = [(*os.path.splitext(entry), entry) for entry in entries]
            self._names[place] = {stem: entry for stem, suffix, entry in parts if suffix.lower() in IMAGE_SUFFIXES}
        return self._names[place]


def _names(folder: Path, pictures: Iterable[_Picture]) -> list[str]:
    """Class names: as a file in the folder orders them, else sorted."""
    used = sorted({o.name for picture in pictures for o in picture.objects})
    for file in (folder / name for name in NAME_FILES):
        if file.is_file():
            names = read_names(file)
            unknown = [name for name in used if name not in names]
            if unknown:
                raise DataError(
                    "lacks a class that the XML files use", file=file, value=unknown[0][:60], remedy="add it as a line"
                )
            return names
    if not used:
        raise DataError("has XML files, but no objects in them", file=folder)
    return used


# --- from pixels to numbers --------------------------------------------------------------------------------------


def _add(
    picture: _Picture, found: _Images, index: dict[str, int], boxes: Annotations, odd: Oddities
) -> str | None:  # fmt: skip
    """Put a picture's boxes into `boxes`; its image file, None without one."""
    image = found.of(picture)
    if image is None:
        odd.see("XML files without a picture are left out", os.fspath(picture.path))
        return None
    width, height = picture.width, picture.height
    if width <= 0 or height <= 0:
        odd.see("XML files without the size of the picture: it is taken from the picture", os.fspath(picture.path))
        width, height = _size_of(image)
    if not width:
        odd.see("pictures whose size is unknown are left out", image)
        return None
    rows = [_row(o, index[o.name], width, height) for o in picture.objects]
    table = np.array(rows, np.float32).reshape(-1, 5)
    hard = np.array([o.difficult for o in picture.objects], bool)
    boxes.boxes[image] = table[~hard]
    if hard.any():
        boxes.difficult[image] = table[hard]
    return image


def _row(o: _Object, label: int, width: int, height: int) -> tuple[float, ...]:
    """Class, centre and size; VOC counts pixels from 1."""
    x0, y0, x1, y1 = (o.box[side] for side in SIDES)
    return label, ((x0 + x1) / 2 - 1) / width, ((y0 + y1) / 2 - 1) / height, (x1 - x0) / width, (y1 - y0) / height


def _size_of(image: str) -> tuple[int, int]:
    from darknetpy.images import read_image

    try:
        height, width = read_image(image).shape[:2]
    except ImageError:
        return 0, 0
    return width, height


# --- XML ---------------------------------------------------------------------------------------------------------


def _parse(path: Path) -> _Picture:
    """Read one XML file. Raises DataError with the line for one that is damaged, hostile or no annotation."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", file=path) from error
    if len(data) > MAX_BYTES:
        raise DataError(f"is longer than {MAX_BYTES >> 20} MiB, which no annotation is", file=path)
    reader = _Reader(path)
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        raise DataError(
            f"is no XML: {expat.ErrorString(error.code)}", file=path, line=error.lineno, remedy="save it again"
        ) from error
    except (LookupError, UnicodeError) as error:
        raise DataError(
            f"has an encoding that is unknown: {error}"[:200], file=path, remedy="save it as UTF-8"
        ) from error
    return reader.picture


class _Reader:
    """Collects what is needed while expat goes through a file."""

    def __init__(self, path: Path):
        self.picture, self.path = _Picture(path), path
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.place: list[str] = []
        self.text = ""

    def error(self, message: str, value: str | None, remedy: str) -> DataError:
        return DataError(message, file=self.path, line=self.parser.CurrentLineNumber, value=value, remedy=remedy)

    def _doctype(self, *_) -> None:
        raise self.error("declares a document type, which annotations have no need of", None, "remove <!DOCTYPE ...>")

    def _start(self, tag: str, _) -> None:
        if not self.place and tag != "annotation":
            raise self.error("is no VOC annotation", f"<{tag[:40]}>", "the outermost element is <annotation>")
        self.place.append(tag)
        self.text = ""
        if self.place == ["annotation", "object"]:
            self.picture.objects.append(_Object())

    def _text(self, text: str) -> None:
        self.text += text

    def _end(self, tag: str) -> None:
        place, text = "/".join(self.place[1:]), self.text.strip()
        self.place.pop()
        self.text = ""
        if place == "filename":
            self.picture.filename = text
        elif place in ("size/width", "size/height"):
            setattr(self.picture, tag, int(self._number(tag, text or "0")))
        elif place.startswith("object"):
            self._object(place, tag, text)

    def _object(self, place: str, tag: str, text: str) -> None:
        o = self.picture.objects[-1]
        if place == "object/name":
            o.name = text
        elif place == "object/difficult":
            o.difficult = text not in ("", "0")
        elif place.startswith("object/bndbox/") and tag in SIDES:
            o.box[tag] = self._number(tag, text)
        elif place == "object" and (not o.name or len(o.box) < len(SIDES)):
            missing = "name" if not o.name else next(side for side in SIDES if side not in o.box)
            raise self.error(f"an object has no <{missing}>", o.name or None, "add it or remove the object")

    def _number(self, tag: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not abs(value) < 1e9:
            raise self.error(f"<{tag}> is no number", text[:40], "write pixels")
        return value
