"""`detector map`, `recall`, `valid` and `calc_anchors`."""

from __future__ import annotations

import os
import sys
import time

from darknetpy.cli.common import lay_out, load_weights, names_for, pick_device, show_table
from darknetpy.cli.detect import TYPE_NUMBER
from darknetpy.cli.parse import Line, files_of
from darknetpy.data.sets import open_data
from darknetpy.errors import DataError, UsageError, warn


def _prepare(line: Line, words: list[str], letter_box: bool | None = None):
    """Data, and a detector with its weights. Names are checked before torch is paid for."""
    files = files_of(words, ["data", "cfg", "weights"])
    if "data" not in files or "cfg" not in files:
        raise UsageError("usage: darknetpy detector map [data] [cfg] [weights]")
    strict = bool(line.get("strict"))
    data = open_data(files["data"], strict)
    names = names_for(files, data)
    structure = lay_out(files["cfg"], line)
    classes = next((head.options.classes for head in reversed(structure.heads)), len(names))
    if len(names) != classes:
        raise DataError(
            f"{len(names)} names, but classes={classes} in {files['cfg']}", file=data.names, remedy="make them equal"
        )
    if line.get("letter_box"):
        warn("-letter_box has no effect here: set letter_box=1 in [net]")
    show_table(structure, line)

    from darknetpy.inference import Detector
    from darknetpy.network import Network

    network = Network.from_structure(structure, pick_device(line))
    load_weights(network, files.get("weights"))
    return data, Detector(network, names=names, letter_box=letter_box, strict=strict)


def map_(line: Line, words: list[str]) -> int:
    """Mean average precision on `valid=`, with Darknet's report."""
    data, detector = _prepare(line, words)

    from darknetpy.evaluation import HINTS, evaluation_images, report, run_evaluation

    images = evaluation_images(data, detector)
    print("\n calculation mAP (mean average precision)...")
    for head in detector.heads:
        print(f" Detection layer: {head.index} - type = {TYPE_NUMBER.get(head.type, 0)} ")
    result = run_evaluation(
        detector, images, line.get("iou_thresh"), line.get("thresh", 0.25), line.get("points"), line.get("batch", 0)
    )
    print(f"{report(result, bool(line.get('strict')))}\n\n{HINTS}")
    print(f"Total Detection Time: {result.seconds:.0f} Seconds", file=sys.stderr)
    return 0


def recall(line: Line, words: list[str]) -> int:
    """Recall of boxes; the table goes to stderr as in Darknet."""
    data, detector = _prepare(line, words, letter_box=False)

    from darknetpy.evaluation import evaluation_images
    from darknetpy.evaluation.recall import run_recall

    run_recall(detector, evaluation_images(data, detector), lambda text: print(text, file=sys.stderr))
    return 0


def valid(line: Line, words: list[str]) -> int:
    """Result files in the format that `eval=` names."""
    data, detector = _prepare(line, words)

    from darknetpy.evaluation.valid import run_valid

    began = time.perf_counter()
    paths = run_valid(data, detector, line.get("out"), line.get("batch", 0))
    print(f"Total Detection Time: {time.perf_counter() - began:f} Seconds", file=sys.stderr)
    print(f"{len(paths)} result files in {os.path.dirname(paths[0]) or '.'}", file=sys.stderr)
    return 0


def calc_anchors(line: Line, words: list[str]) -> int:
    """Anchors for a data set by k-means."""
    files = files_of(words, ["data"])
    width, height = line.get("width"), line.get("height")
    if "data" not in files or width <= 0 or height <= 0:
        raise UsageError(
            "usage: darknetpy detector calc_anchors [data] -num_of_clusters 9 -width 416 -height 416",
            remedy="set width and height",
        )
    data = open_data(files["data"], bool(line.get("strict")))

    from darknetpy.evaluation.anchors import calculate, write

    result = calculate(data, line.get("num_of_clusters"), width, height, line.get("seed", 0))
    print(write(result, bool(line.get("show"))))
    return 0
