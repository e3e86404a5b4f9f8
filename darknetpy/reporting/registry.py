"""The sinks by name; a user's own registers in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

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
    """Fresh sinks by name. Raises KeyError for an unknown one."""
    return [_SINKS[name]() for name in names]


def names() -> list[str]:
    return list(_SINKS)
