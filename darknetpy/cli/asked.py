"""The pictures that a command is asked about: one, those of a folder or of a list, or those of standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from darknetpy.assets import locate
from darknetpy.config.datafile import read_list
from darknetpy.errors import DataError, ImageError, warn
from darknetpy.files import pictures_in

if TYPE_CHECKING:
    import numpy as np

PROMPT = "Enter Image Path: "
_BLACK = (10, 10)


def is_one(image: str | None) -> bool:
    """Whether the command line names a single picture, rather than a folder, a list (`.txt`) or nothing."""
    return image is not None and not os.path.isdir(image) and not image.lower().endswith(".txt")


def asked_paths(image: str | None, prompt: bool) -> Iterator[str]:
    """The picture of the command line, those of the folder or list it names, or those of standard input, a line each.

    Raises DataError for a folder without a picture.
    """
    if image is None:
        yield from _standard_input(prompt)
    elif is_one(image):
        yield image
    elif not os.path.isdir(image):
        yield from read_list(image)
    else:
        paths = pictures_in(image)
        if not paths:
            raise DataError("has no pictures in it", file=image)
        yield from paths


def _standard_input(prompt: bool) -> Iterator[str]:
    while True:
        if prompt:
            print(PROMPT, end="", flush=True)
        text = sys.stdin.readline()
        if not text:
            return
        path = text.strip("\r\n\ufeff")
        if path.strip():
            yield path if os.path.exists(path) else path.strip()


def load_picture(path: str, channels: int, strict: bool) -> tuple[np.ndarray | None, str]:
    """A picture, or None and why not; with `-strict` Darknet's black one stands for what cannot be read."""
    import numpy as np

    from darknetpy.images import load_image

    try:
        return load_image(locate(path), channels), ""
    except ImageError as error:
        return np.zeros((channels, *_BLACK), np.float32) if strict else None, str(error)


def remember_bad(path: str) -> None:
    """Append the path of an unreadable picture to `bad.list`, as Darknet does."""
    try:
        with open("bad.list", "a", encoding="utf-8") as stream:
            stream.write(f"{path}\n")
    except OSError as error:
        warn(f"bad.list cannot be written: {error.strerror}")
