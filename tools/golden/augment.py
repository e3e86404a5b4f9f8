"""Loading and augmentation: label paths, label files, truth rows, pixels, mosaics, whole batches, random sizes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from darknetpy.config.datafile import label_path
from darknetpy.data import notes
from darknetpy.data.combine import Slot, combine
from darknetpy.data.draws import MIXUP, MOSAIC, Augmentation, Draws
from darknetpy.data.geometry import Crop, crop_of
from darknetpy.data.labels import labels_of
from darknetpy.data.mosaic import Padding, Tile, mix, mix_truth, padding_of
from darknetpy.data.pixels import augment
from darknetpy.data.resize import Sizes, dynamic_batch
from darknetpy.data.truth import fill_truth
from darknetpy.images import read_image
from tools.golden.common import Outcome, Places, Worst, inside, load_json

EXACT, PIXEL, ROW, PART = 0.0, 1e-6, 1e-6, 1.01
"""Tolerances of the collection's README; `PART` of a pixel for rows whose corners lie on a pixel boundary."""
SIDE = 1e-4
"""A box side so near to whole pixels counts as either number of them."""
NO_TARGETS = ("exception_", "hex_inf")
"""Cases where OpenCV throws inside Darknet, and numbers for which its arithmetic is undefined."""
Arrays = Any


def kind_of(folder: Path) -> str | None:
    """Which of the collection's kinds a folder is."""
    has = lambda *names: all((folder / name).exists() for name in names)  # noqa: E731
    if has("table.json"):
        return "labels_path"
    if not has("cases.json"):
        return None
    if has("outputs.npz"):
        return "pixels"
    if has("train_loop.json"):
        return "resize_dims"
    if has("labels"):
        return "truth"
    if not has("tensors.npz"):
        return None
    first = load_json(folder / "cases.json")[0]
    return next((kind for key, kind in (("kind", "combine"), ("passes", "end_to_end")) if key in first), "classifier")


def load(folder: Path) -> tuple[dict[str, dict], Arrays]:
    """Cases by name (or number), and the arrays beside them."""
    cases = load_json(folder / ("table.json" if (folder / "table.json").exists() else "cases.json"))
    files = [folder / name for name in ("outputs.npz", "tensors.npz") if (folder / name).exists()]
    named = {str(case.get("name", case.get("image", i))): case for i, case in enumerate(cases)}
    return named, np.load(files[0]) if files else {}


def check(folder: Path, places: Places) -> list[Outcome]:
    """One outcome for each case of a folder."""
    kind = kind_of(folder)
    cases, arrays = load(folder)
    outcomes = [
        check_case(folder, kind, name, case, arrays) for name, case in cases.items() if not name.startswith(NO_TARGETS)
    ]
    return outcomes + ([_check_runs(folder)] if kind == "resize_dims" else [])


