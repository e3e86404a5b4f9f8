"""Small constant tensors (anchors, masks, tables), made once a device: making one on a GPU waits for the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from darknetpy.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

_KEPT = 512


class _Traced(Exception):
    """Carries a tensor that must not be kept: it belongs to a trace."""


@lru_cache(maxsize=_KEPT)
def _kept(values: tuple, dtype, device) -> Tensor:
    with torch.inference_mode(False):
        made = torch.tensor(values, dtype=dtype, device=device)
    if type(made) is not torch.Tensor:
        raise _Traced(made)
    return made


def constant(values: Sequence, like: Tensor) -> Tensor:
    """Floats of `like`'s type on its device; not to be written to."""
    return _get(values, like.dtype, like.device)


def whole(values: Sequence, like: Tensor) -> Tensor:
    """int64 on `like`'s device; not to be written to."""
    return _get(values, torch.int64, like.device)


def _get(values: Sequence, dtype, device) -> Tensor:
    try:
        return _kept(tuple(values), dtype, device)
    except _Traced as traced:
        return traced.args[0]
