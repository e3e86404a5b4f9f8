"""A training step never waits for the device: all that is read from it is read once a turn, for the log."""

from __future__ import annotations

import pytest
import torch
from conftest import TESTS

from darknetpy import Network
from darknetpy.training.guard import Transaction, told
from darknetpy.training.learner import Learner
from darknetpy.training.turn import KINDS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", ["yolov4-tiny.cfg", "yolov3-tiny.cfg", "yolov7-tiny.cfg", "yolov2.cfg", "yolov4.cfg"])
def test_a_step_does_not_synchronise(name):
    words = ["net.width=128", "net.height=128", "net.batch=4", "net.subdivisions=2", "net.burn_in=0"]
    learner = Learner(Network(TESTS.parent / "cfg" / name, device="cuda", training=True, overrides=words))
    transaction = Transaction(learner)
    x = torch.rand(2, 3, 128, 128, device="cuda")
    truth = torch.tensor([[[0.5, 0.5, 0.3, 0.3, 1, 0], [0.3, 0.4, 0.2, 0.3, 0, 0]]] * 2, device="cuda")
    learner.turn([(x, truth)] * 2)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        transaction.begin()
        done = learner.accumulate_all([(x, truth)] * 2)
        _, numbers = told(learner, done)
        learner.update(sum(mini.rows for mini in done))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert numbers.shape == (2 + len(KINDS),)
