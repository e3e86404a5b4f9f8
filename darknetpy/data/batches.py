"""What every data set gives to the loader: mini-batches as pure functions of their requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from darknetpy.data.sampling import Request


@dataclass
class Batch:
    """Pictures (B, C, H, W), uint8 or float32 in 0..1, or rows (B, inputs); and their truth.

    Attributes:
        truth: (B, M, 6) rows of boxes, M the longest list; or (B, n) targets.
        paths: first picture of each row; fresh: (sequences,) of a text, which of them begin anew, or None.
    """

    images: np.ndarray
    truth: np.ndarray
    request: Request
    paths: list[str] = field(default_factory=list)
    fresh: np.ndarray | None = None


@dataclass
class Rows:
    """Truth and first picture of consecutive rows of a batch."""

    truth: list[np.ndarray]
    paths: list[str]


class Source(Protocol):
    """A data set that a `Loader` makes mini-batches of. Its length is what counts as one epoch."""

    widest: type
    """The widest of the types that the pictures of a batch can have."""

    def __len__(self) -> int: ...

    def shape(self, request: Request) -> tuple[tuple[int, ...], type]:
        """Shape and type of a batch's pictures."""
        ...

    def batch(self, request: Request, empty: Callable[..., np.ndarray] = np.empty) -> Batch:
        """The whole mini-batch of a request, in an array that `empty(shape, type)` makes."""
        ...

    def rows(self, request: Request, first: int, images: np.ndarray) -> Rows:
        """Fill `images` with the rows from `first` on."""
        ...

    def stack(self, truth: Sequence[np.ndarray]) -> np.ndarray:
        """The truth of a batch from that of its rows."""
        ...
