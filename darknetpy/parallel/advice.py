"""What several replicas make of a cfg's numbers, in words, and where that is risky."""

from __future__ import annotations

from darknetpy.config import NetOptions
from darknetpy.parallel.replicas import Averaging, Single

LEAST_ALONE = 1000
"""Iterations on one device that Darknet's authors advise before the others join in."""
LEAST_STEPS = 300
"""Updates of burn-in below which several replicas from random weights have been seen to learn badly or to diverge."""


def alone(net: NetOptions) -> int:
    """Iterations that one device should train before the others join in."""
    return max(LEAST_ALONE, net.burn_in)


def arithmetic(net: NetOptions, replicas: Single, parts: list[int], strict: bool = False) -> list[str]:
    """How a turn, an iteration and the learning rate hang together; [] for one replica.

    Args:
        parts: images of a turn for each replica.
    """
    size, rate = replicas.size, net.learning_rate
    if size == 1:
        return []
    each = f"each takes {parts[0]}" if len(set(parts)) == 1 else f"they take {', '.join(map(str, parts))}"
    lines = [
        f"{size} replicas train: {each} images a turn, {sum(parts)} together, and a turn counts as {size} iterations",
        f"max_batches={net.max_batches} are {-(-net.max_batches // size)} turns, "
        f"burn_in={net.burn_in} are {-(-net.burn_in // size)}",
    ]
    if replicas.gradients:
        lines.append(f"every update takes the mean gradient of all, with learning rate {rate:g} x {size}")
        return lines
    lines.append(
        f"each makes its own updates with learning rate {rate:g} x {size} = {rate * size:g}; the mean of the weights "
        f"then moves about as far as {size} updates with {rate:g} would move it"
    )
    lines.append(f"weights are averaged {_when(replicas, strict)} and before every save")
    return lines


def _when(replicas: Single, strict: bool) -> str:
    if strict or not isinstance(replicas, Averaging):
        return "whenever the iteration is a multiple of 4"
    return "after every turn" if replicas.turns == 1 else f"after every {replicas.turns} turns"


def risk(net: NetOptions, size: int, here: bool = True) -> str | None:
    """What to fear of so many replicas that start from random weights, and the remedies; None for nothing.

    Args:
        here: they were started by this program, which can then begin with one of them.
    """
    steps = net.burn_in // size
    if size == 1 or steps >= LEAST_STEPS:
        return None
    count = alone(net)
    first = f"-burn_in_single auto trains the first {count} iterations on one device"
    return (
        f"the burn-in of {size} replicas from random weights is {steps} updates: with fewer than about {LEAST_STEPS} "
        f"they often learn badly or diverge; {first if here else f'train on one device first, with -until {count}'}, "
        f"-set net.learning_rate={net.learning_rate / size:g} "
        f"net.burn_in={max(net.burn_in, LEAST_STEPS) * size} makes the steps small and many"
    )
