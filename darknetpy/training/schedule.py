"""The learning rate (Darknet: `get_current_rate`)."""

from __future__ import annotations

import math
import random

from darknetpy.config import NetOptions
from darknetpy.config.numbers import to_float32
from darknetpy.errors import warn

POLICIES = ("constant", "step", "steps", "exp", "poly", "random", "sigmoid", "sgdr")


class Schedule:
    """Rate of update `n`, which counts from 1 for a fresh network.

    Args:
        net: the `[net]` options.
        replicas: multiplies the base rate (each replica makes so many times larger steps before averaging).
        seed: of the `random` policy.

    `factor` scales every rate; a run that had to go back lowers it.
    """

    def __init__(self, net: NetOptions, replicas: int = 1, seed: int = 0):
        self.net, self.base = net, net.learning_rate * replicas
        self.policy = net.policy if net.policy in POLICIES else "constant"
        self.seed, self.factor = seed, 1.0
        if self.policy != net.policy:
            warn(f"policy={net.policy} is unknown, constant is used instead")

    def rate(self, n: int) -> float:
        """Learning rate of update `n`: every policy warms up with (n / burn_in)^power first."""
        net = self.net
        if n < net.burn_in:
            return self.factor * self.base * (n / net.burn_in) ** net.power
        return self.factor * getattr(self, f"_{self.policy}")(n)

    def sequence(self, iteration: int) -> int:
        """Mini-batches that a sequence runs through (Darknet: `get_sequence_value`); `steps` shorten or lengthen it."""
        net = self.net
        parallel = min(net.init_sequential_subdivisions, net.subdivisions)
        if net.track and net.policy in ("steps", "sgdr"):
            for step, scale in zip(net.steps or [], net.seq_scales or [], strict=False):
                if step > iteration:
                    break
                parallel = min(max(1, int(parallel * scale)), net.subdivisions)
        return max(1, net.subdivisions // parallel) if parallel > 0 else 1

    def _constant(self, n: int) -> float:
        return self.base

    def _step(self, n: int) -> float:
        return self.base * self.net.scale ** (n // max(1, self.net.step))

    def _steps(self, n: int) -> float:
        rate = self.base
        for step, scale in zip(self.net.steps or [], self.net.scales or [], strict=False):
            if step > n:
                break
            rate *= scale
        return rate

    def _exp(self, n: int) -> float:
        return self.base * self.net.gamma**n

    def _poly(self, n: int) -> float:
        left = to_float32(1 - to_float32(n / max(1, self.net.max_batches)))  # as Darknet, where few digits are left
        value = left**self.net.power
        return self.base * (value if isinstance(value, float) else math.nan)

    def _random(self, n: int) -> float:
        return self.base * random.Random(f"{self.seed}/{n}").random() ** self.net.power

    def _sigmoid(self, n: int) -> float:
        return self.base / (1 + math.exp(min(700.0, self.net.gamma * (n - self.net.step))))

    def _sgdr(self, n: int) -> float:
        start, cycle = 0, max(1, self.net.sgdr_cycle)
        while start + cycle < n:
            start += cycle
            cycle *= max(1, self.net.sgdr_mult)
        low = self.net.learning_rate_min
        return low + 0.5 * (self.base - low) * (1 + math.cos((n - start) * math.pi / cycle))
