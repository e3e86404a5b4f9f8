"""Data sets in other formats than Darknet's, taken wherever a command takes a `.data` file.

`open_data` tells by suffix or folder what it was given; `coco`, `voc` and `yolo` read one format each. Nothing is
written: COCO's and VOC's boxes are kept in memory as `Annotations`, YOLO's lie in Darknet's label files already.
"""

from __future__ import annotations

import os
from pathlib import Path

from darknetpy.config.datafile import DataConfig, read_data
from darknetpy.data.sets import coco, voc, yolo
from darknetpy.data.sets.annotations import Annotations
from darknetpy.data.sets.dataset import DataSet
from darknetpy.errors import DataError

__all__ = ["Annotations", "DataSet", "open_data"]

FORMATS = "a .data file, COCO .json, YOLO .yaml, or a folder in VOC's or COCO's layout"


def open_data(path: str | os.PathLike, strict: bool = False) -> DataConfig:
    """The data set that DATA on a command line names: see `FORMATS`.

    Raises MissingFileError or DataError.
    """
    name = os.fspath(path)
    suffix = os.path.splitext(name)[1].lower()
    if os.path.isdir(name):
        return _open_folder(Path(name), strict)
    if suffix == ".json":
        return coco.open_file(Path(name), strict)
    if suffix in (".yaml", ".yml"):
        return yolo.open_file(Path(name), strict)
    return read_data(name, strict)


def _open_folder(folder: Path, strict: bool) -> DataConfig:
    found = yolo.description(folder)
    if found:
        return yolo.open_file(found, strict)
    found = coco.train_file(folder)
    if found:
        return coco.open_file(found, strict)
    if voc.is_voc(folder):
        return voc.open_folder(folder, strict)
    raise DataError("is a folder without a data set in it", file=folder, remedy=f"DATA is {FORMATS}")
