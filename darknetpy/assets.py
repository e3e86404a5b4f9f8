"""Files that come with the program: `cfg/` and `data/`.

They lie beside the package in a clone and inside it in an installation. A relative path that the working directory
does not have falls back to them, so `darknetpy detect cfg/yolov4.cfg ...` works from any folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from darknetpy.errors import warn

_PACKAGE = Path(__file__).resolve().parent
_FOLDERS = (_PACKAGE / "assets", _PACKAGE.parent)
_SAID: set[str] = set()


def packaged(path: str | os.PathLike) -> str | None:
    """The packaged file for a relative path such as `cfg/yolov4.cfg`, or None."""
    name = os.fspath(path).replace("\\", "/").removeprefix("./")
    parts = name.split("/")
    if os.path.isabs(name) or parts[0] not in ("cfg", "data") or ".." in parts:
        return None
    return next((str(folder / name) for folder in _FOLDERS if (folder / name).is_file()), None)


def locate(path: str | os.PathLike) -> str:
    """`path` if it exists, else the packaged file of that name (said once), else `path` unchanged."""
    name = os.fspath(path)
    if os.path.exists(name):
        return name
    found = packaged(name)
    if found is None:
        return name
    if name not in _SAID:
        _SAID.add(name)
        warn(f"{name} is not in the working directory: using the one that comes with darknetpy")
    return found
