"""Random network sizes against the sizes that Darknet drew."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import golden

from darknetpy.data.resize import Sizes, dynamic_batch

LEAST = 1
"""Where Darknet's arithmetic comes to an empty mini-batch (random below 1), one row is kept."""
RANGES = {320: (256, 480), 416: (320, 608), 512: (384, 736), 608: (480, 896)}
"""random=1: initial size to the smallest and largest size that Darknet reaches."""


def test_sizes_and_batches_of_given_scales_are_darknets():
    for table in json.loads(golden("train", "resize", "dims_table.json").read_text()):
        sizes = Sizes(table["init_w"], table["init_h"], table["random"], table["resize_step"])
        largest = (table["max_dim_w"], table["max_dim_h"])
        assert sizes.largest == largest
        assert [*sizes.largest, dynamic_batch(table["init_mini_batch"], largest, largest)] == table["forced_first"]
        for value, w, h, batch in table["rows"]:
            size = sizes.at(value)
            assert (size, dynamic_batch(table["init_mini_batch"], largest, size)) == ((w, h), max(batch, LEAST)), (
                table,
                value,
            )


@pytest.mark.parametrize("side", RANGES)
def test_random_1_reaches_darknets_range(side):
    sizes = Sizes(side, side, 1)
    reached = {sizes.at(sizes.draw(5, turn))[0] for turn in range(0, 4000, 10)}
    assert (min(reached), max(reached)) == RANGES[side]
    assert all(size % 32 == 0 for size in reached)


def test_a_draw_depends_on_seed_and_turn_alone():
    sizes = Sizes(416, 416, 1)
    draws = [sizes.draw(1, turn) for turn in range(200)]
    assert draws == [sizes.draw(1, turn) for turn in range(200)]
    assert draws != [sizes.draw(2, turn) for turn in range(200)]
    grown = sum(value > 1 for value in draws)
    assert 70 < grown < 130, "half of the scales enlarge"
    np.testing.assert_array_less(np.abs(np.log(draws)), np.log(1.4) + 1e-6)
