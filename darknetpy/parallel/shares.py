"""How a turn's pictures are shared out among replicas."""

from __future__ import annotations

from collections.abc import Sequence

from darknetpy.errors import UsageError


def read_shares(text: str | None, count: int) -> tuple[int, ...]:
    """The whole numbers of `-gpu_share`, one for each of `count` replicas; () where all take the same.

    Raises UsageError for anything else.
    """
    if not text:
        return ()
    words = [word.strip() for word in text.split(",")]
    if len(words) != count or not all(word.isdecimal() and 0 < int(word) < 10_000 for word in words):
        raise UsageError(
            f"-gpu_share takes a whole number above 0 for each of the {count} replicas", value=text,
            remedy=f"for example -gpu_share {','.join(['1'] + ['3'] * (count - 1))}",
        )  # fmt: skip
    return () if len(set(words)) == 1 else tuple(map(int, words))


def split(total: int, shares: Sequence[int], unit: int = 1) -> list[int]:
    """`total` in parts like `shares`, each a multiple of `unit` and none empty; what is over goes to the parts that
    miss most of their share. There are at least as many units as parts.

    >>> split(16, (1, 3))
    [4, 12]
    >>> split(8, (1, 3, 3, 3))
    [1, 3, 2, 2]
    """
    units, whole = total // unit, sum(shares)
    parts = [max(1, units * share // whole) for share in shares]
    while sum(parts) != units:
        step = 1 if sum(parts) < units else -1
        missing = [step * (units * share - part * whole) for share, part in zip(shares, parts, strict=True)]
        allowed = [gap if step > 0 or part > 1 else -float("inf") for gap, part in zip(missing, parts, strict=True)]
        parts[allowed.index(max(allowed))] += step
    return [part * unit for part in parts]
