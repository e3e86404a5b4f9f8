"""Activation functions by Darknet's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from darknetpy.errors import warn
from darknetpy.lazy import torch

if TYPE_CHECKING:
    from darknetpy.layers.base import BuildContext, ForwardContext


def _leaky(x):
    return torch.nn.functional.leaky_relu(x, 0.1)


_FUNCTIONS: dict[str, Callable] = {
    "linear": lambda x: x,
    "logistic": lambda x: torch.sigmoid(x),
    "relu": lambda x: torch.relu(x),
    "leaky": _leaky,
    "mish": lambda x: torch.nn.functional.mish(x),
    "swish": lambda x: torch.nn.functional.silu(x),
}


def known_activation(name: str, context: BuildContext) -> str:
    """`name`, or `relu` with a message where Darknet doesn't know it."""
    if name in _FUNCTIONS:
        return name
    context.notes.say(f"Couldn't find activation function {name}, going with ReLU")
    if not context.strict:
        warn(f"{context.path}, layer {context.index}: activation={name} is unknown, relu is used instead")
    return "relu"


def activate(name: str, x, context: ForwardContext):
    """Apply the activation `name`."""
    return _FUNCTIONS[name](x)
