"""Losses stay on the device: nothing is read back, and no constant is made anew, during a mini-batch."""

from __future__ import annotations

import pytest
import torch
from loss_cases import Case, names
from torch.utils._python_dispatch import TorchDispatchMode

from darknetpy.losses import HeadLoss

CASES = [*names("yolo_"), *names("gauss_"), *names("region_"), *names("det_"), *names("softmax_"), *names("cost_")]
"""All but [contrastive], whose number of labelled positions decides the size of a matrix."""
WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "lift_fresh",
    "is_nonzero",
    "bincount",
)
"""Operations that wait for a GPU: values read by Python, sizes that depend on values, tensors made from numbers."""


class NeverWaits(TorchDispatchMode):
    """Fails at the first operation for which the host would wait."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in WAITING or (name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])):
            raise AssertionError(f"{name} waits for the device")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CASES)
def test_no_loss_waits_for_the_device(name):
    case = Case(name)
    list(case.mini_batches())  # constants are made
    for mini in case.mini_batches(around=NeverWaits):
        assert mini.losses


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", [*CASES, *names("contrastive_")])
def test_a_gpu_computes_the_same_without_being_waited_for(name):
    on_cpu, case = Case(name), Case(name, device="cuda")
    list(case.mini_batches())
    around = SyncError if name in CASES else None
    for here, there in zip(on_cpu.mini_batches(), case.mini_batches(around=around), strict=True):
        for index, loss in here.losses.items():
            assert_close(there.losses[index], loss)


class SyncError:
    """Lets CUDA complain about every wait."""

    def __enter__(self):
        torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *error):
        torch.cuda.set_sync_debug_mode("default")


def assert_close(actual: HeadLoss, expected: HeadLoss) -> None:
    bound = float(expected.delta.abs().max()) if expected.delta.numel() else 1.0
    torch.testing.assert_close(actual.delta.cpu(), expected.delta, rtol=1e-5, atol=1e-6 * bound + 1e-9)
    torch.testing.assert_close(actual.cost.cpu(), expected.cost, rtol=1e-5, atol=1e-6)
    assert actual.numbers() == pytest.approx(expected.numbers(), rel=1e-5, abs=1e-5)
