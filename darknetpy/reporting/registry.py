"""The sinks by name; a user's own registers in the same way."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import TypeVar

from darknetpy.errors import MissingFileError, UsageError

_SINKS: dict[str, Callable] = {}
T = TypeVar("T", bound=Callable)


def sink(name: str) -> Callable[[T], T]:
    """Decorator: make a sink class known. An instance is called with every event.

    @sink("mail")
    class Mail:
        def __call__(self, event): ...
    """

    def decorate(cls: T) -> T:
        _SINKS[name] = cls
        return cls

    return decorate


def make(names: list[str]) -> list[Callable]:
    """Fresh sinks by name. Raises UsageError for an unknown one."""
    for name in names:
        if name not in _SINKS:
            raise UsageError(f"there is no sink {name!r}", remedy=f"known are {', '.join(_SINKS)}")
    return [_SINKS[name]() for name in names]


def names() -> list[str]:
    return list(_SINKS)


def load(path: str | os.PathLike) -> list[str]:
    """Run a person's own Python file; returns the names of the sinks that it registers.

    Raises MissingFileError, UsageError for a file that fails or registers none.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise MissingFileError(path)
    before = dict(_SINKS)
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(path))[0], path)
    if spec is None:
        raise UsageError(f"-sink takes a Python file, not {path}", remedy="name it FILE.py")
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except Exception as error:
        raise UsageError(
            f"{path} fails: {type(error).__name__}: {error}", remedy="mend it, or leave -sink out"
        ) from error
    found = [name for name, made in _SINKS.items() if before.get(name) is not made]
    if not found:
        raise UsageError(f"{path} registers no sink", remedy="see @sink in docs/training.md")
    return found
