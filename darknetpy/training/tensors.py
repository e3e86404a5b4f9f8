"""Structures of tensors, and the generators that layers draw from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def copy_tensors(value: Any, device: torch.device | None = None) -> Any:
    """A structure of dicts, lists and tuples with its tensors cloned (to `device`)."""
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, dict):
        return {key: copy_tensors(part, device) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copy_tensors(part, device) for part in value)
    return value


def random_state(device: torch.device) -> list[Tensor]:
    """State of torch's generators: the CPU's and the device's."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def set_random_state(states: Sequence[Tensor], device: torch.device) -> None:
    """Bring the generators back. A state of another kind of device is left out."""
    torch.set_rng_state(states[0].cpu())
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1].cpu(), device)


@contextmanager
def untouched_random(device: torch.device) -> Iterator[None]:
    """What is drawn inside does not show outside."""
    before = random_state(device)
    try:
        yield
    finally:
        set_random_state(before, device)
