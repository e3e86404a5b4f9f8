"""The `.pt` form of a network: plain tensors, the cfg text and the header, readable with `weights_only=True`.

{"format": "darknetpy", "version": 1, "cfg": str, "header": [major, minor, revision, seen],
 "tensors": {"0.biases": Tensor, ...}}
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from darknetpy.errors import MissingFileError, WeightsError
from darknetpy.files import atomic_write
from darknetpy.lazy import torch
from darknetpy.weights import Block, Header, WeightsFile

FORMAT, VERSION = "darknetpy", 1


def is_pt(path: str | os.PathLike) -> bool:
    """Whether a name means a PyTorch file."""
    return os.fspath(path).lower().endswith((".pt", ".pth"))


def write_pt(path: str | os.PathLike, cfg_text: str, header: Header, tensors: dict[str, Any]) -> None:
    """Write network, weights and header; to a temporary file first."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "cfg": cfg_text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        "header": [header.major, header.minor, header.revision, header.seen],
        "tensors": {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
    }
    with atomic_write(path) as stream:
        torch.save(content, stream)


def load_pt(path: str | os.PathLike) -> dict[str, Any]:
    """The content of a `.pt` file, without running anything in it.

    Raises MissingFileError, or WeightsError where it is no such file.
    """
    name = os.fspath(path)
    content = load_plain(name)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise WeightsError("is a PyTorch file, but not one of darknetpy's", file=name, remedy="convert it with export")
    _check_content(name, content)
    return content


def load_plain(path: str | os.PathLike) -> Any:
    """What a PyTorch file holds, on the CPU: containers, numbers, text and tensors, nothing that runs.

    Raises MissingFileError, or WeightsError for a file that is damaged or holds anything else.
    """
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise MissingFileError(name)
    _check_size(name)
    try:
        return torch.load(name, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for damaged or hostile files
        first = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise WeightsError(f"is no plain-tensor PyTorch file: {first}", file=name) from error


def _check_size(name: str) -> None:
    """Refuse an archive that would unpack to much more than its own size."""
    try:
        with zipfile.ZipFile(name) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError) as error:
        raise WeightsError("is no PyTorch file (not a zip archive)", file=name) from error
    if unpacked > 2 * os.path.getsize(name) + (1 << 20):
        raise WeightsError(f"claims to unpack to {unpacked} bytes, which is refused", file=name)


def _check_content(name: str, content: dict[str, Any]) -> None:
    header, tensors = content.get("header"), content.get("tensors")
    whole = isinstance(header, list) and len(header) == 4 and all(isinstance(n, int) and 0 <= n < 2**64 for n in header)
    plain = isinstance(tensors, dict) and all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in tensors.items()
    )
    if not whole or not plain or not isinstance(content.get("cfg"), str):
        raise WeightsError("is a darknetpy file with parts missing or damaged", file=name)


def read_pt(path: str | os.PathLike, layout: Sequence[Block]) -> WeightsFile:
    """Map a `.pt` file onto a layout. Raises WeightsError where a tensor is missing or of another shape."""
    name = os.fspath(path)
    content = load_pt(name)
    tensors = content["tensors"]
    result = WeightsFile(Header(*content["header"]), layers=layout[-1].layer + 1 if layout else 0)
    expected = {
        f"{block.layer}.{tensor}": (block, tensor, shape) for block in layout for tensor, shape in block.tensors
    }
    for key, (block, tensor, shape) in expected.items():
        value = tensors.get(key)
        if value is None:
            raise WeightsError(f"has no tensor {key} for layer {block.layer} [{block.kind}] of this cfg", file=name)
        if tuple(value.shape) != tuple(shape):
            raise WeightsError(
                f"tensor {key} is {tuple(value.shape)}, this cfg needs {tuple(shape)}",
                file=name,
                remedy="use the cfg that it was made with",
            )
        result.arrays[block.layer, tensor] = np.asarray(value.to(torch.float32).numpy())
    return result
