"""Small constant tensors (anchors, masks, tables), made once a device: making one on a GPU waits for the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from darknetpy.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

_MOST_KEPT = 1024
_kept: dict[tuple, Tensor] = {}
"""By values, type and device; a plain dictionary, which torch.compile can look into."""


def constant(values: Sequence, like: Tensor) -> Tensor:
    """Floats of `like`'s type on its device; not to be written to."""
    return _get(tuple(values), like.dtype, like.device)


def whole(values: Sequence, like: Tensor) -> Tensor:
    """int64 on `like`'s device; not to be written to."""
    return _get(tuple(values), torch.int64, like.device)


def _get(values: tuple, dtype, device) -> Tensor:
    key = (values, dtype, device)
    if key in _kept:
        return _kept[key]
    return _make(key)


def _make(key: tuple) -> Tensor:
    values, dtype, device = key
    with torch.inference_mode(False):
        made = torch.tensor(values, dtype=dtype, device=device)
    if type(made) is torch.Tensor and not torch.compiler.is_compiling():  # what belongs to a trace must not be kept
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[key] = made
    return made
