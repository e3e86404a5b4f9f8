"""Label files and truth rows against what Darknet made of the same files and draws."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import golden

from darknetpy.data import notes
from darknetpy.data.draws import Draws
from darknetpy.data.geometry import Crop
from darknetpy.data.labels import labels_of
from darknetpy.data.truth import fill_truth

NO_TARGET = "hex_inf"
"""Hexadecimal numbers and infinities: Darknet's own arithmetic is undefined there."""


class GivenCrop(Crop):
    """A rectangle of which only scale and shift are known."""

    def __init__(self, case: dict):
        self.given = case

    @property
    def inverse_scale(self):
        return np.float32(self.given["sx_inv"]), np.float32(self.given["sy_inv"])

    @property
    def shift(self):
        return np.float32(self.given["dx"]), np.float32(self.given["dy"])


@pytest.fixture
def told(monkeypatch, tmp_path):
    """Notes of the test alone, collected instead of told."""
    monkeypatch.setattr(notes, "_told", set())
    with notes.collecting() as collected:
        yield collected


def cases() -> list[dict]:
    return [c for c in json.loads(golden("augment", "truth", "cases.json").read_text()) if c["name"] != NO_TARGET]


def lines_of(told: list[notes.Note], name: str) -> list[str]:
    return [text for where, text in told if where == name]


def test_truth_rows_are_darknets(monkeypatch, told):
    monkeypatch.chdir(golden("augment", "truth"))
    for case in cases():
        labels = labels_of(case["image_path"], strict=True)
        draws = Draws(flip=bool(case["flip"]), shuffle=np.array(case["shuffle"], int))
        rows, smallest = fill_truth(
            labels, GivenCrop(case), draws, case["net_w"], case["net_h"], case["classes"], case["max_boxes"]
        )
        expected = np.array(case["truth"], np.float32).reshape(-1, 6)
        assert rows.shape == expected.shape, case["name"]
        np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-6, err_msg=case["name"])
        assert abs(smallest - case["min_w_h"]) <= 1, case["name"]


def test_messages_and_lists_are_darknets(monkeypatch, told):
    monkeypatch.chdir(golden("augment", "truth"))
    for case in cases():
        told.clear()
        notes._told.clear()
        labels = labels_of(case["image_path"], strict=True)
        draws = Draws(flip=bool(case["flip"]), shuffle=np.array(case["shuffle"], int))
        fill_truth(labels, GivenCrop(case), draws, case["net_w"], case["net_h"], case["classes"], case["max_boxes"])
        said = [text.strip() for text in lines_of(told, "") if "is not `class x y w h`" not in text]
        assert said == unique(case["stdout"]), case["name"]
        assert lines_of(told, "bad.list") == case["bad_list"], case["name"]
        assert lines_of(told, "bad_label.list") == list(dict.fromkeys(case["bad_label_list"])), case["name"]


def unique(text: str) -> list[str]:
    """Lines in order, each once, without blank ones."""
    return list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
