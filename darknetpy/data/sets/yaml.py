"""As much of YAML as descriptions of data sets are written in.

Keys at the left margin with a scalar, a list (`[a, b]` or `- a` lines), a mapping one level deep (`{0: a}` or indented
lines), or a block of text, which nobody needs here. Anything else is left to PyYAML, where that is installed.
"""

from __future__ import annotations

import os
import re
from typing import Any

from darknetpy.errors import DataError, MissingFileError

MAX_BYTES = 4 << 20
_QUOTED = re.compile(r""""((?:\\.|[^"\\])*)"|'((?:''|[^'])*)'""")
_ITEM = re.compile(r"""\s*("(?:\\.|[^"\\])*"|'(?:''|[^'])*'|[^,:'"\[\]{}]+(?::(?!\s)[^,:'"\[\]{}]*)*)\s*(:\s|[,\]}])""")


class _Unusual(Exception):
    """Something beyond this subset, at a line."""

    def __init__(self, line: int):
        self.line = line


def read_yaml(path: str | os.PathLike) -> dict[str, Any]:
    """The mapping of a `.yaml` file: text, lists of text and mappings of text to text.

    Raises MissingFileError, or DataError with the line.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise MissingFileError(name) from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", file=name) from error
    if len(data) > MAX_BYTES:
        raise DataError(f"is longer than {MAX_BYTES >> 20} MiB, which no description of a data set is", file=name)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError("is not UTF-8", file=name, remedy="save it as UTF-8") from error
    try:
        return parse_yaml(text)
    except _Unusual as unusual:
        return _by_library(text, name, unusual.line)


def _by_library(text: str, name: str, line: int) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise DataError(
            "is written in a part of YAML that is not understood here", file=name, line=line,
            remedy="write `key: value`, `[a, b]` or one entry a line, or install darknetpy[yaml]",
        ) from None  # fmt: skip
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or error
        where = mark.line + 1 if mark else line
        raise DataError(f"is no YAML: {problem}"[:200], file=name, line=where, remedy="mend it") from error
    if not isinstance(content, dict):
        raise DataError("is no list of `key: value`", file=name, remedy="write train:, val: and names:")
    return {str(key): value for key, value in content.items()}


def parse_yaml(text: str) -> dict[str, Any]:
    """Parse the subset. Raises _Unusual where the text leaves it."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1)]
    result: dict[str, Any] = {}
    while lines:
        number, line = lines.pop(0)
        bare = _without_comment(line, number)
        if not bare or bare in ("---", "..."):
            continue
        if line[0] in " \t":
            raise _Unusual(number)
        key, rest = _pair(bare, number)
        result[key] = _value(rest, lines, number)
    return result


def _pair(bare: str, number: int) -> tuple[str, str]:
    """`key: rest` to its two parts."""
    quoted = _QUOTED.match(bare)
    end = quoted.end() if quoted else bare.find(": ") if ": " in bare else len(bare) - 1
    key, colon, rest = bare[:end].strip(), bare[end:].lstrip()[:1], bare[end:].lstrip()[1:]
    if colon != ":" or not key or (rest and rest[0] != " "):
        raise _Unusual(number)
    return _scalar(key, number), rest.strip()


def _value(first: str, lines: list[tuple[int, str]], number: int) -> Any:
    if first[:1] in ("|", ">"):
        while lines and (not lines[0][1].strip() or lines[0][1][0] in " \t"):
            lines.pop(0)
        return ""
    if first[:1] in ("[", "{"):
        closing = {"[": "]", "{": "}"}[first[0]]
        while not first.endswith(closing):
            if not lines:
                raise _Unusual(number)
            _, more = lines.pop(0)
            first = f"{first} {_without_comment(more, number)}".strip()
        return _flow(first, number)
    if first:
        return _scalar(first, number)
    return _block(lines)


def _block(lines: list[tuple[int, str]]) -> Any:
    """Indented `key: value` lines or `- value` lines; an empty text without any."""
    items: list[str] = []
    pairs: dict[str, str] = {}
    depth = None
    while lines:
        number, line = lines[0]
        bare = _without_comment(line, number)
        if not bare:
            lines.pop(0)
            continue
        indent = len(line) - len(line.lstrip(" "))
        dash = bare == "-" or bare.startswith("- ")
        if indent == 0 and not dash:
            break
        if depth not in (None, indent) or line[0] == "\t" or (dash and pairs) or (not dash and items):
            raise _Unusual(number)
        depth = indent
        lines.pop(0)
        if dash:
            items.append(_scalar(bare[1:].strip(), number))
        else:
            key, rest = _pair(bare, number)
            if not rest:
                raise _Unusual(number)
            pairs[key] = _scalar(rest, number)
    return items or pairs or ""


def _flow(text: str, number: int) -> list[str] | dict[str, str]:
    """`[a, 'b']` or `{0: a, 1: b}`, not nested."""
    text = re.sub(r"\s+", " ", text)
    at, closing = 1, {"[": "]", "{": "}"}[text[0]]
    parts: list[tuple[str, str]] = []
    while at < len(text) and text[at:].strip() != closing:
        match = _ITEM.match(text, at)
        if not match or (match[2] in "]}" and (match[2] != closing or match.end() != len(text))):
            raise _Unusual(number)
        parts.append((_scalar(match[1].strip(), number), match[2].strip()))
        at = match.end()
    if text[0] == "[":
        if any(mark == ":" for _, mark in parts):
            raise _Unusual(number)
        return [value for value, _ in parts]
    keys, values = parts[::2], parts[1::2]
    if len(keys) != len(values) or any(mark != ":" for _, mark in keys) or any(mark == ":" for _, mark in values):
        raise _Unusual(number)
    return {key: value for (key, _), (value, _) in zip(keys, values, strict=True)}


def _scalar(text: str, number: int) -> str:
    """A plain or quoted word. Anchors, tags and nested lists are beyond this subset; null is nothing."""
    quoted = _QUOTED.fullmatch(text)
    if quoted:
        if quoted[1] is None:
            return quoted[2].replace("''", "'")
        if re.search(r"\\[^\"\\/]", quoted[1]):
            raise _Unusual(number)
        return re.sub(r"\\(.)", r"\1", quoted[1])
    if text[:1] in tuple("&*!|>%@`\"'[{") or text.startswith(("? ", "- ")):
        raise _Unusual(number)
    return "" if text in ("~", "null", "Null", "NULL") else text


def _without_comment(line: str, number: int) -> str:
    """A line without what follows a `#` that stands outside quotes, behind a blank or at the beginning."""
    result, at = "", 0
    while at < len(line):
        begins_word = at == 0 or line[at - 1] in " \t,[{:"
        quoted = _QUOTED.match(line, at) if line[at] in "\"'" and begins_word else None
        if quoted:
            result, at = result + quoted[0], quoted.end()
            continue
        if line[at] == "#" and (at == 0 or line[at - 1] in " \t"):
            break
        result, at = result + line[at], at + 1
    return result.strip()
