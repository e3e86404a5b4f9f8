"""Typed options of a section: a data class declares keys, defaults and one line of help; `read_options` fills it.

A key keeps Darknet's spelling as field name. What Darknet looks up, and so calls used, is what the class declares:
the rest of a section is reported as unused, once, with its line and the nearest known key.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from darknetpy.config.cfg import Option, Section
from darknetpy.config.numbers import atof, atoi, begins_number, to_float32
from darknetpy.errors import Line, closest

T = TypeVar("T")


def key(
    default: Any,
    help: str,
    *,
    loud: bool | Callable[[Any], bool] = False,
    when: Callable[[Any], bool] | None = None,
    stop_at_hash: bool = False,
    name: str | None = None,
) -> Any:
    """Declare one key of a section.

    Args:
        default: value when the key is absent; a function of the options read so far where it depends on them.
        help: one line for the documentation.
        loud: Darknet says `KEY: Using default 'VALUE'` when it is absent (or a function that decides).
        when: the key is looked up only if this holds for the options read so far.
        stop_at_hash: a list ends at the first `#` (Darknet's `mask`, `steps`, yolo `anchors`).
        name: the spelling in the file, where it is no Python name.
    """
    metadata = {"help": help, "loud": loud, "when": when, "stop_at_hash": stop_at_hash, "key": name, "default": default}
    if callable(default):
        return field(default=None, metadata=metadata)
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    if isinstance(default, float):
        default = to_float32(default)
    return field(default=default, metadata=metadata)


@dataclass
class Notes:
    """What reading a section had to say: `Using default` lines and other remarks, in order.

    `unused` are the lines that nobody looked up, as (key, value, line); `known` the keys that the section takes;
    `not_numbers` the lines that hold no number where one is read, which counts as 0, as (key, value, line).
    """

    defaults: list[tuple[str, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    unused: list[tuple[str, str | None, Line]] = field(default_factory=list)
    not_numbers: list[tuple[str, str, Line]] = field(default_factory=list)
    known: list[str] = field(default_factory=list)

    def default(self, name: str, value: Any) -> None:
        text = f"{value:f}" if isinstance(value, float) else str(value)
        self.defaults.append((name, text))
        self.lines.append(f"{name}: Using default '{text}'")

    def say(self, line: str) -> None:
        self.lines.append(line)

    def nearest(self, word: str) -> str | None:
        """The known key that an unknown one looks most like."""
        return None if word in self.known else closest(word.lower(), self.known, 0.7)


def read_options(kind: type[T], section: Section, notes: Notes | None = None) -> T:
    """An instance of the options class `kind` from a section (Darknet: `option_find_int` and its sisters)."""
    notes = notes if notes is not None else Notes()
    options = kind.__new__(kind)
    first: dict[str, Option] = {}
    for option in section.options:
        first.setdefault(option.key, option)
    looked_up: set[str] = set()
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        setattr(options, item.name, _read_field(item, first, options, notes, looked_up))
    notes.known = [spelling(item) for item in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for option in section.options:
        if first[option.key] is not option or option.key not in looked_up:
            notes.unused.append((option.key, option.value, option.line))
    return options


def spelling(item: dataclasses.Field) -> str:
    """The key as it stands in a file."""
    return item.metadata.get("key") or item.name


def _read_field(item, lines: dict[str, Option], options: Any, notes: Notes, looked_up: set[str]) -> Any:
    meta = item.metadata
    default = meta["default"](options) if callable(meta["default"]) else meta["default"]
    if isinstance(default, list):
        default = list(default)
    if meta["when"] is not None and not meta["when"](options):
        return to_float32(default) if isinstance(default, float) else default
    looked_up.add(spelling(item))
    option = lines.get(spelling(item))
    if option is None or option.value is None:
        value = to_float32(default) if isinstance(default, float) else default
        loud = meta["loud"](options) if callable(meta["loud"]) else meta["loud"]
        if loud:
            notes.default(spelling(item), value)
        return value
    kind = kind_of(item).replace(" ", "").removesuffix("|None")
    if kind in ("int", "float", "bool") and not begins_number(option.value):
        notes.not_numbers.append((option.key, option.value, option.line))
    return _convert(kind, option.value, meta["stop_at_hash"])


def kind_of(item: dataclasses.Field) -> str:
    """The type of a key as it is written: `int`, `list[float] | None`, also where annotations are not text."""
    return item.type if isinstance(item.type, str) else inspect.formatannotation(item.type)


def _convert(kind: str, text: str, stop_at_hash: bool) -> Any:
    if kind == "int":
        return atoi(text)
    if kind == "float":
        return to_float32(atof(text))
    if kind == "bool":
        return atoi(text) != 0
    if kind in ("list[int]", "list[float]"):
        items = (text.split("#", 1)[0] if stop_at_hash else text).split(",")
        return [atoi(item) for item in items] if kind == "list[int]" else [to_float32(atof(item)) for item in items]
    return text
