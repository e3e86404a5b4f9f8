"""Augmentation of classifiers: batches of given draws."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from darknetpy.data.classification import Truth
from darknetpy.data.classified import combine
from darknetpy.data.views import Mix, View, seen
from darknetpy.images import read_image
from tools.golden.common import Outcome, Places, Worst, inside, load_json

PIXEL, TARGET, DRAWN = 1e-5, 1e-6, 1e-5
BLURRED, BLURRED_SHARE = 1 / 255 + 1e-6, 0.02
"""Blur goes through 8 bits by truncation: one step in a few of the values."""


def check(folder: Path, places: Places) -> list[Outcome]:
    """Batches of given draws."""
    arrays = np.load(folder / "tensors.npz")
    return [check_case(folder, case, arrays) for case in load_json(folder / "cases.json")]


def check_case(folder: Path, case: dict, arrays) -> Outcome:
    """One call of Darknet's loader."""
    worst, o, draws, stepped = Worst(), case["options"], case["draws"], 0
    truth_of = Truth(case["labels"], o["label_smooth_eps"])
    with inside(folder.parent):
        for row in range(o["n"]):
            slots = [drawn["images"][row] for drawn in draws["sets"]]
            images = [seen(read_image(slot["path"]), _view(slot, o, worst), o["w"], o["h"]) for slot in slots]
            truths = [truth_of.of(slot["path"]) for slot in slots]
            kernel = o["blur"] * draws.get("blur", [0] * o["n"])[row]
            image, truth = combine(images, truths, _mix(draws, row), kernel)
            expected = arrays[f"{case['name']}/x"][row]
            difference = np.abs(image - expected)
            if kernel:
                worst.see(f"row {row}, blurred", difference.max(), BLURRED)
                stepped += int((difference > PIXEL).sum())
            else:
                worst.see(f"row {row}", difference.max(), PIXEL)
            worst.see(f"target {row}", np.abs(truth - arrays[f"{case['name']}/y"][row]).max(), TARGET)
    worst.see("share of blurred values", stepped / arrays[f"{case['name']}/x"].size, BLURRED_SHARE)
    return worst.outcome(f"augment/classifier/{case['name']}")


def _view(slot: dict, options: dict, worst: Worst) -> View:
    """The view of a slot; scale and room for its place must follow from what was drawn."""
    colour = {"flip": bool(slot["flip"])} | {key: slot[key] for key in ("dhue", "dsat", "dexp")}
    size = max(options["w"], options["h"])
    view = View(slot["aspect"], slot["scale"], slot["rad"], slot["dx"], slot["dy"], **colour)
    ends = View.placed(slot["w"], slot["h"], size, slot["aspect"], slot["r"], math.degrees(slot["rad"]), 1.0, 1.0)
    worst.see("scale", abs(ends.scale - slot["scale"]), DRAWN)
    for key in ("dx", "dy"):
        worst.see(f"{key} beyond its room", max(0.0, abs(slot[key]) - getattr(ends, key)), DRAWN)
    return view


def _mix(draws: dict, row: int) -> Mix:
    if not draws["mix_coin"]:
        return Mix(0)
    given = draws["mix"][row]
    return Mix(given["mode"], tuple(given[key] for key in ("cut_x", "cut_y", "cut_w", "cut_h") if key in given))
