"""Memory that a process shares with the processes it forks.

Anonymous mappings have no name: nothing to clean up, and no small /dev/shm (as in containers) to fill.
"""

from __future__ import annotations

import mmap
from collections import deque

import numpy as np


class Buffers:
    """So many buffers of so many bytes, which are lent out by number."""

    def __init__(self, count: int, size: int):
        self.size = size
        self._maps = [mmap.mmap(-1, size) for _ in range(count)]
        self._free = deque(range(count))

    def take(self, size: int) -> int | None:
        """Number of a free buffer that holds `size` bytes, None if there is none."""
        return self._free.popleft() if size <= self.size and self._free else None

    def give_back(self, number: int) -> None:
        self._free.append(number)

    def array(self, number: int, shape: tuple[int, ...], kind: type) -> np.ndarray:
        """The memory of a buffer as an array; in a forked process the same memory."""
        return np.frombuffer(self._maps[number], kind, int(np.prod(shape))).reshape(shape)
