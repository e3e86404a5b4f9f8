"""Loading and augmentation against Darknet's: the same draws give the same bytes.

The comparing is that of tools/golden/augment.py; here each case is a test of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import SHARED, TESTS, golden

from darknetpy.data import pixels
from darknetpy.data.draws import detector_mode

sys.path.insert(0, str(TESTS.parent))

from tools.golden import augment
from tools.golden.common import OK, inside


def folder(kind: str) -> Path:
    return golden("augment", kind)


def names(kind: str) -> list[str]:
    here = next((place for root in (TESTS, SHARED) if (place := root / "golden" / "augment" / kind).exists()), None)
    return list(augment.load(here)[0]) if here else ["not here"]


def of_kind(kind: str):
    return pytest.mark.parametrize("name", [name for name in names(kind) if not name.startswith(augment.NO_TARGETS)])


def assert_ok(kind: str, name: str) -> None:
    cases, arrays = augment.load(folder(kind))
    outcome = augment.check_case(folder(kind), kind, name, cases[name], arrays)
    assert outcome.status == OK, outcome.note


@of_kind("pixels")
def test_pixels_are_darknets_to_the_byte(name):
    assert_ok("pixels", name)


@of_kind("combine")
def test_mosaic_and_mixup_of_given_pictures_are_darknets(name):
    assert_ok("combine", name)


@of_kind("end_to_end")
def test_batches_of_given_draws_are_darknets(name):
    assert_ok("end_to_end", name)


@of_kind("truth")
def test_truth_rows_messages_and_lists_are_darknets(name):
    assert_ok("truth", name)


@pytest.mark.parametrize("name", [name for name in names("pixels") if name.startswith("exception_")])
def test_what_makes_opencv_throw_in_darknet_gives_a_picture_of_the_right_size(name):
    case = augment.load(folder("pixels"))[0][name]
    with inside(golden("augment", "images").parent):
        assert augment.augmented(case).shape == (case["h"], case["w"], case["channels"])


@pytest.mark.parametrize("name", ["24_cutmix_mode2", "25_mosaic_cutmix_mode4"])
def test_cutmix_is_nothing_for_detectors_and_mosaic_wins(name, caplog):
    case = augment.load(folder("end_to_end"))[0][name]
    assert detector_mode(case["options"]["mixup"]) == case["mode_after_coin"]
    assert caplog.messages[0].strip() == case["stdout"].strip()


def test_a_wrong_value_is_noticed():
    cases, arrays = augment.load(folder("combine"))
    name, case = next((n, c) for n, c in cases.items() if c["truth"])
    case["truth"][0][0] += 1e-4
    assert augment.check_case(folder("combine"), "combine", name, case, arrays).status != OK
    cases, arrays = augment.load(folder("truth"))
    name, case = next((n, c) for n, c in cases.items() if c["bad_label_list"])
    case["bad_label_list"].pop()
    assert augment.check_case(folder("truth"), "truth", name, case, arrays).status != OK


@pytest.mark.parametrize("height, width", [(1, 1), (3, 31), (1, 32), (3, 48), (2, 64), (5, 95), (2, 160)])
def test_a_colour_is_rounded_by_its_place_as_where_darknet_ran(height, width):
    """OpenCV computes 32 pixels together there and truncates, and rounds what is left of a row: of (101, 74, 205),
    205 (1 - 74/255 (101/30 - 3)) is 183.2 and 205 (1 - 74/255) is 145.51: 145 or 146."""
    rgb = pixels._to_rgb(np.full((height, width, 3), (101, 74, 205), np.uint8))
    together = width // 32 * 32
    assert np.unique(rgb[:, :together, 0]).tolist() in ([], [145])
    assert np.unique(rgb[:, together:, 0]).tolist() in ([], [146])
    assert np.unique(rgb[..., 1:].reshape(-1, 2), axis=0).tolist() == [[183, 205]]
