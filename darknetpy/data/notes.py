"""What loading has to tell: sentences for the user, lines for `bad.list` and `bad_label.list`.

Each is told once. A loader process neither writes to the screen nor to files: it collects its notes, which travel with
the batch and are told by the process that asked for it. Replicas hand theirs on to the main one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from darknetpy.errors import warn

Note = tuple[str, str]
"""(name of the file a line goes to, the line); an empty name: for the user's eyes. `?kind`: said once for its kind;
`#kind`: counted, said at the end."""

MOST = 100_000
"""Notes remembered so as not to repeat them; beyond that they may come again."""
BAD_IMAGES, BAD_LABELS = "bad.list", "bad_label.list"
_SUMMARIES = {
    BAD_IMAGES: f"images or label files could not be read: see {BAD_IMAGES}",
    BAD_LABELS: f"labels were wrong: see {BAD_LABELS}",
}

_told: set[Note] = set()
_counts: Counter[str] = Counter()
_listed: dict[str, set[bytes]] = {}
_collected: list[Note] | None = None


def say(text: str, once: str = "") -> None:
    """Warn of something, once; with `once` only for the first of several texts that have this in common."""
    _note((f"?{once}" if once else "", text))


def tally(kind: str, item: str) -> None:
    """Count an item towards a sentence that `summary` says: `N kind`. The same item counts once."""
    _note((f"#{kind}", item))


def summary() -> list[str]:
    """What was listed and counted since the last call, a sentence each."""
    sentences = [f"{count} {_SUMMARIES.get(name, name[1:])}" for name, count in _counts.items()]
    _counts.clear()
    return sentences


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


def take() -> list[Note]:
    """What was collected in this context since it was last asked for; [] where notes are told at once."""
    taken = list(_collected or ())
    if taken:
        _collected.clear()
    return taken


def tell(notes: Iterable[Note]) -> None:
    """Tell what another process has collected."""
    for note in notes:
        _note(note)


def _note(note: Note) -> None:
    name, text = note
    key = (name, "") if name[:1] == "?" else (name if name[:1] in ("", "#") else os.path.abspath(name), text)
    if key in _told:
        return
    if len(_told) > MOST:
        _told.clear()
    _told.add(key)
    if _collected is not None:
        _collected.append(note)
    elif name[:1] in ("", "?"):
        warn(text)
    else:
        _counts[name] += 1
        if name[0] != "#":
            _append(name, text)


def _append(name: str, line: str) -> None:
    data = os.fsencode(line) + b"\n"
    try:
        with open(name, "a+b") as stream:
            known = _listed.get(os.path.abspath(name))
            if known is None:
                stream.seek(0)
                known = _listed[os.path.abspath(name)] = set(stream)
            if data not in known:
                known.add(data)
                stream.write(data)
    except OSError as error:
        say(f"{name} cannot be written: {error.strerror}")
