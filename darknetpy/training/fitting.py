"""`subdivisions`: given, or as few as the memory of the device allows."""

from __future__ import annotations

import gc
from collections.abc import Callable
from copy import deepcopy

import torch

from darknetpy.data.resize import Sizes
from darknetpy.errors import UsageError, silenced, warn
from darknetpy.layers import Structure, read_structure
from darknetpy.network import Network
from darknetpy.parallel import Single
from darknetpy.runtime import Policy, free_cached_memory, memory_to_have, reserved_memory, reset_peak, trouble_of
from darknetpy.training.learner import TRUTH_SIZE, Learner
from darknetpy.training.tensors import untouched_random

MARGIN = 0.9
"""Share of the memory that a mini-batch may take; evaluations and other sizes need some, too."""


def with_subdivisions(
    structure: Structure, wanted: int | str, device: str, replicas: Single, policy: Policy
) -> Structure:
    """The same network with so many `subdivisions`, or (`auto`) with the fewest whose mini-batch fits at the largest
    random size on every replica; the images of an update stay the same. Raises UsageError."""
    if wanted == "auto":
        if not device.startswith("cuda"):
            warn(f"-subdivisions auto looks at the memory of GPUs; on the CPU {structure.net.subdivisions} stay")
            return structure
        policy.apply()

        def fit(count: int) -> bool:
            return not replicas.total(float(not fits(divided(structure, count), device, policy)))[0]

        count = fewest(divisors(structure.net.batch), fit)
        warn(f"subdivisions={count}: the largest mini-batch that fits is {structure.net.batch // count}")
        return divided(structure, count)
    try:
        count = int(wanted)
    except ValueError:
        count = 0
    if not 1 <= count <= structure.net.batch or structure.net.batch % count:
        raise UsageError(
            f"-subdivisions must divide batch={structure.net.batch}", value=wanted, remedy="or be auto"
        )  # fmt: skip
    return divided(structure, count)


def divided(structure: Structure, count: int) -> Structure:
    """The same network with other `subdivisions`."""
    cfg = deepcopy(structure.cfg)
    cfg.override([f"net.subdivisions={count}"])
    with silenced():
        return read_structure(cfg, structure.strict)


def divisors(batch: int) -> list[int]:
    """Numbers of subdivisions that part a batch evenly, from few to many."""
    return [count for count in range(1, batch + 1) if batch % count == 0]


def fewest(counts: list[int], fit: Callable[[int], bool]) -> int:
    """The first of ascending numbers that fits, as all after it do; the last one where none does."""
    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fit(counts[middle]) else (middle + 1, high)
    return counts[low]


def fits(structure: Structure, device: str, policy: Policy) -> bool:
    """Whether two turns of one mini-batch at the largest size stay within the memory; leaves no trace."""
    available = memory_to_have(device)
    place = torch.device(device)
    try:
        with untouched_random(place):
            reset_peak(device)
            _try(structure, place, policy)
            return reserved_memory(device) <= MARGIN * available
    except (RuntimeError, MemoryError) as error:
        trouble = trouble_of(error)
        if trouble is None or trouble.kind != "memory":
            raise
        return False
    finally:
        gc.collect()  # gradients and what they belong to hold each other
        free_cached_memory()


def _try(structure: Structure, device: torch.device, policy: Policy) -> None:
    learner = Learner(Network.from_structure(structure, device), structure.strict, policy=policy)
    net = structure.net
    random = getattr(structure.leading_head.options, "random", 0)
    width, height = Sizes(net.width, net.height, random, int(net.resize_step) or 32).largest
    x = torch.zeros(net.mini_batch, net.channels, height, width, device=device)
    truth = torch.zeros(net.mini_batch, getattr(structure.leading_head.options, "max", 1), TRUTH_SIZE, device=device)
    truth[:, 0] = torch.tensor([0.5, 0.5, 0.3, 0.3, 0, 0])
    for _ in range(2):  # the second one has momentum
        learner.turn([(x, truth)])
