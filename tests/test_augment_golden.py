"""Augmented pictures against Darknet's: the same draws give the same bytes.

The pictures of these cases lie in the reference collection; tolerances are those of its README.
"""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
from conftest import SHARED, TESTS, golden

from darknetpy.data import notes
from darknetpy.data.combine import Slot, combine
from darknetpy.data.draws import MIXUP, MOSAIC, Augmentation, Draws, detector_mode
from darknetpy.data.geometry import Crop, crop_of
from darknetpy.data.labels import labels_of
from darknetpy.data.mosaic import Padding, Tile, mix, mix_truth, padding_of
from darknetpy.data.pixels import augment
from darknetpy.images import read_image


def load(name: str) -> tuple[list[dict], dict]:
    folder = golden("augment", name)
    arrays = np.load(folder / ("outputs.npz" if name == "pixels" else "tensors.npz"))
    return json.loads((folder / "cases.json").read_text()), arrays


def names(name: str) -> list[str]:
    here = any(folder.joinpath("golden", "augment", name).exists() for folder in (TESTS, SHARED))
    return [case["name"] for case in load(name)[0]] if here else ["not here"]


@pytest.fixture(scope="module")
def pixels():
    cases, arrays = load("pixels")
    return {case["name"]: case for case in cases}, arrays


@pytest.fixture(scope="module")
def combined():
    cases, arrays = load("combine")
    return {case["name"]: case for case in cases}, arrays


def planar(image: np.ndarray) -> np.ndarray:
    return image.transpose(2, 0, 1)


# --- one picture -------------------------------------------------------------------------------------------------


def crop_of_case(case: dict) -> Crop:
    ow, oh = case["image_size"]
    left, top = case["pleft"], case["ptop"]
    return Crop(ow, oh, left, ow - left - case["swidth"], top, oh - top - case["sheight"])


@pytest.mark.parametrize("name", [name for name in names("pixels") if not name.startswith("exception_")])
def test_pixels_are_darknets_to_the_byte(pixels, name):
    case, expected = pixels[0][name], pixels[1][name]
    image = read_image(golden("augment", "images").parent / case["image"], case["channels"], opencv_grey=True)
    draws = Draws(
        flip=bool(case["flip"]), dhue=case["dhue"], dsat=case["dsat"], dexp=case["dexp"], blur=case["blur"],
        noise=case["gaussian_noise"], noise_seed=case.get("cv_rng_seed"),
    )  # fmt: skip
    rows = np.array(case["truth"], np.float32).reshape(-1, 6)
    found = augment(image, crop_of_case(case), case["w"], case["h"], draws, rows, smallest=1 << 20)
    np.testing.assert_array_equal(planar(found), np.rint(expected * 255).astype(np.uint8))


@pytest.mark.parametrize("name", [name for name in names("pixels") if name.startswith("exception_")])
def test_what_makes_opencv_throw_in_darknet_gives_a_picture_of_the_right_size(pixels, name):
    case = pixels[0][name]
    image = read_image(golden("augment", "images").parent / case["image"], case["channels"], opencv_grey=True)
    rows = np.array(case["truth"], np.float32).reshape(-1, 6)
    draws = Draws(flip=bool(case["flip"]), blur=case["blur"])
    found = augment(image, crop_of_case(case), case["w"], case["h"], draws, rows, smallest=1 << 20)
    assert found.shape == (case["h"], case["w"], case["channels"])


# --- several pictures --------------------------------------------------------------------------------------------


def one_pixel_allowance(count: int, loose: list[int], w: int, h: int) -> np.ndarray:
    allowed = np.full((count, 6), 1e-6)
    allowed[loose, 0] = allowed[loose, 2] = 1.01 / w
    allowed[loose, 1] = allowed[loose, 3] = 1.01 / h
    return allowed


def assert_rows(found: np.ndarray, expected: np.ndarray, loose: list[int], w: int, h: int) -> None:
    assert found.shape == expected.shape
    excess = np.abs(found - expected) - one_pixel_allowance(len(expected), loose, w, h)
    assert (excess <= 0).all(), (found, expected)


def shown(truth: np.ndarray) -> np.ndarray:
    """Rows in front of the first one with x = 0."""
    ends = np.flatnonzero(truth[:, 0] == 0)
    return truth[: ends[0]] if len(ends) else truth


def padding(case: dict, tile: int) -> Padding:
    """The case's shifts; where it has a crop they must follow from it."""
    given = Padding(*case["shifts_left_right_top_bot"][tile])
    if "crop" in case:
        c = case["crop"][tile]
        crop = Crop(c["ow"], c["oh"], c["pleft"], c["pright"], c["ptop"], c["pbot"])
        cut = case["cut_x"], case["cut_y"]
        assert padding_of(crop, bool(c["flip"]), case["w"], case["h"], *cut) == given
    return given


