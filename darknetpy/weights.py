"""The `.weights` byte format: a header, then float32 arrays in layer order, without names or padding.

This file knows sizes and order only from the layout it is given; it never allocates before the file's own size has
been compared with it (Darknet: `load_weights_upto`, `save_weights_upto`).
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from darknetpy.errors import MissingFileError, WeightsError, warn
from darknetpy.files import atomic_write

_VERSION = struct.Struct("<iii")
_OTHER_FILES = {b"<": "a web page (HTML)", b"PK\x03\x04": "a zip archive (a .pt file?)", b"[": "text (a cfg?)"}


@dataclass(frozen=True)
class Header:
    """Version numbers and `seen`, the number of training images so far. Darknet writes 0.2.5."""

    major: int = 0
    minor: int = 2
    revision: int = 5
    seen: int = 0

    @property
    def wide(self) -> bool:
        """`seen` takes 8 bytes instead of 4."""
        return self.major * 10 + self.minor >= 2

    @property
    def size(self) -> int:
        return 20 if self.wide else 16

    @property
    def transpose(self) -> bool:
        """Old files store connected weights as [in][out]."""
        return self.major > 1000 or self.minor > 1000

    def encode(self) -> bytes:
        return _VERSION.pack(self.major, self.minor, self.revision) + struct.pack(
            "<Q" if self.wide else "<I", self.seen
        )


@dataclass(frozen=True)
class Block:
    """The arrays of one layer: `tensors` are (name, shape) in file order.

    `passed_over` names those that the layer owns but does not read; a file without names must not hold them.
    """

    layer: int
    kind: str
    tensors: Sequence[tuple[str, tuple[int, ...]]]
    passed_over: Sequence[str] = ()

    @property
    def count(self) -> int:
        return sum(math.prod(shape) for _, shape in self.tensors)


@dataclass
class WeightsFile:
    """What was read.

    Attributes:
        header: version and seen.
        arrays: (layer, name) -> float32 array of the layout's shape; a view of the mapped file.
        layers: number of layers of the layout that the file covers (all, or up to the cut).
        cut_inside: (layer, name, count) of an array of which only a prefix was there (strict only).
        names: of the classes, where the file has them.
    """

    header: Header
    arrays: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)
    layers: int = 0
    cut_inside: list[tuple[int, str, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


def read_header(path: str | os.PathLike) -> Header:
    """The header alone. Raises MissingFileError, or WeightsError for a file that is too short or something else."""
    name = os.fspath(path)
    if os.path.exists(name) and not os.path.isfile(name):
        raise WeightsError("is no ordinary file", file=name)
    try:
        with open(name, "rb") as stream:
            data = stream.read(20)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise MissingFileError(name) from error
    for magic, what in _OTHER_FILES.items():
        if data.startswith(magic):
            raise WeightsError(f"is {what}, not a .weights file", file=name)
    if len(data) < 16:
        raise WeightsError(
            f"is {len(data)} bytes long, too short for a header of 16 or 20 bytes", file=name,
            remedy="was it copied or downloaded completely?",
        )  # fmt: skip
    major, minor, revision = _VERSION.unpack_from(data)
    if not (0 <= major <= 10_000 and 0 <= minor <= 10_000):
        raise WeightsError(f"has the impossible version {major}.{minor}.{revision}", file=name, remedy="is it damaged?")
    wide = Header(major, minor).wide
    if wide and len(data) < 20:
        raise WeightsError(f"is {len(data)} bytes long, too short for a header of 20 bytes", file=name)
    return Header(major, minor, revision, struct.unpack_from("<Q" if wide else "<I", data, 12)[0])


def read_weights(
    path: str | os.PathLike, layout: Sequence[Block], strict: bool = False, layers: int = 0, goes_on: bool = False
) -> WeightsFile:
    """Map a `.weights` file onto a layout.

    Args:
        path: the file.
        layout: blocks in layer order; layers without tensors may be left out.
        strict: as Darknet: a file cut inside an array fills a prefix, one that is too long is a warning.
        layers: number of layers of the network, for the message.
        goes_on: the layout is only the beginning of the file; what follows is left alone.

    Raises WeightsError where the file ends inside a layer's arrays or is longer than the layout.
    """
    name = os.fspath(path)
    header = read_header(name)
    size = os.path.getsize(name) - header.size
    available, odd, expected = size // 4, size % 4, sum(block.count for block in layout)
    layers = layers or (layout[-1].layer + 1 if layout else 0)
    counts = f"expected {header.size + 4 * expected} bytes for this cfg, the file has {header.size + size}"
    if not goes_on and (available > expected or (odd and available == expected)):
        _refuse(name, f"is longer than the network: {counts}", "use the cfg that it was trained with", strict)
    result = WeightsFile(header, layers=layers)
    values = np.memmap(name, np.float32, "r", header.size, (available,)) if available else np.empty(0, np.float32)
    position = 0
    for block in layout:
        if position == available and block.count and (strict or not odd):
            result.layers = block.layer
            warn(f"{name}: ends before layer {block.layer} of {layers}: from there on layers keep their initial values")
            break
        if position + block.count > available:
            inside = f"ends inside layer {block.layer} [{block.kind}] ({counts})"
            _refuse(name, inside, "the file is cut off or belongs to another cfg", strict)
        position = _take(result, block, values, position)
    if not strict and (damage := not_finite(result.arrays)):
        warn(f"{name}: {damage}")
    return result


def not_finite(arrays: dict[tuple[int, str], np.ndarray]) -> str | None:
    """What to say of arrays that hold numbers which are none, as a training that ran away leaves them; else None."""
    with np.errstate(all="ignore"):
        # a sum is finite where all its parts are, but for an overflow
        suspects = {place: array for place, array in arrays.items() if not np.isfinite(array.sum())}
    for (layer, name), array in suspects.items():
        if count := array.size - int(np.isfinite(array).sum()):
            return f"layer {layer}: {count} of {array.size} {name} are inf or nan: was it saved after training failed?"
    return None


def _refuse(name: str, message: str, remedy: str, strict: bool) -> None:
    if not strict:
        raise WeightsError(message, file=name, remedy=remedy)
    warn(f"{name}: {message}")


def _take(result: WeightsFile, block: Block, values: np.ndarray, position: int) -> int:
    for tensor, shape in block.tensors:
        count = math.prod(shape)
        part = values[position : position + count]
        if len(part) == count:
            result.arrays[block.layer, tensor] = part.reshape(shape)
        elif len(part):
            result.arrays[block.layer, tensor] = part
            result.cut_inside.append((block.layer, tensor, len(part)))
        position = min(position + count, len(values))
    return position


def write_weights(path: str | os.PathLike, header: Header, arrays: Iterable[np.ndarray]) -> None:
    """Write header and arrays, to a temporary file first: `path` is either the old file or the whole new one."""
    with atomic_write(path) as stream:
        stream.write(header.encode())
        for array in arrays:
            stream.write(np.ascontiguousarray(array, np.float32).tobytes())
