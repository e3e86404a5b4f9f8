"""`detector test` and `detect`: pictures from the command line or from a list on standard input."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from darknetpy.cli.asked import PROMPT, asked_paths, is_one, load_picture, remember_bad
from darknetpy.cli.common import lay_out, load_weights, names_for, show_table
from darknetpy.cli.parse import Line, files_of
from darknetpy.cli.replicas import be_silent, join, several, start
from darknetpy.data.sets import open_data
from darknetpy.errors import DarknetpyError, ImageError, UsageError, warn

if TYPE_CHECKING:
    import numpy as np

    from darknetpy.detections import Detections

TYPE_NUMBER = {"yolo": 28, "region": 27, "Gaussian_yolo": 29, "detection": 26}
"""Darknet's numbers of layer types, which `Detection layer:` lines show."""
ROUND = 8
"""Pictures that each of several replicas looks at before the main one shows what was found."""


@dataclass
class Looked:
    """A picture and what was found in it, or why it could not be read. `picture` is (C, H, W), not kept by other
    replicas than the main one."""

    path: str
    found: Detections | None = None
    picture: np.ndarray | None = None
    seconds: float = 0.0
    error: str = ""


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
    devices = [] if is_one(files.get("image")) else several(line)
    if devices:
        be_silent()
    data = None if "names" in files else open_data(files["data"], strict)
    names = names_for(files, data)
    structure = lay_out(files["cfg"], line)
    if devices:
        return start(line, devices)
    replicas, device = join(line)
    show_table(structure, line)
    _say_names(names, structure, files, data)

    from darknetpy.inference import Detector
    from darknetpy.network import Network

    network = Network.from_structure(structure, device)
    load_weights(network, files.get("weights"), speak=replicas.main)
    letter_box = True if line.get("letter_box") else None
    detector = Detector(network, names=names, letter_box=letter_box, strict=strict)
    _pictures(line, detector, files.get("image"), thresh, replicas)
    replicas.close()
    return 0


def _say_names(names, structure, files, data) -> None:
    classes = next((head.options.classes for head in reversed(structure.heads)), len(names))
    if len(names) != classes:
        file = files.get("names") or data.names
        print(
            f"\n Error: in the file {file} number of names {len(names)} that isn't equal to classes={classes} "
            f"in the file {files['cfg']} "
        )


def _pictures(line: Line, detector, image: str | None, thresh: float, replicas) -> None:
    """Look at all pictures, each replica at its part of every round; the main one shows and writes what was found."""
    from darknetpy.inference.writers import Drawings, JsonWriter

    out, folder = (line.get(name) if replicas.main else None for name in ("out", "out_dir"))
    alone, one, ask = replicas.size == 1, is_one(image), image is None
    paths, asked, failed = asked_paths(image, prompt=alone), 0, 0
    drawings = Drawings(folder) if folder else None
    with JsonWriter(out) if out else nullcontext() as writer:
        while True:
            round_ = list(islice(paths, 1 if alone else ROUND * replicas.size)) if replicas.main else None
            round_ = replicas.share(round_)
            if not round_:
                break
            mine = [_look(line, detector, path, thresh) for path in round_[replicas.rank :: replicas.size]]
            if one and mine[0].found is None:
                remember_bad(image)
                raise ImageError(mine[0].error)
            parts = replicas.gather(mine if alone else [_light(one) for one in mine])
            for number in range(len(round_) if replicas.main else 0):
                if ask and not alone:
                    print(PROMPT, end="")
                looked = parts[number % replicas.size][number // replicas.size]
                asked, failed = asked + 1, failed + bool(looked.error)
                _tell(line, detector, looked, writer, drawings)
    if ask and not alone:
        print(PROMPT, end="", flush=True)
    if failed:
        warn(f"{failed} of {asked} images could not be read; bad.list has their names")


def _look(line: Line, detector, path: str, thresh: float) -> Looked:
    """Load a picture and detect in it."""
    picture, error = load_picture(path, detector.network.net.channels, bool(line.get("strict")))
    if picture is None:
        return Looked(path, error=error)
    began = time.perf_counter()
    found = detector(picture, line.get("thresh", thresh), line.get("nms", 0.45), line.get("hier"))
    return Looked(path, found, picture, time.perf_counter() - began, error)


def _light(looked: Looked) -> Looked:
    """What travels to the main replica, which reads the picture itself to draw it."""
    found = None if looked.found is None else looked.found.cpu()
    return Looked(looked.path, found, None, looked.seconds, looked.error)


def _tell(line: Line, detector, looked: Looked, writer, drawings) -> None:
    """Print, write and draw what was found in a picture of a list; one that cannot be read is said and left out."""
    from darknetpy.detections import Detections
    from darknetpy.images import can_show, draw_detections, save_image, show
    from darknetpy.inference.writers import detection_lines, save_labels

    path, found = looked.path, looked.found
    if looked.error:
        remember_bad(path)
        warn(looked.error)
    if found is None:
        if writer is not None:  # one frame a line of the list, as in Darknet
            writer.write(Detections.empty(detector.classes), path)
        return
    for head in detector.heads:
        print(f" Detection layer: {head.index} - type = {TYPE_NUMBER.get(head.type, 0)} ")
    print(f"{path}: Predicted in {looked.seconds * 1000:f} milli-seconds.")
    for text in detection_lines(found, ext_output=bool(line.get("ext_output"))):
        print(text)
    if writer is not None:
        writer.write(found, path)
    if line.get("save_labels"):
        save_labels(found, path)
    picture = looked.picture
    if picture is None:
        picture, _ = load_picture(path, detector.network.net.channels, bool(line.get("strict")))
    drawn = draw_detections(picture, found)
    save_image("predictions.jpg", drawn)
    if drawings is not None:
        drawings.write(drawn, path)
    sys.stdout.flush()
    if not line.get("dont_show") and can_show():
        show("predictions", drawn)


__all__ = ["DarknetpyError", "detect", "test"]
