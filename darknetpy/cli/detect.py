"""`detector test` and `detect`: pictures from the command line or from a list on standard input."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext

from darknetpy.assets import locate
from darknetpy.cli.common import lay_out, load_weights, names_for, pick_device, show_table
from darknetpy.cli.parse import Line, files_of
from darknetpy.data.sets import open_data
from darknetpy.errors import DarknetpyError, ImageError, UsageError, warn

TYPE_NUMBER = {"yolo": 28, "region": 27, "Gaussian_yolo": 29, "detection": 26}
"""Darknet's numbers of layer types, which `Detection layer:` lines show."""
PROMPT = "Enter Image Path: "
_BLACK = (10, 10)


def test(line: Line, words: list[str]) -> int:
    """`detector test DATA CFG [WEIGHTS] [IMAGE]`"""
    files = files_of(words, ["data", "cfg", "weights", "image"])
    if "cfg" not in files or not ("data" in files or "names" in files):
        raise UsageError("usage: darknetpy detector test [data] [cfg] [weights (optional)] [image (optional)]")
    return _run(line, files, thresh=0.25)


def detect(line: Line, words: list[str]) -> int:
    """`detect CFG [WEIGHTS] [IMAGE]`: as `detector test cfg/coco.data`, with Darknet's other threshold."""
    files = files_of(words, ["cfg", "weights", "image"])
    if "cfg" not in files:
        raise UsageError("usage: darknetpy detect [cfg] [weights (optional)] [image (optional)]")
    files.setdefault("data", "cfg/coco.data" if os.path.exists("cfg/coco.data") else "data/coco.data")
    return _run(line, files, thresh=0.24)


def _run(line: Line, files: dict[str, str], thresh: float) -> int:
    strict = bool(line.get("strict"))
    data = None if "names" in files else open_data(files["data"], strict)
    names = names_for(files, data)
    structure = lay_out(files["cfg"], line)
    show_table(structure, line)
    _say_names(names, structure, files, data)

    from darknetpy.inference import Detector
    from darknetpy.network import Network

    network = Network.from_structure(structure, pick_device(line))
    load_weights(network, files.get("weights"))
    letter_box = True if line.get("letter_box") else None
    detector = Detector(network, names=names, letter_box=letter_box, strict=strict)
    return _pictures(line, detector, files.get("image"), thresh)


def _say_names(names, structure, files, data) -> None:
    classes = next((head.options.classes for head in reversed(structure.heads)), len(names))
    if len(names) != classes:
        file = files.get("names") or data.names
        print(
            f"\n Error: in the file {file} number of names {len(names)} that isn't equal to classes={classes} "
            f"in the file {files['cfg']} "
        )


def _pictures(line: Line, detector, image: str | None, thresh: float) -> int:
    from darknetpy.detections import Detections
    from darknetpy.inference.writers import JsonWriter

    out = line.get("out")
    with JsonWriter(out) if out else nullcontext() as writer:
        for number, path in enumerate(_paths(image), 1):
            try:
                _one(line, detector, path, thresh, writer, number)
            except ImageError as error:
                remember_bad(path)
                if image is not None:
                    raise
                warn(str(error))
                if writer is not None:  # one frame a line of the list, as in Darknet
                    writer.write(Detections.empty(detector.classes), path)
    return 0


def _paths(image: str | None) -> Iterator[str]:
    """The image of the command line, or a prompt for each line of standard input."""
    if image is not None:
        yield image
        return
    while True:
        print(PROMPT, end="", flush=True)
        text = sys.stdin.readline()
        if not text:
            return
        path = text.strip("\r\n\ufeff")
        if path.strip():
            yield path if os.path.exists(path) else path.strip()


def _one(line: Line, detector, path: str, thresh: float, writer, number: int) -> None:
    from darknetpy.images import can_show, draw_detections, save_image, show
    from darknetpy.inference.writers import detection_lines, save_labels

    picture = _load(path, detector.network.net.channels, bool(line.get("strict")))
    began = time.perf_counter()
    found = detector(picture, line.get("thresh", thresh), line.get("nms", 0.45), line.get("hier"))
    seconds = time.perf_counter() - began
    for head in detector.heads:
        print(f" Detection layer: {head.index} - type = {TYPE_NUMBER.get(head.type, 0)} ")
    print(f"{path}: Predicted in {seconds * 1000:f} milli-seconds.")
    for text in detection_lines(found, ext_output=bool(line.get("ext_output"))):
        print(text)
    if writer is not None:
        writer.write(found, path)
    if line.get("save_labels"):
        save_labels(found, path)
    drawn = draw_detections(picture, found)
    save_image("predictions.jpg", drawn)
    sys.stdout.flush()
    if not line.get("dont_show") and can_show():
        show("predictions", drawn)


def _load(path: str, channels: int, strict: bool):
    """A picture; with `-strict` Darknet's black one stands for what cannot be read."""
    import numpy as np

    from darknetpy.images import load_image

    try:
        return load_image(locate(path), channels)
    except ImageError as error:
        if not strict:
            raise
        warn(str(error))
        remember_bad(path)
        return np.zeros((channels, *_BLACK), np.float32)


def remember_bad(path: str) -> None:
    """Append the path of an unreadable picture to `bad.list`, as Darknet does."""
    try:
        with open("bad.list", "a", encoding="utf-8") as stream:
            stream.write(f"{path}\n")
    except OSError as error:
        warn(f"bad.list cannot be written: {error.strerror}")


__all__ = ["DarknetpyError", "detect", "test"]
