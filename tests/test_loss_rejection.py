"""Late-training rules: twenty iterations of real Darknet with rejected deltas, and the rules one by one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import TESTS
from loss_cases import assert_same_text

from darknetpy.losses import LossContext, printed
from darknetpy.losses.rejection import reject
from darknetpy.network import Network
from darknetpy.training.learner import Learner

STEPS = TESTS / "golden" / "train" / "step"


@pytest.mark.parametrize("name", ["badlabels_sigmas", "badlabels_percent", "equidistant"])
def test_losses_and_thresholds_are_darknets_for_twenty_iterations(name):
    folder = STEPS / name
    network = Network(str(folder / "net.cfg"), str(folder / "init.weights"), training=True, strict=True)
    learner = Learner(network, strict=True)
    with np.load(folder / "expected.npz") as stored, np.load(folder / "data.npz") as data:
        images = torch.from_numpy(data["X_u8"].astype(np.float32) / np.float32(255))
        truth, losses, texts = torch.from_numpy(data["truth"]), stored["loss"], stored["printed"]
    for k, (loss, text) in enumerate(zip(losses, texts, strict=True)):
        rows = torch.arange(k * learner.images, (k + 1) * learner.images) % len(images)
        parts = rows.split(learner.net.mini_batch)
        turn = learner.turn([(images[part], truth[part]) for part in parts])
        assert float(turn.loss) == pytest.approx(loss, rel=1e-5)
        lines = [line for mini in turn.mini_batches for line in printed(network.structure.heads, mini.heads)]
        assert_same_text(lines, str(text))


def context(**net) -> LossContext:
    rules = {"num_sigmas_reject_badlabels": 0, "badlabels_rejection_percentage": 0, "equidistant_point": 0} | net
    return LossContext(net_w=8, net_h=8, net=SimpleNamespace(**rules), iteration=80, max_batches=100)


def test_nothing_is_rejected_before_three_quarters_of_the_training():
    early = context(num_sigmas_reject_badlabels=1, badlabels_rejection_percentage=50)
    early.iteration = 75
    delta = torch.tensor([0.1, -5.0])
    assert reject(delta, 1, early) == {}
    assert delta.tolist() == pytest.approx([0.1, -5.0])
    assert early.net_state == {}


def test_the_bound_of_percentages_walks_by_hundredths():
    late = context(badlabels_rejection_percentage=10)
    delta = torch.tensor([0.5, 0.0, -0.25])
    reject(delta, 1, late)
    assert delta.tolist() == [0.5, 0.0, -0.25]  # the first bound is the largest value itself
    assert float(late.net_state["delta_bound"]) == pytest.approx(0.49)
    reject(delta, 1, late)
    assert delta.tolist() == [0.0, 0.0, -0.25]  # 0.5 lies above .49
    assert float(late.net_state["delta_bound"]) == pytest.approx(0.50)


def test_the_bound_of_percentages_stops_above_zero():
    late = context(badlabels_rejection_percentage=100)
    late.net_state.update(delta_bound=torch.tensor(0.009), delta_max=torch.tensor(1.0))
    delta = torch.tensor([0.001, 0.002])
    reject(delta, 1, late)
    assert float(late.net_state["delta_bound"]) == pytest.approx(0.009)


def test_small_deltas_vanish_after_the_equidistant_point():
    even = context(equidistant_point=60)
    even.net_state.update(delta_avg=torch.tensor(0.5), delta_max=torch.tensor(1.0))
    delta = torch.tensor([0.34, -0.36, 0.0, 2.0])
    stats = reject(delta, 1, even)
    assert float(stats["equidistant_threshold"]) == pytest.approx(0.5 * 20 / 40 * 1.4)
    assert delta.tolist() == pytest.approx([0.0, -0.36, 0.0, 2.0])


def test_deviations_are_counted_late_only():
    even = context(equidistant_point=10, num_sigmas_reject_badlabels=2)
    even.iteration = 50
    reject(torch.tensor([0.1, 9.0]), 1, even)
    assert "delta_std" not in even.net_state
