"""`classifier train`, `predict`, `valid` and their relatives, and `classify`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from darknetpy.assets import locate
from darknetpy.cli.asked import asked_paths, is_one, load_picture, remember_bad
from darknetpy.cli.common import lay_out, load_weights, pick_device, show_table
from darknetpy.cli.parse import Line, files_of
from darknetpy.cli.training import check, devices_of, picture_options, refuse_auto, run, share
from darknetpy.config.datafile import DataConfig, read_names
from darknetpy.data.sets import open_data
from darknetpy.errors import ImageError, MissingFileError, UsageError, warn
from darknetpy.layers.trainable import TARGET_HEADS, check_classes

TOP = 5
"""Guesses that `classify` shows."""
IMAGENET = "cfg/imagenet1k.data"


def _files(line: Line, words: list[str], command: str) -> tuple[dict[str, str], DataConfig | None]:
    files = files_of(words, ["data", "cfg", "weights", "image"])
    if "cfg" not in files or not ("data" in files or "names" in files):
        raise UsageError(f"usage: darknetpy {command} [data] [cfg] [weights (optional)] [image (optional)]")
    return files, None if "names" in files else open_data(files["data"], bool(line.get("strict")))


def _classifier(line: Line, files: dict[str, str], data: DataConfig | None, names: list[str]):
    """The network with its weights. Classes are counted before torch is paid for."""
    structure = lay_out(files["cfg"], line)
    show_table(structure, line)
    if data is not None:
        check_classes(structure, data.number("classes", len(names)))

    from darknetpy.inference import Classifier
    from darknetpy.network import Network

    network = Network.from_structure(structure, pick_device(line))
    load_weights(network, files.get("weights"))
    leaves = data.file("leaves") if data is not None else None
    leaves = read_names(leaves) if leaves else None
    return Classifier(network, names=names, leaves=leaves, strict=bool(line.get("strict")))


def predict(line: Line, words: list[str]) -> int:
    """`classifier predict DATA CFG [WEIGHTS] [IMAGE]`: the likeliest classes of pictures."""
    files, data = _files(line, words, "classifier predict")
    return _predict(line, files, data)


def classify(line: Line, words: list[str]) -> int:
    """`classify CFG [WEIGHTS] [IMAGE]`: five guesses with the names of cfg/imagenet1k.data."""
    files = files_of(words, ["cfg", "weights", "image"])
    if "cfg" not in files:
        raise UsageError("usage: darknetpy classify [cfg] [weights (optional)] [image (optional)]")
    if not os.path.exists(locate(files["cfg"])):
        raise MissingFileError(files["cfg"])
    data = None if "names" in files else open_data(IMAGENET, bool(line.get("strict")))
    line.values.setdefault("t", TOP)
    return _predict(line, files, data)


def _predict(line: Line, files: dict[str, str], data: DataConfig | None) -> int:
    names = read_names(files["names"]) if data is None else _names(data)
    classifier = _classifier(line, files, data, names)
    print(f" classes = {classifier.classes}, output in cfg = {classifier.network.layers[-1].c} ")
    top = line.get("t") or (1 if data is None else data.number("top", 1))
    image = files.get("image")
    for path in asked_paths(image, prompt=True):
        picture, error = load_picture(path, classifier.network.net.channels, bool(line.get("strict")))
        try:
            if picture is None:
                raise ImageError(error)
            _tell(classifier, path, picture, min(top, classifier.classes))
        except ImageError as problem:
            remember_bad(path)
            if is_one(image):
                raise
            warn(str(problem))
    return 0


def _names(data: DataConfig) -> list[str]:
    """Names that are shown: `names=`, else `labels=`."""
    key = "names" if data.has("names") else "labels"
    return read_names(data.file(key, "data/labels.list") or "")


def _tell(classifier, path: str, picture, top: int) -> None:
    view = classifier.prepare(picture)
    print(f"{view.shape[2]} {view.shape[1]}")
    began = time.perf_counter()
    (found,) = classifier.guesses(view[None], top)
    print(f"{path}: Predicted in {1000 * (time.perf_counter() - began):f} milli-seconds.")
    for c in found:
        if c.parent is None:
            print(f"{c.name}: {c.probability:f}")
        else:
            print(f"{c.class_id}, {c.name}: {c.probability:f}, parent: {c.parent} ")
    sys.stdout.flush()


def _evaluated(line: Line, words: list[str], name: str):
    """A classifier for a `.data` file that is there."""
    files, data = _files(line, words, f"classifier {name}")
    if data is None:
        raise UsageError(f"classifier {name} needs a .data file")

    from darknetpy.evaluation.topk import classes_in

    labels = classes_in(data)
    return _classifier(line, files, data, labels), data, labels


def test(line: Line, words: list[str]) -> int:
    """`classifier test DATA CFG WEIGHTS`: all outputs for the pictures of `test=`, a line each, TABs between."""
    return _all(
        line, words, "test", "validcrop", lambda path, outputs, _: "\t".join([path, *(f"{v:g}" for v in outputs)])
    )


def label(line: Line, words: list[str]) -> int:
    """`classifier label DATA CFG WEIGHTS`: the likeliest class of each picture of `test=`."""
    return _all(line, words, "label", "valid", lambda _, outputs, labels: labels[int(outputs.argmax())])


def _all(line: Line, words: list[str], name: str, views: str, show: Callable) -> int:
    classifier, data, _ = _evaluated(line, words, name)

    import numpy as np
    import torch

    from darknetpy.evaluation.evaluator import for_batches
    from darknetpy.evaluation.topk import topk_images

    def compute(samples):
        return classifier.outputs(torch.from_numpy(np.stack([sample.input[0] for sample in samples]))).numpy()

    images = topk_images(data, classifier, views, "test")
    for_batches(
        classifier, images, compute,
        lambda sample, outputs: print(show(sample.path, outputs, classifier.names)), line.get("batch", 0),
        progress=not sys.stdout.isatty(),
    )  # fmt: skip
    return 0


def _valid(line: Line, words: list[str], views: str) -> int:
    classifier, data, labels = _evaluated(line, words, views)

    from darknetpy.evaluation.topk import run_topk, topk_images

    top, images = line.get("t") or data.number("top", 1), topk_images(data, classifier, views)
    plain = views == "valid"
    if plain:
        print(" TOP calculation...")
    start, end = ("\n", "") if plain else ("", "\n")
    run_topk(
        classifier, images, labels, top, lambda result: print(f"{start}{result.line()}", end=end),
        line.get("batch", 0), progress=not sys.stdout.isatty(),
    )  # fmt: skip
    return 0


def valid(line: Line, words: list[str]) -> int:
    """Top-1 and top-k accuracy on `valid=`, by the middle of each picture."""
    return _valid(line, words, "valid")


def valid10(line: Line, words: list[str]) -> int:
    """As `valid`, by ten windows of each picture."""
    return _valid(line, words, "valid10")


def validfull(line: Line, words: list[str]) -> int:
    """As `valid`, by the whole of each picture."""
    return _valid(line, words, "validfull")


def validmulti(line: Line, words: list[str]) -> int:
    """As `valid`, by the whole of each picture at five sizes."""
    return _valid(line, words, "validmulti")


def validcrop(line: Line, words: list[str]) -> int:
    """As `valid`, by each picture stretched to the network's size."""
    return _valid(line, words, "validcrop")


def train(line: Line, words: list[str]) -> int:
    """`classifier train DATA CFG [WEIGHTS]`: learn the classes that the paths of pictures name."""
    files, data = _files(line, words, "classifier train")
    if data is None:
        raise UsageError("classifier train needs a .data file")
    refuse_auto(line)
    devices = devices_of(line)
    structure = lay_out(files["cfg"], line, training=True)
    check(structure, TARGET_HEADS)
    if data.has("classes"):
        check_classes(structure, data.number("classes", 0))
    weights = files.get("weights")

    def task(**options):
        from darknetpy.training.classifier import train_classifier

        return train_classifier(
            data,
            structure,
            weights,
            evaluate=bool(line.get("topk") or line.get("map")),
            save_every=line.get("save_every", 1000),
            stop_accuracy=share(line.get("stop_map")),
            **picture_options(line),
            **options,
        )

    return run(line, structure, weights, data.backup, devices, task)
