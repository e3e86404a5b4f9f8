"""`detector map`, `recall`, `valid` and `calc_anchors`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from darknetpy.cli.common import lay_out, load_weights, names_for, show_table
from darknetpy.cli.detect import TYPE_NUMBER
from darknetpy.cli.parse import Line, files_of
from darknetpy.cli.replicas import be_silent, join, several, start
from darknetpy.config.datafile import DataConfig
from darknetpy.data.sets import open_data
from darknetpy.errors import UsageError, warn
from darknetpy.layers import Structure


def _with_replicas(line: Line, words: list[str], act: Callable, letter_box: bool | None = None) -> int:
    """Call `act(data, detector, replicas)` here, or in a process for each device that was asked for; the exit status.

    What can be checked is checked before torch is paid for.
    """
    devices = several(line)
    if devices:
        be_silent()
    data, names, structure, weights = _read(line, words)
    if devices:
        return start(line, devices)
    replicas, device = join(line)
    show_table(structure, line)

    from darknetpy.inference import Detector
    from darknetpy.network import Network

    network = Network.from_structure(structure, device)
    load_weights(network, weights, speak=replicas.main)
    act(data, Detector(network, names=names, letter_box=letter_box, strict=bool(line.get("strict"))), replicas)
    replicas.close()
    return 0


def _read(line: Line, words: list[str]) -> tuple[DataConfig, list[str], Structure, str | None]:
    """Data, names, the network's structure and the path of its weights, as far as they fit each other."""
    files = files_of(words, ["data", "cfg", "weights"])
    if "data" not in files or "cfg" not in files:
        raise UsageError("usage: darknetpy detector map [data] [cfg] [weights]")
    strict = bool(line.get("strict"))
    data = open_data(files["data"], strict)
    names = names_for(files, data)
    structure = lay_out(files["cfg"], line)
    classes = next((head.options.classes for head in reversed(structure.heads)), len(names))
    data.check_classes(names, classes, files["cfg"], files.get("names"))
    if line.get("letter_box"):
        warn("-letter_box has no effect here: set letter_box=1 in [net]")
    return data, names, structure, files.get("weights")


def map_(line: Line, words: list[str]) -> int:
    """Mean average precision on `valid=`, with Darknet's report."""

    def measure(data, detector, replicas) -> None:
        from darknetpy.evaluation import HINTS, evaluation_images, report, run_evaluation

        images = evaluation_images(data, detector)
        print("\n calculation mAP (mean average precision)...")
        for head in detector.heads:
            print(f" Detection layer: {head.index} - type = {TYPE_NUMBER.get(head.type, 0)} ")
        result = run_evaluation(
            detector, images, line.get("iou_thresh"), line.get("thresh", 0.25), line.get("points"),
            line.get("batch", 0), replicas=replicas,
        )  # fmt: skip
        print(f"{report(result, bool(line.get('strict')))}\n\n{HINTS}")
        if replicas.main:
            print(f"Total Detection Time: {result.seconds:.0f} Seconds", file=sys.stderr)
            _further(result, line)

    return _with_replicas(line, words, measure)


def _further(result, line: Line) -> None:
    """What Darknet does not tell: other measures, JSON and pictures, where they are asked for."""
    from darknetpy.evaluation import coco_text, save_json, table

    if line.get("table"):
        print(f"\n{table(result)}")
    if line.get("coco"):
        print(f"\n{coco_text(result)}")
    if line.get("json") is not None:
        if not line.get("json"):
            raise UsageError("-json needs a value", remedy="for example -json result.json")
        save_json(result, line.get("json"))
    if line.get("plots") is not None:
        from darknetpy.reporting.evaluation_plots import save_plots

        for path in save_plots(result, line.get("plots") or "plots"):
            print(f"{path} is written", file=sys.stderr)


def recall(line: Line, words: list[str]) -> int:
    """Recall of boxes; the table goes to stderr as in Darknet."""

    def count(data, detector, _) -> None:
        from darknetpy.evaluation import evaluation_images
        from darknetpy.evaluation.recall import run_recall

        run_recall(detector, evaluation_images(data, detector), lambda text: print(text, file=sys.stderr))

    line.values.pop("gpus", None)
    return _with_replicas(line, words, count, letter_box=False)


def valid(line: Line, words: list[str]) -> int:
    """Result files in the format that `eval=` names."""

    def write(data, detector, replicas) -> None:
        from darknetpy.evaluation.valid import run_valid

        began = time.perf_counter()
        paths = run_valid(data, detector, line.get("out"), line.get("batch", 0), replicas)
        if replicas.main:
            print(f"Total Detection Time: {time.perf_counter() - began:f} Seconds", file=sys.stderr)
            print(f"{len(paths)} result files in {os.path.dirname(paths[0]) or '.'}", file=sys.stderr)

    return _with_replicas(line, words, write)


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

    result = calculate(data, line.get("num_of_clusters"), width, height, line.number("seed"))
    print(write(result, bool(line.get("show"))))
    return 0
