"""Texts as sequences of symbols, and mini-batches of them (Darknet: `get_rnn_data`, `get_seq2seq_data`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from darknetpy.data.batches import Batch, Rows
from darknetpy.data.sampling import Request
from darknetpy.errors import DataError, MissingFileError

MAX_BYTES = 1 << 31
RESTART = 0.1
"""How likely a stream jumps to another place of the text after a mini-batch."""
_JUMPS = 11
"""Part of the seed of these draws."""


def read_symbols(path: str | os.PathLike, inputs: int, tokenized: bool = False) -> np.ndarray:
    """The bytes of a file, or with `tokenized` the whole numbers in it, as int64.

    Raises MissingFileError, or DataError for what is no text of at least two symbols below `inputs`.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise MissingFileError(name) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise DataError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=name) from error
    if len(data) > MAX_BYTES:
        raise DataError(f"is longer than {MAX_BYTES} bytes", file=name)
    symbols = _numbers(data, name) if tokenized else np.frombuffer(data, np.uint8).astype(np.int64)
    check_symbols(symbols, inputs, name)
    if len(symbols) < 2:
        raise DataError("is too short to learn from", file=name)
    return symbols


def _numbers(data: bytes, name: str) -> np.ndarray:
    try:
        return np.array(data.split(), dtype="S20").astype(np.int64)
    except (ValueError, OverflowError) as error:
        raise DataError(
            f"is no list of whole numbers: {error}"[:160], file=name, remedy="leave -tokenized out"
        ) from None


def check_symbols(symbols: np.ndarray, inputs: int, name: str) -> None:
    """Raise DataError for a symbol that a network of so many inputs does not know."""
    wrong = np.flatnonzero((symbols < 0) | (symbols >= inputs))
    if len(wrong):
        raise DataError(
            f"symbol {int(symbols[wrong[0]])} at place {int(wrong[0])} is outside 0..{inputs - 1}", file=name,
            remedy="set inputs= in [net] to the number of symbols",
        )  # fmt: skip


def one_hot(symbols: np.ndarray, inputs: int, target: np.ndarray | None = None) -> np.ndarray:
    """(n, inputs) float32 with a 1 in each row."""
    rows = np.zeros((len(symbols), inputs), np.float32) if target is None else target
    rows[:] = 0
    rows[np.arange(len(symbols)), symbols] = 1
    return rows


class TextData:
    """Streams that read a text, each from a place of its own, and now and then jump to another.

    Rows are time-major: step t of stream s is row t * streams + s; the target is the symbol that follows.

    Args:
        symbols: of the text; inputs: of the network; steps: symbols that a stream reads in a mini-batch.
        subdivisions: mini-batches of a turn; replicas: that take part, each with streams of its own.
        seed: of the jumps. All follows from it and the number of the mini-batch, so that a run can be resumed.
    """

    widest = np.float32

    def __init__(
        self, symbols: np.ndarray, inputs: int, steps: int = 1, subdivisions: int = 1, replicas: int = 1, seed: int = 0
    ):
        self.symbols, self.inputs, self.steps = symbols, inputs, max(1, steps)
        self.subdivisions, self.replicas, self.seed = max(1, subdivisions), max(1, replicas), seed

    def __len__(self) -> int:
        return len(self.symbols)

    def shape(self, request: Request) -> tuple[tuple[int, ...], type]:
        return (request.count, self.inputs), np.float32

    def batch(self, request: Request, empty: Callable[..., np.ndarray] = np.empty) -> Batch:
        """One-hot rows (steps * streams, inputs) and targets; `fresh` says which streams have just jumped."""
        streams = max(1, request.count // self.steps)
        first, fresh = self.places(request, streams)
        places = first + np.arange(request.count // streams)[:, None]
        at = lambda shift: self.symbols[(places + shift) % len(self.symbols)].ravel()  # noqa: E731
        images = one_hot(at(0), self.inputs, empty(*self.shape(request)))
        return Batch(images, one_hot(at(1), self.inputs), request, fresh=fresh)

    def places(self, request: Request, streams: int) -> tuple[np.ndarray, np.ndarray]:
        """Where each stream reads in this mini-batch, and whether it jumped there."""
        rank, part = divmod(request.chunk, self.subdivisions)
        number = request.iteration // self.replicas * self.subdivisions + part
        first, jumped = np.full(streams, -1), np.zeros(streams, bool)
        for past in range(number, -1, -1):
            rng = np.random.default_rng([abs(self.seed), past, rank, _JUMPS])
            jumps = (rng.random(streams) < RESTART) | (past == 0)
            landed = rng.integers(len(self.symbols), size=streams) + (number - past) * self.steps
            first = np.where(jumps & (first < 0), landed, first)
            jumped |= jumps & (past == number)
            if (first >= 0).all():
                break
        return first, jumped

    def rows(self, request: Request, first: int, images: np.ndarray) -> Rows:
        batch = self.batch(request)
        part = slice(first, first + len(images))
        images[:] = batch.images[part]
        return Rows(list(batch.truth[part]), [])

    def stack(self, truth: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(truth)
