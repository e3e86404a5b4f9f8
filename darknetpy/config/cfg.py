"""The text of a network: sections of `key=value` lines, as Darknet's `read_cfg` understands them.

Every blank, tab, CR and LF is dropped anywhere in a line before it is looked at; `#` and `;` start a comment only as
first character; the first of two equal keys wins; numbers are whatever `atoi` and `atof` make of the value.
By default two things are kinder than that (`strict=True` switches them off): a `#` after a blank ends a value or a
section name, and byte order marks and UTF-16 are understood.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from darknetpy.assets import locate
from darknetpy.config.numbers import atoi
from darknetpy.errors import ConfigError, Line, MissingFileError, UsageError, closest, warn

MAX_BYTES = 1 << 20
"""A cfg of more than this is something else: the largest network known has 150 kB."""
MAX_REMARKS = 50
"""So many lines of a cfg are complained of one by one; a file with more such lines is no cfg."""

_BLANKS = str.maketrans("", "", " \t\n\r")
_INLINE_COMMENT = re.compile(r"[ \t]#")
_OVERRIDE = re.compile(r"(?P<type>[A-Za-z_]\w*)(?:#(?P<n>\d+)|\[#?(?P<m>\d+)\])?\.(?P<key>[^=\s]+)=(?P<value>.+)", re.S)


@dataclass(frozen=True)
class Option:
    """One `key=value` line, or `-set` words in its place; `value` is None when the line has no `=`."""

    key: str
    value: str | None
    line: Line


@dataclass
class Section:
    """One `[type]` and its lines. `header` is the whole stripped line, `type` what is between the brackets."""

    header: str
    line: int
    options: list[Option] = field(default_factory=list)

    @property
    def type(self) -> str:
        closed = len(self.header) > 2 and self.header.endswith("]")
        return self.header[1:-1] if closed else self.header[1:]

    def find(self, key: str) -> Option | None:
        """The first line with this key, if it has a value."""
        return next((option for option in self.options if option.key == key), None)


@dataclass
class Cfg:
    """A parsed network file. `notes` are the reader's own remarks, in order of lines."""

    path: str
    text: str
    sections: list[Section]
    strict: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def net(self) -> Section:
        return self.sections[0]

    @property
    def layers(self) -> list[Section]:
        return self.sections[1:]

    def override(self, words: Iterable[str], canonical: Callable[[str], str] = str) -> None:
        """Apply `section[#n].key=value` words (n counts sections of that type from 0; without it: all of them).

        `canonical` maps a section name to its main spelling, so that `conv.pad=1` reaches `[convolutional]`.
        Raises UsageError for a malformed word or one that meets no section.
        """
        for word in words:
            match = _OVERRIDE.fullmatch(word)
            value = match["value"].translate(_BLANKS) if match else ""
            if not match or not value:
                raise UsageError(
                    "-set takes section.key=value or section#n.key=value",
                    value=word,
                    remedy="for example net.width=416",
                )
            wanted = canonical(match["type"])
            found = [section for section in self.sections if canonical(section.type) == wanted]
            n = match["n"] or match["m"]
            chosen = found if n is None else found[atoi(n) :][:1]
            if not chosen:
                raise UsageError(
                    f"-set names a section that {self.path} does not have",
                    value=word,
                    remedy=self._sections_like(wanted, len(found)),
                )
            for section in chosen:
                _set(section, Option(match["key"], value, f"-set {word[:80]}"))
            self.text = self.written()

    def _sections_like(self, wanted: str, count: int) -> str:
        if count:
            return f"it has {count} [{wanted}] sections, counted from 0"
        types = list(dict.fromkeys(section.type[:40] for section in self.sections))
        near = closest(wanted, types, 0.6)
        return f"did you mean {near}?" if near else f"it begins with {', '.join(types[:4])}"

    def written(self) -> str:
        """The sections as text again, without comments."""
        lines: list[str] = []
        for section in self.sections:
            options = [o.key if o.value is None else f"{o.key}={o.value}" for o in section.options]
            lines += [section.header, *options, ""]
        return "\n".join(lines)


def _set(section: Section, new: Option) -> None:
    for i, option in enumerate(section.options):
        if option.key == new.key:
            section.options[i] = new
            return
    section.options.append(new)


def read_cfg(
    path: str | os.PathLike,
    strict: bool = False,
    overrides: Iterable[str] = (),
    canonical: Callable[[str], str] = str,
) -> Cfg:
    """Read a network file. Raises MissingFileError or ConfigError; never keeps more than MAX_BYTES."""
    name = locate(path)
    try:
        if os.path.isdir(name):
            raise ConfigError("is a folder, not a cfg file", file=name)
        with open(name, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise MissingFileError(name) from error
    cfg = parse_cfg(data, name, strict)
    cfg.override(overrides, canonical)
    return cfg


def parse_cfg(data: bytes | str, name: str = "cfg", strict: bool = False) -> Cfg:
    """Parse the text of a network file (Darknet: `read_cfg`). `name` is used in messages only."""
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"is longer than {MAX_BYTES} bytes, which no cfg is", file=name, remedy="is it a .weights file?"
        )
    text = data if isinstance(data, str) else _decode(data, name, strict)
    if text.lstrip()[:1] == "<":
        raise ConfigError("is a web page (HTML), not a cfg", file=name, remedy="download the raw file")
    cfg = Cfg(name, text, [], strict)
    for number, line in enumerate(text.split("\n"), 1):
        _read_line(cfg, line, number)
    if not cfg.sections:
        raise ConfigError("Config file has no sections", file=name, remedy="a network begins with [net]")
    if cfg.net.header not in ("[net]", "[network]"):
        raise ConfigError(
            "First section must be [net] or [network]", file=name, line=cfg.net.line, value=cfg.net.header
        )
    return cfg


def _decode(data: bytes, name: str, strict: bool) -> str:
    if not strict:
        for mark, encoding in (
            (codecs.BOM_UTF8, "utf-8"),
            (codecs.BOM_UTF16_LE, "utf-16-le"),
            (codecs.BOM_UTF16_BE, "utf-16-be"),
        ):
            if data.startswith(mark):
                return data[len(mark) :].decode(encoding, errors="replace")
    if b"\0" in data:
        raise ConfigError("is not a text file", file=name, remedy="give the .cfg, not the .weights")
    return data.decode("utf-8", errors="surrogateescape")


def _read_line(cfg: Cfg, line: str, number: int) -> None:
    stripped = line.translate(_BLANKS)
    if not stripped or stripped[0] in "#;":
        return
    if not cfg.strict:
        stripped = _without_comment(line).translate(_BLANKS)
    if stripped[0] == "[":
        cfg.sections.append(Section(stripped, number))
        return
    if not cfg.sections:
        raise ConfigError("a line stands before the first section", file=cfg.path, line=number, value=stripped[:80])
    key, equals, value = stripped.partition("=")
    if equals and not value:
        note = f"Config file error line {number}, could parse: {key}"
        cfg.notes.append(note)
        if len(cfg.notes) <= MAX_REMARKS:
            warn(f"{cfg.path}, line {number}: {key}= has no value and is ignored" if not cfg.strict else note)
        return
    cfg.sections[-1].options.append(Option(key, value if equals else None, number))


def _without_comment(line: str) -> str:
    """`line` up to a `#` that follows a blank, in a section header or after the `=`."""
    start = 0 if line.lstrip().startswith("[") else line.find("=")
    if start < 0:
        return line
    match = _INLINE_COMMENT.search(line, start)
    return line[: match.start()] if match else line