@pytest.mark.parametrize("name", names("combine"))
def test_mosaic_and_mixup_of_given_pictures_are_darknets(combined, name):
    case, arrays = combined[0][name], combined[1]
    w, h, most = case["w"], case["h"], case["max_boxes"]
    sources = [arrays[key].transpose(1, 2, 0) for key in case["sources"]]
    truths = [shown(arrays[key].reshape(-1, 6)) for key in case["source_truths"]]
    if case["kind"] == "mosaic":
        canvas, truth, counts = np.zeros_like(sources[0]), np.zeros((0, 6), np.float32), []
        cut = case["cut_x"], case["cut_y"]
        for number, (image, rows) in enumerate(zip(sources, truths, strict=True)):
            tile = Tile.of(number, w, h, cut, padding(case, number))
            canvas[tile.place] = image[tile.window]
            truth = np.concatenate([truth, tile.truth(rows, most - len(truth), bool(case["mosaic_bound"]))])
            counts.append(len(truth))
        assert counts == case["rows_after_pass"]
    else:
        canvas, truth = mix(*sources), mix_truth(*truths, most)
    np.testing.assert_allclose(planar(canvas), arrays[f"out_{name}"], rtol=0, atol=1e-6)
    expected = np.array(case["truth"], np.float32).reshape(-1, 6)
    assert_rows(truth, expected, case.get("one_pixel_rows", []), w, h)


# --- from draws to tensors ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole():
    cases, arrays = load("end_to_end")
    return {case["name"]: case for case in cases}, arrays


def options_of(o: dict, mode: int) -> Augmentation:
    return Augmentation(
        jitter=o["jitter"], resize=o["resize"], flip=bool(o["flip"]), hue=o["hue"], saturation=o["saturation"],
        exposure=o["exposure"], blur=o["blur"], noise=o["gaussian_noise"], letter_box=bool(o["letter_box"]), mode=mode,
        mosaic_bound=bool(o["mosaic_bound"]), max_boxes=o["max_boxes"], classes=o["classes"],
    )  # fmt: skip


def draws_of(s: dict) -> Draws:
    return Draws(
        q=(s["q1"], s["q2"]), r=(s["r1"], s["r2"], s["r3"], s["r4"]), flip=bool(s["flip"]),
        move=bool(s["move_to_corner"]), dhue=s["dhue"], dsat=s["dsat"], dexp=s["dexp"], blur=s["blur"],
        noise=s["gaussian_noise"], shuffle=np.array(s["shuffle"], int),
    )  # fmt: skip


@pytest.mark.parametrize("name", names("end_to_end"))
def test_batches_of_given_draws_are_darknets(whole, name, monkeypatch):
    case, arrays = whole[0][name], whole[1]
    monkeypatch.chdir(golden("augment", "images").parent)  # track ids depend on the very string of the path
    o, mode = case["options"], case["mode_after_coin"]
    options, (w, h) = options_of(o, mode), (o["w"], o["h"])
    if "cv_rng_seed" in case:
        cv2.setRNGSeed(case["cv_rng_seed"])
    for i in range(o["n"]):
        slots = []
        for tile, one_pass in enumerate(case["passes"]):
            s = one_pass["slots"][i]
            image = read_image(s["path"], o["c"], opencv_grey=True)
            draws = draws_of(s)
            assert_crop(crop_of(s["ow"], s["oh"], w, h, options, draws, tile if mode == MOSAIC else None), s)
            with notes.collecting():
                slots.append(Slot(image, labels_of(s["path"], strict=True), draws))
        cut = case["cut_x_cut_y"][i] if mode == MOSAIC else (0, 0)
        with notes.collecting():
            image, truth = combine(slots, mode, w, h, cut, options)
        expected = arrays[f"{name}/x"][i]
        if mode == MIXUP:
            np.testing.assert_allclose(planar(image), expected, rtol=0, atol=1e-6)
        else:
            np.testing.assert_array_equal(planar(image), np.rint(expected * 255).astype(np.uint8))
        loose = [row for sample, row in case.get("one_pixel_rows", []) if sample == i]
        assert_rows(truth, shown(arrays[f"{name}/y"][i]), loose, w, h)
        assert len(truth) == case["boxes_per_sample"][i]


def assert_crop(crop: Crop, s: dict) -> None:
    assert (crop.left, crop.top, crop.width, crop.height) == (s["pleft"], s["ptop"], s["swidth"], s["sheight"])
    assert (crop.right, crop.bottom) == (s["pright"], s["pbot"])
    np.testing.assert_allclose([*crop.inverse_scale, *crop.shift], [s["sx_inv"], s["sy_inv"], s["dx"], s["dy"]], 1e-6)


@pytest.mark.parametrize("name", ["24_cutmix_mode2", "25_mosaic_cutmix_mode4"])
def test_cutmix_is_nothing_for_detectors_and_mosaic_wins(whole, name, caplog):
    case = whole[0][name]
    assert detector_mode(case["options"]["mixup"]) == case["mode_after_coin"]
    assert caplog.messages[0].strip() == case["stdout"].strip()
