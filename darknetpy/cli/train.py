"""`detector train DATA CFG [WEIGHTS]`"""

from __future__ import annotations

import sys

from darknetpy.cli.common import lay_out, show_table
from darknetpy.cli.parse import Line, files_of
from darknetpy.data.sets import open_data
from darknetpy.errors import UsageError
from darknetpy.layers.trainable import check_trainable

EXIT_STATUS = {"SIGINT": 130, "SIGTERM": 143}


def train(line: Line, words: list[str]) -> int:
    """Train on one device; the exit status tells a run that a signal ended from one that came to its end."""
    files = files_of(words, ["data", "cfg", "weights"])
    if "data" not in files or "cfg" not in files:
        raise UsageError("usage: darknetpy detector train [data] [cfg] [weights (optional)]")
    strict = bool(line.get("strict"))
    data = open_data(files["data"], strict)
    structure = lay_out(files["cfg"], line, training=True)

    check_trainable(structure)

    from darknetpy import training
    from darknetpy.reporting import default_sinks
    from darknetpy.runtime import parse_gpus, training_device

    show_table(structure, line)
    device = training_device(parse_gpus(line.get("gpus")), line.get("i"), bool(line.get("nogpu")))
    weights = files.get("weights")
    if weights:
        print(f"Loading weights from {weights}...", file=sys.stderr)
    result = training.train(
        data,
        structure,
        weights,
        evaluate=bool(line.get("map")),
        map_every=line.get("map_every"),
        map_epochs=line.get("mAP_epochs"),
        thresh=line.get("thresh", 0.25),
        iou_thresh=line.get("iou_thresh"),
        clear=bool(line.get("clear")),
        device=device,
        seed=line.get("seed", 0),
        workers=line.get("workers"),
        cache=line.get("cache"),
        cache_dir=line.get("cache_dir"),
        prefetch=line.get("prefetch"),
        close_mosaic=line.get("close_mosaic"),
        show_imgs=bool(line.get("show_imgs")),
        batch=line.get("batch", 0),
        save_every=line.get("save_every"),
        patience=line.get("patience"),
        hours=line.get("time"),
        stop_map=_share(line.get("stop_map")),
        rehearse=not line.get("no_rehearsal"),
        show_details=bool(line.get("show_details")),
        strict=strict,
        sinks=default_sinks(),
    )
    return EXIT_STATUS.get(result.stopped, 0)


def _share(value: float | None) -> float | None:
    """mAP as a share of 1; what is above 1 is meant in percent."""
    return value / 100 if value is not None and value > 1 else value
