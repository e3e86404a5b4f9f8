"""What loading has to tell: sentences for the user, lines for `bad.list` and `bad_label.list`.

Each is told once. A loader process neither writes to the screen nor to files: it collects its notes, which travel with
the batch and are told by the process that asked for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from darknetpy.errors import warn

Note = tuple[str, str]
"""(name of the file a line goes to, the line); an empty name: for the user's eyes."""

MOST = 100_000
"""Notes remembered so as not to repeat them; beyond that they may come again."""
BAD_IMAGES, BAD_LABELS = "bad.list", "bad_label.list"

_told: set[Note] = set()
_collected: list[Note] | None = None


def say(text: str) -> None:
    """Warn of something, once."""
    _note(("", text))


def append_line(name: str, line: str) -> None:
    """Add a line to a list in the working directory, unless it is there already."""
    _note((name, line))


@contextmanager
def collecting() -> Iterator[list[Note]]:
    """Within this context notes are only collected."""
    global _collected
    before, _collected = _collected, []
    try:
        yield _collected
    finally:
        _collected = before


def tell(notes: Iterable[Note]) -> None:
    """Tell what another process has collected."""
    for note in notes:
        _note(note)


def _note(note: Note) -> None:
    name, text = note
    key = (os.path.abspath(name) if name else "", text)
    if key in _told:
        return
    if len(_told) > MOST:
        _told.clear()
    _told.add(key)
    if _collected is not None:
        _collected.append(note)
    elif name:
        _append(name, text)
    else:
        warn(text)


def _append(name: str, line: str) -> None:
    data = os.fsencode(line) + b"\n"
    try:
        with open(name, "a+b") as stream:
            stream.seek(0)
            if data in stream:
                return
            stream.write(data)
    except OSError as error:
        say(f"{name} cannot be written: {error.strerror}")
