"""Files that are either the old one or the whole new one, never half of it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import IO

from darknetpy.errors import DataError, MissingFileError, closest

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif", ".jp2", ".avif")
)
"""Suffixes, in lower case, by which pictures in a folder are told from other files."""

_MOST_ENTRIES = 10_000
"""Of a folder, no more are looked at for a name that is like a missing one."""


@contextmanager
def atomic_write(path: str | os.PathLike, mode: str = "wb") -> Iterator[IO]:
    """Open a temporary file in the same folder; on success flush it and rename it to `path`, on failure remove it.

    Raises DataError for what the file system refuses, also where a library hides that behind an error of its own.
    """
    name, outside = os.fspath(path), sys.exc_info()[1]
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(name)}.", dir=os.path.dirname(name) or ".")
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror}", file=name) from error
    try:
        with os.fdopen(handle, mode) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, name)
    except BaseException as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        if (refusal := _refusal(error, outside)) is not None:
            raise DataError(f"cannot be written: {refusal.strerror}", file=name) from error
        raise


def _refusal(error: BaseException | None, outside: BaseException | None) -> OSError | None:
    """The OSError that an error is or followed from, within what was being handled `outside`."""
    while error is not None and error is not outside:
        if isinstance(error, OSError):
            return error
        error = error.__context__
    return None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def writable_folder(
    folder: str | os.PathLike, remedy: str = "choose another one with backup= in the .data file"
) -> str:
    """Make sure that files can be created in `folder`, creating it where needed. Raises DataError."""
    name = os.fspath(folder) or "."
    try:
        os.makedirs(name, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".write-test", dir=name):
            pass
    except OSError as error:
        raise DataError(
            f"the folder cannot be written: {error.strerror}",
            file=name,
            remedy=remedy,
        ) from error
    return name


def cache_folder() -> str:
    """Where this program may keep what can be made again: in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return os.path.join(base or os.path.expanduser("~/.cache"), "darknetpy")


def base_name(path: str | os.PathLike) -> str:
    """File name up to its first dot: `cfg/yolo-fastest-1.1.cfg` gives `yolo-fastest-1`, as in Darknet's checkpoints."""
    return os.path.basename(os.fspath(path)).split(".", 1)[0]


def pictures_in(folder: str | os.PathLike) -> list[str]:
    """Picture files in and under a folder, sorted."""
    walked = [(inner, files) for inner, _, files in os.walk(folder)]
    paths = [os.path.join(inner, file) for inner, files in walked for file in files]
    return sorted(path for path in paths if os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES)


def missing_remedy(path: str | os.PathLike) -> str | None:
    """What to do about a file that isn't there: another one of its folder is meant, or the folder is missing, too."""
    folder, name = os.path.split(os.fspath(path))
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in islice(entries, _MOST_ENTRIES)]
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return f"there is no folder {folder[:200]}" if folder else None
    if name in names:
        return "it is there, but you may not read it"
    near = closest(name, names, 0.7)
    if near:
        return f"did you mean {os.path.join(folder, near)}?"
    return None if os.path.isabs(folder) else f"looked for in {os.path.abspath(folder)}"


def video_source(text: str) -> str | int:
    """What a word names: a file, the index of a camera, a URL, or a GStreamer pipeline (with `!`).

    Raises MissingFileError for a file that isn't there.
    """
    if os.path.exists(text) or "://" in text or "!" in text:
        return text
    if text.isdecimal():
        return int(text)
    raise MissingFileError(text)
