"""Numbers as the C library reads them: longest valid prefix, anything else is 0, never an error."""

from __future__ import annotations

import re
import struct

_INT = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*(\d*)", re.ASCII)
_FLOAT = re.compile(
    r"[ \t\n\v\f\r]*([+-]?(?:0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?\d+)?"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf(?:inity)?|nan))",
    re.IGNORECASE | re.ASCII,
)
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
FLT_MAX = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


def atoi(text: str) -> int:
    """C `atoi`, clamped to 32 bits (out of range is undefined there)."""
    sign, digits = _INT.match(text).groups()  # type: ignore[union-attr]
    # no 32-bit number has more digits than this; int() of megabytes of them would take for ever
    return min(max(int(f"{sign}{digits[:12] or 0}"), INT_MIN), INT_MAX)


def atof(text: str) -> float:
    """C `atof` (hexadecimal floats, inf and nan included), in double."""
    match = _FLOAT.match(text)
    if not match:
        return 0.0
    number = match.group(1).lower()
    try:
        return float.fromhex(number) if "0x" in number else float(number)
    except OverflowError:
        return float("-inf") if number.startswith("-") else float("inf")


def begins_number(text: str) -> bool:
    """Whether C finds a number here, rather than none, which counts as 0."""
    return _FLOAT.match(text) is not None


def to_float32(value: float) -> float:
    """The nearest float32, which is what Darknet stores."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
