"""Detections of real networks: boxes end to end, head outputs from stored tensors, printed text."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from darknetpy import Detector
from darknetpy.cli.main import main
from darknetpy.evaluation.matches import iou_matrix
from tools.golden.common import NOT_CHECKED, Outcome, Places, Worst, inside, load_json

BOX, PROBABILITY = 0.005, 0.02
"""Darknet decoded JPEGs with another decoder; entries this near to the threshold may appear or vanish."""
TENSOR = 1e-4
SUPPRESSION = 0.45
PIXEL, PERCENT = 5, 2
_LINE = re.compile(r"^(.+): (\d+)%(?:\t\(left_x: +(-?\d+) +top_y: +(-?\d+) +width: +(\d+) +height: +(\d+)\))?$")


def is_boxes(path: Path) -> bool:
    if not re.fullmatch(r".+_letterbox[01]\.json", path.name):
        return False
    content = load_json(path)
    return isinstance(content, dict) and "model" in content and "results" in content


def is_tensors(folder: Path) -> bool:
    return any(folder.glob("*_yolo_outputs.npz")) and any(folder.glob("input_*.npz"))


def is_text(folder: Path) -> bool:
    return any(folder.glob("*.cmd.txt")) and any(folder.glob("*.stdout.txt"))


@lru_cache(maxsize=4)
def _detector(cfg: Path) -> Detector:
    names = next(iter(sorted(cfg.parent.glob("*.names"))), None)
    return Detector(cfg, cfg.with_suffix(".weights"), names)


def check_boxes(path: Path, places: Places) -> list[Outcome]:
    content, name = load_json(path), f"detect/{path.parent.name}/{path.stem}"
    cfg, image = places.model(path.parent, content["model"]), places.image(path.parent, content["image"])
    if cfg is None or image is None:
        return [Outcome(name, NOT_CHECKED, note="model or picture not found")]
    detector, worst = _detector(cfg), Worst()
    detector.letter_box = bool(content["letter_box"])
    for result in content["results"]:
        found = detector(image, result["thresh"], result["nms_thresh"])
        mine = [
            (k, float(found.probs[i, k]), found.boxes[i].numpy())
            for i in range(len(found))
            for k in found.probs[i].nonzero().flatten().tolist()
        ]
        stored = [(*_class_and_probability(p), np.array(b["box"])) for b in result["boxes"] for p in b["probs"]]
        _match(mine, stored, result["thresh"], worst)
    return [worst.outcome(name)]


def _class_and_probability(entry) -> tuple[int, float]:
    return (entry["class_id"], entry["prob"]) if isinstance(entry, dict) else (entry[0], entry[1])


def _match(mine: list, stored: list, thresh: float, worst: Worst) -> None:
    """Pair entries of one class by place; both lists must be used up but for entries near the threshold."""
    left, missing = list(mine), []
    for class_id, probability, box in stored:
        near = [m for m in left if m[0] == class_id]
        best = min(near, key=lambda m: np.abs(m[2] - box).max(), default=None)
        if best is not None and np.abs(best[2] - box).max() <= BOX:
            left = [m for m in left if m is not best]
            worst.see("box", np.abs(best[2] - box).max(), BOX)
            worst.see("probability", abs(best[1] - probability), PROBABILITY)
        elif probability > thresh + PROBABILITY:
            missing.append((class_id, probability, box))
    for class_id, probability, box in missing:
        other = next((m for m in left if m[0] == class_id and _exchanged(m, probability, box)), None)
        if other is None:
            worst.fail(f"class {class_id} at {probability:.3f} is missing")
        left = [m for m in left if m is not other]
    for class_id, probability, _ in left:
        if probability > thresh + PROBABILITY:
            worst.fail(f"class {class_id} at {probability:.3f} is not in the stored list")


def _exchanged(m: tuple, probability: float, box: np.ndarray) -> bool:
    """Of two overlapping boxes whose probabilities differ by less than the tolerance, suppression may keep either."""
    overlap = float(iou_matrix(m[2][None].astype(float), box[None].astype(float))[0, 0])
    return abs(m[1] - probability) <= PROBABILITY and overlap > SUPPRESSION


def check_tensors(folder: Path, places: Places) -> list[Outcome]:
    outcomes = []
    for path in sorted(folder.glob("*_yolo_outputs.npz")):
        stem = path.name.removesuffix("_yolo_outputs.npz")
        model, image, letter = re.fullmatch(r"(.+)_([^_]+)_(letterbox[01])", stem).groups()
        cfg, given = places.model(folder, model), folder / f"input_{image}_{letter}.npz"
        name = f"detect/tensors/{stem}"
        if cfg is None or not given.is_file():
            outcomes.append(Outcome(name, NOT_CHECKED, note="model or input not found"))
            continue
        outcomes.append(
            _check_outputs(_detector(cfg), np.load(given), np.load(path), folder / f"{stem}_layer_stats.json", name)
        )
    return outcomes


def _check_outputs(detector: Detector, given, stored, stats: Path, name: str) -> Outcome:
    worst = Worst()
    x = torch.from_numpy(given[given.files[0]])
    outputs = detector.network.layer_outputs(x.reshape(-1, *x.shape[-3:]), fused=True)
    heads = [head.index for head in detector.heads]
    keys = sorted(stored.files, key=lambda key: int(re.findall(r"\d+", key)[-1]))
    for index, key in zip(heads, keys, strict=True):
        want = stored[key]
        worst.see(key, np.abs(outputs[index].numpy().reshape(want.shape) - want).max(), TENSOR)
    if stats.is_file():
        content = load_json(stats)
        for entry in content if isinstance(content, list) else content["layers"]:
            mine = outputs[entry["index"]]
            worst.see(
                f"layer {entry['index']} mean",
                abs(float(mine.mean()) - entry["mean"]) / (1 + abs(entry["mean"])),
                TENSOR,
            )
    return worst.outcome(name)


def check_text(folder: Path, places: Places) -> list[Outcome]:
    """Commands as typed, in a folder where models and pictures are linked."""
    outcomes = []
    for path in sorted(folder.glob("*.cmd.txt")):
        stem = path.name.removesuffix(".cmd.txt")
        models, image = places.models_folder(folder), places.image(folder, "dog.jpg")
        if models is None or image is None:
            outcomes.append(Outcome(f"detect/cli/{stem}", NOT_CHECKED, note="models or pictures not found"))
            continue
        with tempfile.TemporaryDirectory() as place:
            outcomes.append(_check_command(folder, stem, Path(place), models, image.parent))
    return outcomes


def _check_command(folder: Path, stem: str, place: Path, models: Path, images: Path) -> Outcome:
    worst = Worst()
    words = shlex.split((folder / f"{stem}.cmd.txt").read_text().strip().splitlines()[0])
    listed = None
    if "<" in words:
        listed = words[words.index("<") + 1]
        words = words[: words.index("<")]
    with inside(place):
        _link_models(models)
        Path("images").mkdir()
        for file in images.iterdir():
            Path("images", file.name).write_bytes(file.read_bytes())
        text = _list_text(folder, stem, listed)
        out = _run(words[1:], text, worst)
        _compare_text(out, (folder / f"{stem}.stdout.txt").read_text(), worst)
        _compare_files(folder, stem, words, worst)
    return worst.outcome(f"detect/cli/{stem}")


def _link_models(models: Path) -> None:
    """Each model under the name of its cfg, as the commands have it, with a `.data` file that knows its names."""
    for cfg in sorted(models.glob("*/*.cfg")):
        folder = Path("models", cfg.stem)
        folder.mkdir(parents=True)
        for file in cfg.parent.iterdir():
            (folder / file.name).symlink_to(file.resolve())
        names = next(iter(sorted(cfg.parent.glob("*.names"))), None)
        if names is not None:
            text = f"classes = {len(names.read_text().splitlines())}\nnames = {folder}/{names.name}\n"
            (folder / "test.data").write_text(text)


def _list_text(folder: Path, stem: str, listed: str | None) -> str:
    if listed is None:
        return ""
    for name in (listed, f"{stem}.list.txt"):
        if (folder / Path(name).name).is_file():
            return (folder / Path(name).name).read_text()
    return ""


def _run(words: list[str], text: str, worst: Worst) -> str:
    out, before = io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(text)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            status = main(words)
    finally:
        sys.stdin = before
    if status:
        worst.fail(f"exit status {status}")
    return out.getvalue()


def _parts(text: str) -> list[tuple[str, list]]:
    """(path, object lines) of each `Predicted in` block."""
    parts: list[tuple[str, list]] = []
    for line in text.splitlines():
        line = line.replace("Enter Image Path: ", "")
        if match := re.match(r"^(.*): Predicted in [\d.]+ milli-seconds\.$", line):
            parts.append((match[1], []))
        elif parts and (match := _LINE.match(line)):
            parts[-1][1].append((match[1], *(None if v is None else int(v) for v in match.groups()[1:])))
    return parts


def _compare_text(mine: str, stored: str, worst: Worst) -> None:
    a, b = _parts(mine), _parts(stored)
    if [path for path, _ in a] != [path for path, _ in b]:
        worst.fail(f"pictures {[path for path, _ in a]}, stored are {[path for path, _ in b]}")
        return
    if mine.count("Detection layer:") != stored.count("Detection layer:"):
        worst.fail("another number of `Detection layer:` lines")
    for (path, got), (_, want) in zip(a, b, strict=True):
        sure = [row for row in want if row[1] > 27]
        for row in sure:
            if not any(_same_line(row, other) for other in got):
                worst.fail(f"{path}: {row} is missing")
    worst.see("text", 0.0, 1.0)


def _same_line(a: tuple, b: tuple) -> bool:
    if a[0] != b[0] or abs(a[1] - b[1]) > PERCENT:
        return False
    return all(
        (x is None) == (y is None) and (x is None or abs(x - y) <= PIXEL) for x, y in zip(a[2:], b[2:], strict=True)
    )


def _compare_files(folder: Path, stem: str, words: list[str], worst: Worst) -> None:
    result = folder / f"{stem}.result.json"
    if result.is_file() and "-out" in words:
        mine, stored = json.loads(Path(words[words.index("-out") + 1]).read_text()), json.loads(result.read_text())
        if [(f["frame_id"], f["filename"]) for f in mine] != [(f["frame_id"], f["filename"]) for f in stored]:
            worst.fail("frames of the JSON file differ")
            return
        for a, b in zip(mine, stored, strict=True):
            _match(*([_entry(o) for o in f["objects"]] for f in (a, b)), 0.25, worst)
    labels = folder / f"{stem}.labels.txt"
    if labels.is_file() and "-save_labels" in words:
        image = next(word for word in words if word.startswith("images/"))
        mine = [line.split() for line in Path(image).with_suffix(".txt").read_text().splitlines()]
        stored = [line.split() for line in labels.read_text().splitlines()]
        for row in stored:
            near = [
                m
                for m in mine
                if m[0] == row[0] and all(abs(float(x) - float(y)) <= BOX for x, y in zip(m[1:], row[1:], strict=True))
            ]
            if not near and len(stored) - len(mine) > 1:
                worst.fail(f"label {row} is missing")


def _entry(o: dict) -> tuple:
    c = o["relative_coordinates"]
    return o["class_id"], o["confidence"], np.array([c["center_x"], c["center_y"], c["width"], c["height"]])
