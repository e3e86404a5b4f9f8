"""[conv_lstm] in training: the default follows the true gradient, strict follows Darknet (whose numbers are golden)."""

from __future__ import annotations

import pytest
import torch

from darknetpy import Network
from darknetpy.config import parse_cfg
from darknetpy.layers import ForwardContext

CFG = """[net]
batch=6
subdivisions=1
width=5
height=4
channels=2
time_steps=3

[conv_lstm]
size=3
pad=1
output=3
activation=leaky
{keys}
"""


def _network(keys: str, strict: bool) -> tuple[Network, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    network = Network(parse_cfg(CFG.format(keys=keys)), training=True, strict=strict).double()
    with torch.no_grad():
        for parameter in network.parameters():  # a bias of 0 and a state of 0 meet in the kink of leaky
            parameter += 0.3 * torch.randn_like(parameter)
    return network, torch.randn(6, 2, 4, 5).double(), torch.randn(6, 3, 4, 5).double()


def _value(network: Network, x, push) -> torch.Tensor:
    return (network.run(x, ForwardContext(training=True)).outputs[-1] * push).sum()


def _slopes(keys: str, strict: bool) -> tuple[float, float]:
    """Derivative along a random direction: by autograd and by differences."""
    network, x, push = _network(keys, strict)
    parameters = list(network.parameters())
    directions = [torch.randn_like(p) for p in parameters]
    _value(network, x, push).backward()
    by_gradient = sum(float((p.grad * d).sum()) for p, d in zip(parameters, directions, strict=True))
    ends = []
    for step in (1e-6, -1e-6):
        network.reset_state()
        with torch.no_grad():
            for p, d in zip(parameters, directions, strict=True):
                p += step * d
            ends.append(float(_value(network, x, push)))
            for p, d in zip(parameters, directions, strict=True):
                p -= step * d
    return by_gradient, (ends[0] - ends[1]) / 2e-6


@pytest.mark.parametrize("keys", ["", "batch_normalize=1", "peephole=1", "bottleneck=1\nlstm_activation=leaky"])
def test_the_default_gradient_is_the_true_one(keys: str) -> None:
    by_gradient, by_difference = _slopes(keys, strict=False)
    assert by_gradient == pytest.approx(by_difference, rel=1e-5)


def test_the_strict_gradient_is_another() -> None:
    by_gradient, by_difference = _slopes("", strict=True)
    assert by_gradient != pytest.approx(by_difference, rel=1e-2)


def test_only_strict_mini_batches_remember() -> None:
    for strict in (False, True):
        network, x, push = _network("", strict)
        values = []
        for _ in range(2):
            value = _value(network, x, push)
            value.backward()
            values.append(value.item())
        assert (values[0] != values[1]) == strict


def test_strict_memory_of_another_size_is_dropped() -> None:
    network, x, push = _network("", strict=True)
    _value(network, x, push).backward()
    small, push = x[..., :3], push[..., :3]
    first = _value(network, small, push).item()
    network.reset_state()
    assert first == _value(network, small, push).item()


def test_time_normalizer_scales_what_comes_back_through_time() -> None:
    slopes = {_slopes(f"time_normalizer={factor}", strict=False)[0] for factor in (1.0, 0.5)}
    assert len(slopes) == 2
