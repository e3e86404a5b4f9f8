"""Safetensors files: the tensors by name, without code of any kind."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from darknetpy.errors import UsageError
from darknetpy.export.module import facts_of
from darknetpy.export.onnx import MISSING
from darknetpy.network import Network


def write_safetensors(network: Network, path: str | os.PathLike, names: Sequence[str] = ()) -> None:
    """Write the stored tensors as `LAYER.NAME`, in the order of a `.weights` file, with cfg and header as metadata."""
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise UsageError("a .safetensors file needs the package safetensors", remedy=MISSING) from error
    tensors: dict[str, torch.Tensor] = {
        f"{layer.index}.{spec.name}": tensor.contiguous() for layer, spec, tensor in network.stored_tensors()
    }
    header = network.header
    strings = facts_of(network, names=names).strings()
    save_file(tensors, os.fspath(path), {**strings, "seen": str(header.seen)})


def pairs_of_safetensors(network: Network, path: str | os.PathLike) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Of each stored tensor its name, the network's, and the file's, None where it has none."""
    from safetensors.torch import load_file

    found = load_file(os.fspath(path))
    for layer, spec, tensor in network.stored_tensors():
        name = f"{layer.index}.{spec.name}"
        yield name, tensor, found.get(name)
