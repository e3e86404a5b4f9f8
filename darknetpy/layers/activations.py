"""Activation functions by Darknet's names, with the gradients that its GPU build uses (Darknet: `activations.h`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from darknetpy.errors import at, warn
from darknetpy.layers.gradients import replace_gradient
from darknetpy.lazy import torch

if TYPE_CHECKING:
    from darknetpy.layers.base import BuildContext, ForwardContext

SELU_SCALE, SELU_ALPHA = 1.0507, 1.6732
NORM_EPSILON = 0.0001


def _functional():
    return torch.nn.functional


def _relie(x):
    return torch.where(x > 0, x, 0.01 * x)


def _ramp(x):
    return torch.relu(x) + 0.1 * x


def _elu(x):
    return torch.where(x >= 0, x, torch.exp(x) - 1)


def _selu(x):
    return SELU_SCALE * torch.where(x >= 0, x, SELU_ALPHA * (torch.exp(x) - 1))


def _gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.797885 * x + 0.035677 * x**3))


def _hard_mish(x):
    return torch.where(x > 0, x, torch.where(x > -2, x * x / 2 + x, 0.0))


def _with_rule(function: Callable, rule: Callable) -> Callable:
    """An activation whose gradient factor is `rule(y)`, evaluated on the output."""

    def apply(x):
        y = function(x)
        return replace_gradient(x, y, lambda gradient, out: gradient * rule(out), y)

    return apply


def _lhtan(x):
    return torch.where(x < 0, 0.001 * x, torch.where(x > 1, 0.001 * (x - 1) + 1, x))


def _plse(x):
    return torch.where(x < -4, 0.01 * (x + 4), torch.where(x > 4, 0.01 * (x - 4) + 1, 0.125 * x + 0.5))


def _stair(x):
    whole = torch.floor(x)
    half = torch.floor(x / 2)
    return torch.where(whole % 2 == 0, half, (x - whole) + half)


def _revleaky(x):
    y = _functional().leaky_relu(x, 0.1)
    return replace_gradient(x, y, lambda gradient, out: gradient * torch.where(out > 0, 1.0, 10.0), y)


def _pick(y, low, high):
    return torch.where(y, low, high)


_FUNCTIONS: dict[str, Callable] = {
    "linear": lambda x: x,
    "logistic": lambda x: torch.sigmoid(x),
    "loggy": lambda x: 2 * torch.sigmoid(x) - 1,
    "relu": lambda x: torch.relu(x),
    "relu6": lambda x: x.clamp(0, 6),
    "leaky": lambda x: _functional().leaky_relu(x, 0.1),
    "revleaky": _revleaky,
    "relie": _with_rule(_relie, lambda y: _pick(y > 0, 1.0, 0.01)),
    "ramp": _with_rule(_ramp, lambda y: (y > 0).float() + 0.1),
    "elu": _with_rule(_elu, lambda y: torch.where(y >= 0, 1.0, y + 1)),
    "selu": _with_rule(_selu, lambda y: torch.where(y >= 0, SELU_SCALE, y + SELU_SCALE * SELU_ALPHA)),
    "gelu": _gelu,
    "tanh": lambda x: torch.tanh(x),
    "hardtan": _with_rule(lambda x: x.clamp(-1, 1), lambda y: ((y > -1) & (y < 1)).float()),
    "lhtan": _with_rule(_lhtan, lambda y: _pick((y > 0) & (y < 1), 1.0, 0.001)),
    "plse": _with_rule(_plse, lambda y: _pick((y < 0) | (y > 1), 0.01, 0.125)),
    "stair": _with_rule(_stair, lambda y: (torch.floor(y) != y).float()),
    "swish": lambda x: _functional().silu(x),
    "mish": lambda x: _functional().mish(x),
    "hard_mish": _hard_mish,
}

_IN_PLACE: dict[str, Callable] = {
    "logistic": lambda x: x.sigmoid_(),
    "relu": lambda x: x.relu_(),
    "leaky": lambda x: _functional().leaky_relu_(x, 0.1),
    "swish": lambda x: _functional().silu(x, inplace=True),
    "mish": lambda x: _functional().mish(x, inplace=True),
    "relu6": lambda x: x.clamp_(0, 6),
    "tanh": lambda x: x.tanh_(),
}


def _finite(x):
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)


def _normalize_channels(x):
    positive = torch.relu(x)
    y = positive / (NORM_EPSILON + positive.sum(1, keepdim=True))
    return replace_gradient(x, y, lambda gradient, out: gradient * torch.where(out > 0, out, 1.0), y)


def _channel_softmax(x, shift):
    powers = torch.exp(x - shift)
    y = _finite(powers / (NORM_EPSILON + powers.sum(1, keepdim=True)))
    return replace_gradient(x, y, lambda gradient, out: _finite(gradient * out * (1 - out)), y)


_FUNCTIONS["normalize_channels"] = _normalize_channels
_FUNCTIONS["normalize_channels_softmax"] = lambda x: _channel_softmax(x, 0.0)
_FUNCTIONS["normalize_channels_softmax_maxval"] = lambda x: _channel_softmax(x, x.amax(1, keepdim=True))

NAMES = tuple(_FUNCTIONS)


def known_activation(name: str, context: BuildContext) -> str:
    """`name`, or `relu` with a message where Darknet doesn't know it."""
    if name in _FUNCTIONS:
        return name
    context.notes.say(f"Couldn't find activation function {name}, going with ReLU")
    if not context.strict and name not in context.said:
        context.said.add(name)
        line = context.line_of("activation")
        warn(f"{context.path}, {at(line)}: activation={name[:60]} is unknown, relu is used instead of it")
    return "relu"


def activate(name: str, x, context: ForwardContext | None = None, in_place: bool = False):
    """Apply the activation `name`; `in_place` may overwrite `x` where nobody needs it."""
    if in_place and name in _IN_PLACE and not torch.is_grad_enabled():
        return _IN_PLACE[name](x)
    return _FUNCTIONS[name](x)
