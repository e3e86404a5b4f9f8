"""The only list of layer types: section name -> class."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

from darknetpy.errors import closest
from darknetpy.layers.base import LayerOptions

if TYPE_CHECKING:
    from darknetpy.layers.base import Layer

_CLASSES: dict[str, type[Layer]] = {}
T = TypeVar("T", bound=type)


def register(*names: str):
    """Class decorator: make a layer type known under its main section name and aliases.

    A type from outside the package registers in the same way before its cfg is read:

        @register("myblock")
        class MyBlock(Layer): ...

    Raises TypeError for keys that cannot be read, ValueError for a name that is taken.
    """

    def decorate(cls: T) -> T:
        options = cls.Options
        whole = issubclass(options, LayerOptions) and "__dataclass_fields__" in vars(options)
        if not whole or any("help" not in item.metadata for item in dataclasses.fields(options)):
            form = "@dataclass class Options(LayerOptions) with lines `name: type = key(default, help)`"
            raise TypeError(f"{cls.__qualname__}.Options must be a {form}")
        cls.type = names[0]
        for name in names:
            if name in _CLASSES and _CLASSES[name].__qualname__ != cls.__qualname__:
                raise ValueError(f"[{name}] is registered already, by {_CLASSES[name].__qualname__}")
            _CLASSES[name] = cls
        return cls

    return decorate


def find(name: str) -> type[Layer] | None:
    """The class for a section name (case-sensitive, as in Darknet), or None."""
    return _CLASSES.get(name)


def canonical(name: str) -> str:
    """The main spelling of a section name; unknown names as they are."""
    if name == "network":
        return "net"
    return _CLASSES[name].type if name in _CLASSES else name


def nearest(name: str) -> str | None:
    """The known section name that looks most like `name`."""
    by_lower = {known.lower(): known for known in _CLASSES}
    found = closest(name.strip("[]").lower(), by_lower, 0.6)
    return by_lower[found] if found else None


def all_types() -> dict[str, type[Layer]]:
    """Main section name -> class, in order of registration."""
    return {cls.type: cls for cls in _CLASSES.values()}


def names_of(cls: type[Layer]) -> list[str]:
    """All section names of a class, main one first."""
    return [name for name, known in _CLASSES.items() if known is cls]