def check_case(folder: Path, kind: str, name: str, case: dict, arrays: Arrays) -> Outcome:
    worst = Worst()
    with inside(folder if kind == "truth" else folder.parent), _quiet():
        _CASES[kind](case, arrays, worst)
    return worst.outcome(f"augment/{kind}/{name}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing of what is said reaches the screen or `bad.list`, and all of it is said anew."""
    before = set(notes._told)
    notes._told.clear()
    try:
        with notes.collecting():
            yield
    finally:
        notes._told.clear()
        notes._told.update(before)


def same(worst: Worst, what: str, found: object, expected: object) -> None:
    """Count two values that must be equal."""
    if found != expected:
        worst.fail(f"{what}: {found!r} instead of {expected!r}"[:200])
    else:
        worst.see(what, 0.0, EXACT)


# --- label paths, label files, sizes -------------------------------------------------------------------------------


def _label_path(case: dict, _: Arrays, worst: Worst) -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(f"{record.getMessage()}\n")
    logger = logging.getLogger("darknetpy")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        same(worst, case["image"], label_path(case["image"], strict=True), case["label"])
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    same(worst, "messages", "".join(said), case["stderr"])


class _GivenCrop(Crop):
    """A rectangle of which only scale and shift are known."""

    def __init__(self, case: dict):
        self.given = case

    @property
    def inverse_scale(self):
        return np.float32(self.given["sx_inv"]), np.float32(self.given["sy_inv"])

    @property
    def shift(self):
        return np.float32(self.given["dx"]), np.float32(self.given["dy"])


def _truth(case: dict, _: Arrays, worst: Worst) -> None:
    with notes.collecting() as told:
        labels = labels_of(case["image_path"], strict=True)
        draws = Draws(flip=bool(case["flip"]), shuffle=np.array(case["shuffle"], int))
        rows, smallest = fill_truth(
            labels, _GivenCrop(case), draws, case["net_w"], case["net_h"], case["classes"], case["max_boxes"]
        )
    see_rows(worst, rows, np.array(case["truth"], np.float32).reshape(-1, 6))
    sides = rows[:, 2:4] * (case["net_w"], case["net_h"])
    on_a_pixel = bool((np.abs(sides - np.rint(sides)) < SIDE).any())
    worst.see("min_w_h", abs(smallest - case["min_w_h"]), 1 if on_a_pixel else EXACT)
    said = [text.strip() for where, text in told if not where and "is not `class x y w h`" not in text]
    same(worst, "messages", said, _unique(case["stdout"].splitlines()))
    for name in ("bad.list", "bad_label.list"):
        found = [text for where, text in told if where == name]
        same(worst, name, found, list(dict.fromkeys(case[name.replace(".", "_")])))


def _unique(lines: list[str]) -> list[str]:
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


def _sizes(case: dict, _: Arrays, worst: Worst) -> None:
    sizes = Sizes(case["init_w"], case["init_h"], case["random"], case["resize_step"])
    largest = (case["max_dim_w"], case["max_dim_h"])
    same(worst, "largest", sizes.largest, largest)
    for draw in case["draws"]:
        size = largest if draw.get("forced_max") else sizes.at(draw["random_val"])
        same(worst, "size", size, (draw["dim_w"], draw["dim_h"]))
        batch = max(draw["dynamic_minibatch_batch"], 1)  # Darknet's comes to nothing where random is below 1
        same(worst, "batch", dynamic_batch(case["init_batch"], largest, size), batch)


def _check_runs(folder: Path) -> Outcome:
    worst = Worst()
    for run in load_json(folder / "train_loop.json"):
        sizes = Sizes(run["width"], run["height"], run["random"], run["resize_step"])
        for turn in run["turns"]:
            forced = sizes.forced(turn["iteration"], run["max_batches"], turn["avg_loss"] < 0)
            size = sizes.largest if forced else sizes.at(turn["random_val"])
            same(worst, f"turn {turn['count']}", size, (turn["dim_w"], turn["dim_h"]))
            if run["dynamic_minibatch"]:
                batch = dynamic_batch(run["batch"] // run["subdivisions"], sizes.largest, size)
                same(worst, f"batch of turn {turn['count']}", batch, turn["dim_b"])
    return worst.outcome("augment/resize_dims/train_loop")


# --- one picture -------------------------------------------------------------------------------------------------


def augmented(case: dict) -> np.ndarray:
    """What a case of `pixels` becomes, uint8 (h, w, C). Its picture is relative to the working directory."""
    image = read_image(case["image"], case["channels"], opencv_grey=True)
    draws = Draws(
        flip=bool(case["flip"]), dhue=case["dhue"], dsat=case["dsat"], dexp=case["dexp"], blur=case["blur"],
        noise=case["gaussian_noise"], noise_seed=case.get("cv_rng_seed"),
    )  # fmt: skip
    rows = np.array(case["truth"], np.float32).reshape(-1, 6)
    (ow, oh), left, top = case["image_size"], case["pleft"], case["ptop"]
    crop = Crop(ow, oh, left, ow - left - case["swidth"], top, oh - top - case["sheight"])
    return augment(image, crop, case["w"], case["h"], draws, rows, smallest=1 << 20)


def _pixels(case: dict, arrays: Arrays, worst: Worst) -> None:
    see_bytes(worst, augmented(case), arrays[case["name"]])


def see_bytes(worst: Worst, found: np.ndarray, expected: np.ndarray) -> None:
    """Compare uint8 (h, w, C) with float (C, h, w) in 0..1: equal to the byte."""
    want = np.rint(expected * 255).astype(int)
    if found.transpose(2, 0, 1).shape != want.shape:
        worst.fail(f"shape {found.shape}")
        return
    worst.see("pixels", np.abs(found.transpose(2, 0, 1) - want).max(), EXACT)


def see_floats(worst: Worst, found: np.ndarray, expected: np.ndarray) -> None:
    worst.see("pixels", np.abs(found.transpose(2, 0, 1) - expected).max(), PIXEL)


# --- several pictures --------------------------------------------------------------------------------------------


def see_rows(
    worst: Worst, found: np.ndarray, expected: np.ndarray, loose: list[int] = (), w: int = 1, h: int = 1
) -> None:
    """Compare truth rows (N, 6); the rows `loose` may be a pixel off."""
    if found.shape != expected.shape:
        worst.fail(f"{len(found)} rows instead of {len(expected)}")
        return
    for i, difference in enumerate(np.abs(found - expected)):
        allowed = np.full(6, ROW)
        if i in loose:
            allowed[:4] = PART / w, PART / h, PART / w, PART / h
        k = int((difference / allowed).argmax())
        worst.see(f"row {i}", difference[k], allowed[k])


def _shown(truth: np.ndarray) -> np.ndarray:
    """Rows in front of the first one with x = 0."""
    ends = np.flatnonzero(truth[:, 0] == 0)
    return truth[: ends[0]] if len(ends) else truth


def _padding(case: dict, tile: int, worst: Worst) -> Padding:
    """The case's shifts; where it has a crop they must follow from it."""
    given = Padding(*case["shifts_left_right_top_bot"][tile])
    if "crop" in case:
        c = case["crop"][tile]
        crop = Crop(c["ow"], c["oh"], c["pleft"], c["pright"], c["ptop"], c["pbot"])
        cut = case["cut_x"], case["cut_y"]
        same(worst, f"shifts {tile}", padding_of(crop, bool(c["flip"]), case["w"], case["h"], *cut), given)
    return given


def _combine(case: dict, arrays: Arrays, worst: Worst) -> None:
    w, h, most = case["w"], case["h"], case["max_boxes"]
    sources = [arrays[key].transpose(1, 2, 0) for key in case["sources"]]
    truths = [_shown(arrays[key].reshape(-1, 6)) for key in case["source_truths"]]
    if case["kind"] == "mosaic":
        canvas, truth, counts = np.zeros_like(sources[0]), np.zeros((0, 6), np.float32), []
        cut = case["cut_x"], case["cut_y"]
        for number, (image, rows) in enumerate(zip(sources, truths, strict=True)):
            tile = Tile.of(number, w, h, cut, _padding(case, number, worst))
            canvas[tile.place] = image[tile.window]
            truth = np.concatenate([truth, tile.truth(rows, most - len(truth), bool(case["mosaic_bound"]))])
            counts.append(len(truth))
        same(worst, "rows after each pass", counts, case["rows_after_pass"])
    else:
        canvas, truth = mix(*sources), mix_truth(*truths, most)
    see_floats(worst, canvas, arrays[f"out_{case['name']}"])
    see_rows(
        worst, truth, np.array(case["truth"], np.float32).reshape(-1, 6), case.get("one_pixel_rows", []), w, h
    )  # fmt: skip


# --- from draws to tensors ---------------------------------------------------------------------------------------


def _options_of(o: dict, mode: int) -> Augmentation:
    return Augmentation(
        jitter=o["jitter"], resize=o["resize"], flip=bool(o["flip"]), hue=o["hue"], saturation=o["saturation"],
        exposure=o["exposure"], blur=o["blur"], noise=o["gaussian_noise"], letter_box=bool(o["letter_box"]), mode=mode,
        mosaic_bound=bool(o["mosaic_bound"]), max_boxes=o["max_boxes"], classes=o["classes"],
    )  # fmt: skip


def _draws_of(s: dict) -> Draws:
    return Draws(
        q=(s["q1"], s["q2"]), r=(s["r1"], s["r2"], s["r3"], s["r4"]), flip=bool(s["flip"]),
        move=bool(s["move_to_corner"]), dhue=s["dhue"], dsat=s["dsat"], dexp=s["dexp"], blur=s["blur"],
        noise=s["gaussian_noise"], shuffle=np.array(s["shuffle"], int),
    )  # fmt: skip


def _end_to_end(case: dict, arrays: Arrays, worst: Worst) -> None:
    o, mode, name = case["options"], case["mode_after_coin"], case["name"]
    options, (w, h) = _options_of(o, mode), (o["w"], o["h"])
    if "cv_rng_seed" in case:
        cv2.setRNGSeed(case["cv_rng_seed"])
    for i in range(o["n"]):
        slots = [_slot(one["slots"][i], tile, o, options, worst) for tile, one in enumerate(case["passes"])]
        cut = case["cut_x_cut_y"][i] if mode == MOSAIC else (0, 0)
        image, truth = combine(slots, mode, w, h, cut, options)
        (see_floats if mode == MIXUP else see_bytes)(worst, image, arrays[f"{name}/x"][i])
        loose = [row for sample, row in case.get("one_pixel_rows", []) if sample == i]
        see_rows(worst, truth, _shown(arrays[f"{name}/y"][i]), loose, w, h)
        same(worst, "boxes", len(truth), case["boxes_per_sample"][i])


def _slot(s: dict, tile: int, o: dict, options: Augmentation, worst: Worst) -> Slot:
    image, draws = read_image(s["path"], o["c"], opencv_grey=True), _draws_of(s)
    crop = crop_of(s["ow"], s["oh"], o["w"], o["h"], options, draws, tile if options.mode == MOSAIC else None)
    found = crop.left, crop.top, crop.width, crop.height, crop.right, crop.bottom
    same(worst, "crop", found, tuple(s[k] for k in ("pleft", "ptop", "swidth", "sheight", "pright", "pbot")))
    for value, key in zip([*crop.inverse_scale, *crop.shift], ("sx_inv", "sy_inv", "dx", "dy"), strict=True):
        worst.see(key, abs(value - s[key]) / max(abs(s[key]), 1e-12) if s[key] else abs(value), PIXEL)
    return Slot(image, labels_of(s["path"], strict=True), draws)


_CASES: dict[str, Callable[[dict, Arrays, Worst], None]] = {
    "labels_path": _label_path,
    "truth": _truth,
    "resize_dims": _sizes,
    "pixels": _pixels,
    "combine": _combine,
    "end_to_end": _end_to_end,
}
