"""Deltas, costs and printed lines of every head against what Darknet computed from the same outputs and truths."""

from __future__ import annotations

import numpy as np
import pytest
from loss_cases import Case, assert_same_text, names

from darknetpy.losses import printed

BOXES = [*names("yolo_"), *names("gauss_"), *names("region_"), *names("det_")]
OTHERS = [*names("softmax_"), *names("cost_"), *names("contrastive_")]
FOLLOWED = ("softmax_then_cost", "softmax_noloss_cost")
"""The stored delta of these softmax layers holds the share of the [cost] after them, too."""
WARNED = "yolo_badclass"
"""Darknet prints a warning of a bad class once a prediction."""


@pytest.fixture(scope="module")
def case():
    """Cases by name, each loaded once."""
    loaded: dict[str, Case] = {}
    return lambda name: loaded.setdefault(name, Case(name))


def test_the_collection_is_complete():
    assert len(BOXES) == 60
    assert len(OTHERS) == 13


@pytest.mark.parametrize("name", BOXES + OTHERS)
def test_deltas_are_darknets(case, name):
    for mini in case(name).mini_batches():
        for head in mini.heads:
            expected = mini.deltas[head.index]
            if name in FOLLOWED and head.type == "softmax":
                continue
            actual = mini.losses[head.index].delta.numpy().reshape(expected.shape)
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * np.abs(expected).max() + 1e-9)


@pytest.mark.parametrize("name", FOLLOWED)
def test_deltas_of_softmax_and_of_the_cost_after_it_add_up(case, name):
    for mini in case(name).mini_batches():
        total = sum(mini.losses[head.index].delta.numpy() for head in mini.heads)
        softmax = next(head for head in mini.heads if head.type == "softmax")
        np.testing.assert_allclose(total, mini.deltas[softmax.index].reshape(total.shape), atol=1e-6)


@pytest.mark.parametrize("name", BOXES + OTHERS)
def test_costs_are_darknets(case, name):
    seen = 0
    for mini in case(name).mini_batches():
        for index, cost in mini.costs.items():
            assert float(mini.losses[index].cost) == pytest.approx(cost, rel=1e-5)
            seen += 1
    assert seen


@pytest.mark.parametrize("name", [*BOXES, *names("contrastive_")])
def test_printed_lines_are_darknets(case, name):
    for mini in case(name).mini_batches():
        expected = mini.printed
        if name == WARNED:
            expected = expected[expected.index("v3 (") :]
        assert_same_text(printed(mini.heads, mini.losses), expected)
