"""mAP from stored detections to the last digit; letterbox, recall, valid and a trained network end to end."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import tempfile
from pathlib import Path

import numpy as np

from darknetpy.cli.main import main
from darknetpy.config.datafile import label_path, read_list
from darknetpy.data.labels import read_labels
from darknetpy.evaluation import Matches, report, score
from tools.golden.common import NOT_CHECKED, Outcome, Places, Worst, inside, load_json

POINTS = 0.3
"""Percentage points that an end-to-end mAP may differ by: Darknet decoded JPEGs with another decoder."""
CLASSES = 80
BOX, PROBABILITY = 0.005, 0.02


def is_case(folder: Path) -> bool:
    return (
        (folder / "raw_detections.json").is_file()
        and (folder / "commands.txt").is_file()
        and (folder / "stdout").is_dir()
    )


def check(folder: Path, places: Places) -> list[Outcome]:
    outcomes, raw = [], load_json(folder / "raw_detections.json")
    models = places.models_folder(folder)
    for line in (folder / "commands.txt").read_text().splitlines():
        name, _, command = line.partition(": ")
        words = shlex.split(command)
        case = f"map/{name}"
        if name.startswith("map_") and "letterbox" not in name:
            outcomes.append(_from_raw(folder, name, words, raw, case, places))
        elif models is None:
            outcomes.append(Outcome(case, NOT_CHECKED, note="models not found"))
        else:
            with tempfile.TemporaryDirectory() as place:
                outcomes.append(_end_to_end(folder, name, words, Path(place), models, case))
    return outcomes


def check_curve(folder: Path, places: Places) -> list[Outcome]:
    """The mAP of the weights that a run of Darknet ended with; its runs themselves have a tool of their own."""
    worst, out = Worst(), io.StringIO()
    with inside(folder / "data"), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        status = main(["detector", "map", "digits.data", "digits-tiny.cfg", "../final_a.weights", "-nogpu"])
    if status:
        worst.fail(f"exit status {status}")
    else:
        _compare_map(folder / "final_a.map.txt", out.getvalue(), worst)
    runs = Outcome("curve/runs", NOT_CHECKED, note="by tools/check_curve.py")
    return [worst.outcome("curve/final_a.map"), runs]


def _value(words: list[str], flag: str, default: float) -> float:
    return float(words[words.index(flag) + 1]) if flag in words else default


def _from_raw(folder: Path, name: str, words, raw, case: str, places: Places) -> Outcome:
    worst, matches = Worst(), Matches(CLASSES)
    with inside(folder):
        hard = read_list("difficult.txt") if "difficult" in name else None
        for i, entry in enumerate(raw):
            boxes = np.array([b["box"] for b in entry["boxes"]]).reshape(-1, 4)
            probs = np.zeros((len(boxes), CLASSES))
            for row, box in zip(probs, entry["boxes"], strict=True):
                for class_id, value in box["probs"]:
                    row[class_id] = value
            truth, extra = read_labels(label_path(entry["image"], True), True), None
            if hard is not None:
                with contextlib.suppress(FileNotFoundError):
                    extra = read_labels(label_path(hard[i], True), True)
            matches.add(
                boxes,
                probs,
                truth.boxes,
                truth.classes,
                extra.boxes if extra else None,
                extra.classes if extra else None,
            )
    text = (folder / "stdout" / f"{name}.stdout.txt").read_text()
    names = re.findall(r"class_id = \d+, name = (.*?), ap = ", text)
    result = score(
        matches,
        names,
        _value(words, "-iou_thresh", 0.5),
        _value(words, "-thresh", 0.25),
        int(_value(words, "-points", 0)),
    )
    mine, stored = _lines(report(result)), _lines(text[text.index(" detections_count") :])
    differing = [(a, b) for a, b in zip(mine, stored, strict=False) if a != b]
    if differing:
        worst.fail(f"{differing[0][0]!r} instead of {differing[0][1]!r}")
    worst.see("lines that differ", len(differing), 0.0)
    return worst.outcome(case)


def _lines(text: str) -> list[str]:
    text = re.sub(r"\r? rank = \d+ of ranks = \d+ \r?", "", text)
    return [line.replace("\r", "") for line in text.splitlines() if line.strip()]


def _end_to_end(folder: Path, name: str, words: list[str], place: Path, models: Path, case: str) -> Outcome:
    worst = Worst()
    with inside(place):
        for entry in folder.iterdir():
            if entry.name not in ("stdout", "valid"):
                Path(entry.name).symlink_to(entry.resolve())
        Path("models").symlink_to(models.resolve())
        Path("results").mkdir()
        cfg = next(iter(sorted(models.glob("yolo-fastest-1.1/*.cfg"))))
        Path("letterbox.cfg").write_text(cfg.read_text().replace("[net]", "[net]\nletter_box=1", 1))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(words[1:])
        if status:
            worst.fail(f"exit status {status}: {err.getvalue()[-200:]}")
        elif name.startswith("map_"):
            _compare_map(folder / "stdout" / f"{name}.stdout.txt", out.getvalue(), worst)
        elif name == "recall":
            _compare_recall(folder, err.getvalue(), worst)
        else:
            _compare_results(folder, name, worst)
    return worst.outcome(case)


def _compare_map(printed: Path, text: str, worst: Worst) -> None:
    pattern = r"mean average precision \(mAP@[\d.]+\) = ([\d.]+)"
    mine, want = (float(re.search(pattern, t)[1]) for t in (text, printed.read_text()))
    worst.see("mAP, points", 100 * abs(mine - want), POINTS)


def _compare_recall(folder: Path, text: str, worst: Worst) -> None:
    pattern = r"Recall:([\d.]+)%"
    stored = (folder / "stdout" / "recall.stderr.txt").read_text()
    mine, want = re.findall(pattern, text), re.findall(pattern, stored)
    if len(mine) != len(want):
        worst.fail(f"{len(mine)} lines, stored are {len(want)}")
        return
    worst.see("recall, points", abs(float(mine[-1]) - float(want[-1])), POINTS)


def _compare_results(folder: Path, name: str, worst: Worst) -> None:
    """Every stored record must be there: same picture and class, box and score within the README's tolerances."""
    if name == "valid_coco":
        stored = json.loads((folder / "valid/coco/coco_results.json").read_text())
        mine = json.loads(Path("results/coco_results.json").read_text())
        records = [
            [((r["image_id"], r["category_id"]), r["score"], np.array(r["bbox"])) for r in rows]
            for rows in (mine, stored)
        ]
    else:
        prefix = "myprefix_" if "prefix" in name else "comp4_det_test_"
        records = [_voc(Path("results"), prefix), _voc(folder / "valid/voc", "comp4_det_test_")]
    _match_records(*records, worst)


def _voc(folder: Path, prefix: str) -> list[tuple]:
    rows = []
    for path in sorted(folder.glob(f"{prefix}*.txt")):
        class_name = path.stem.removeprefix(prefix)
        for line in path.read_text().splitlines():
            image, confidence, *corners = line.split()
            rows.append(((image, class_name), float(confidence), np.array([float(v) for v in corners])))
    return rows


def _match_records(mine: list, stored: list, worst: Worst, side: float = 400.0) -> None:
    by_key: dict = {}
    for key, confidence, box in mine:
        by_key.setdefault(key, []).append((confidence, box))
    missing = 0
    for key, confidence, box in stored:
        near = [b for c, b in by_key.get(key, []) if abs(c - confidence) <= PROBABILITY]
        error = min((np.abs(b - box).max() / side for b in near), default=1.0)
        if error <= 2 * BOX:
            worst.see("box", error, 2 * BOX)
        elif confidence > 0.001 + PROBABILITY:
            missing += 1
    worst.see("records missing", missing / max(1, len(stored)), 0.01)
