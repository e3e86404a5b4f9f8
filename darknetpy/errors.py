"""The few kinds of error that a user can meet, and the one way to warn.

An error reaches a person as one sentence: where (file and line), what (the value), and what to do about it.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

logger = logging.getLogger("darknetpy")

_LONGEST = 1000

Line = int | str
"""Where a key of a cfg stands: a line of the file, or `-set ...`."""


class DarknetpyError(Exception):
    """Base of every error that is the input's fault, not the program's.

    Args:
        message: what is wrong, without a final full stop.
        file: the file it is about; line: 1-based line in it, or the `-set` words that stand for one.
        value: the offending text, quoted in the sentence.
        remedy: what the reader can do, as an imperative clause.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | os.PathLike | None = None,
        line: Line | None = None,
        value: object = None,
        remedy: str | None = None,
    ):
        self.message, self.file, self.line, self.value, self.remedy = message, file, line, value, remedy
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """The one line a user reads."""
        place = ""
        if self.file is not None:
            place = f"{os.fspath(self.file)}, {at(self.line)}: " if self.line else f"{os.fspath(self.file)}: "
        value = f" ({self.value!r})" if self.value is not None else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{place}{_short(self.message)}{_short(value)}{remedy}"

    def __reduce__(self):
        return _rebuild, (type(self), self.message, self.file, self.line, self.value, self.remedy)


def at(line: Line | None) -> str:
    """A line as a sentence names it."""
    return line if isinstance(line, str) else f"line {line}"


def _short(text: str) -> str:
    """`text` without its middle where a value in it is longer than anybody reads."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


def _rebuild(kind, message, file, line, value, remedy):
    return kind(message, file=file, line=line, value=value, remedy=remedy)


class ConfigError(DarknetpyError):
    """A cfg that cannot be built."""


class DataError(DarknetpyError):
    """A `.data` file, list, names or label file that cannot be used."""


class WeightsError(DarknetpyError):
    """A `.weights` or `.pt` file that does not fit or is damaged."""


class ImageError(DarknetpyError):
    """A picture or video that cannot be read."""


class UsageError(DarknetpyError):
    """A command line that makes no sense."""


class MissingFileError(DarknetpyError):
    """A file that must be read is not there. The sentence is Darknet's own, which scripts look for."""

    def __init__(self, file: str | os.PathLike, remedy: str | None = None):
        super().__init__(f"Couldn't open file: {os.fspath(file)}", remedy=remedy)
        self.path = file

    def __reduce__(self):
        return MissingFileError, (self.path, self.remedy)


def closest(word: str, known: Collection[str], likeness: float) -> str | None:
    """The one of several words that looks most like `word`; None where none is as alike as `likeness` (0 to 1).

    Of a long word, only the beginning counts.
    """
    found = difflib.get_close_matches(word[:64], known, n=1, cutoff=likeness)
    return found[0] if found else None


def warn(message: str) -> None:
    """Tell the user something that does not stop the work."""
    logger.warning(message)


@contextmanager
def silenced() -> Iterator[None]:
    """While entered, warnings are not shown: for reading again what was read, and warned of, before."""
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
