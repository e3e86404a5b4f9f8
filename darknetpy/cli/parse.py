"""The command line to words and flags, the way Darknet's users type it (flags anywhere, one dash or two)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from darknetpy.cli.commands import COMMANDS
from darknetpy.cli.flags import BY_NAME, CAMERA_HEIGHT, FLAGS, WITHOUT_EFFECT, Flag, plain
from darknetpy.config.numbers import atof, atoi
from darknetpy.errors import UsageError, closest

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?")
_BEGINS_NUMBER = re.compile(r"\s*[+-]?\.?\d")
"""What follows is passed over, as in Darknet."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(#\d+|\[#?\d+\])?\.[^=\s]+=.+", re.S)
_CONTROL = str.maketrans("", "", "\t\n\r")


@dataclass
class Line:
    """A parsed command line: words that are no flags, in order, and flag values by the flag's main name.

    `arguments` are all words as they came; `again` begins a command anew, where a device has broken this process.
    """

    words: list[str] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    again: Callable[[], int] | None = None

    def get(self, name: str, default: object = None):
        """The value of a flag; a switch that was given is True."""
        if name in self.values:
            return self.values[name]
        return BY_NAME[plain(name)].default if default is None else default

    def number(self, name: str, default: int = 0) -> int:
        """The value of a flag that is text for some commands, as a whole number."""
        return atoi(str(self.values[name])) if name in self.values else default


def parse(arguments: list[str]) -> Line:
    """Split arguments into words and flags. Raises UsageError for an unknown flag or a missing value."""
    line, rest = Line(arguments=arguments), [argument.translate(_CONTROL) for argument in arguments]
    while rest:
        word = rest.pop(0)
        flag, inline = _flag_of(word)
        if word == "-h" and rest and _NUMBER.fullmatch(rest[0]):
            flag = CAMERA_HEIGHT  # the original Darknet's `demo -w 640 -h 480`
        if flag is None:
            line.words.append(word)
        else:
            line.values.setdefault(flag.name, _value(flag, word, inline, rest))
    return line


def _flag_of(word: str) -> tuple[Flag | None, str | None]:
    if len(word) < 2 or word[0] != "-" or _NUMBER.fullmatch(word):
        return None, None
    name, equals, inline = word.partition("=")
    flag = BY_NAME.get(plain(name))
    if flag is not None:
        return flag, inline if equals else None
    if os.path.exists(word):
        return None, None
    known = [f"-{flag.name}" for flag in [*FLAGS, *WITHOUT_EFFECT]]
    close = closest("-" + name.lstrip("-"), known, 0.5)
    raise UsageError(f"unknown flag {name[:60]}", remedy=f"did you mean {close}?" if close else "see darknetpy help")


def _value(flag: Flag, word: str, inline: str | None, rest: list[str]) -> object:
    if flag.kind == "switch":
        return inline is None or inline.lower() not in ("0", "false", "no", "off")
    if flag.kind == "words":
        words = [inline] if inline else []
        while rest and _ASSIGNMENT.fullmatch(rest[0]):
            words.append(rest.pop(0))
        if not words:
            raise UsageError(f"{word} needs section.key=value", remedy="for example -set net.width=416")
        return words
    if flag.kind == "files":
        files = [inline] if inline else []
        while rest and _flag_of(rest[0])[0] is None:
            files.append(rest.pop(0))
        return files
    if flag.kind == "float or none" and inline is None and not (rest and _NUMBER.fullmatch(rest[0])):
        return flag.default
    if flag.kind == "optional":
        return rest.pop(0) if inline is None and rest and _is_folder(rest[0]) else inline or ""
    if inline is None:
        if not rest or (rest[0][:1] == "-" and plain(rest[0]) in BY_NAME and not _NUMBER.fullmatch(rest[0])):
            if flag.kind == "str or none":
                return ""
            raise UsageError(f"{word} needs a value", remedy=f"for example {word} {_example(flag)}")
        inline = rest.pop(0)
    if flag.kind != "int" and not flag.kind.startswith("float"):
        return inline
    if not _BEGINS_NUMBER.match(inline):
        remedy = f"for example -{flag.name} {'4' if flag.kind == 'int' else '0.5'}"
        raise UsageError(f"-{flag.name} takes a number", value=inline[:60], remedy=remedy)
    return atoi(inline) if flag.kind == "int" else atof(inline)


def _is_folder(word: str) -> bool:
    """Whether a word is meant for the flag before it: no other flag, no part of a command, no file."""
    commands = {part for command in COMMANDS for part in command.name.split()}
    suffix = os.path.splitext(word)[1].lower()
    return not (word[:1] == "-" or word in commands or suffix in _SUFFIXES or os.path.isfile(word))


def _example(flag: Flag) -> str:
    return {"int": "4", "float": "0.5"}.get(flag.kind, "name")


_SUFFIXES = {".data": "data", ".cfg": "cfg", ".names": "names"} | dict.fromkeys((".weights", ".pt", ".pth"), "weights")


def files_of(words: list[str], slots: list[str]) -> dict[str, str]:
    """Give file words to named slots: by suffix where it tells, else in order; so their order is free.

    An empty word leaves its slot empty, as `""` for "no weights" did.
    """
    found: dict[str, str] = {}
    suffixes = [_SUFFIXES.get(os.path.splitext(word)[1].lower()) for word in words]
    if "names" in suffixes:  # serves in place of the `.data` file
        slots = [slot for slot in slots if slot != "data" or "data" in suffixes]
    for word, suffix in zip(words, suffixes, strict=True):
        free = [slot for slot in slots if slot not in found]
        known = suffix is not None and suffix not in found and suffix in (*slots, "names")
        slot = suffix if known else next(iter(free), None)
        if slot is None:
            break  # trailing words are ignored, as Darknet does
        found[slot] = word
    return {slot: word for slot, word in found.items() if word}
