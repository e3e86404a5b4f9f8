"""`detector train DATA CFG [WEIGHTS]`"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from darknetpy.cli.common import lay_out, show_table
from darknetpy.cli.parse import Line, files_of
from darknetpy.cli.replicas import be_silent, join, several
from darknetpy.config.numbers import atoi
from darknetpy.data.sets import open_data
from darknetpy.errors import UsageError
from darknetpy.layers import Structure
from darknetpy.layers.trainable import check_trainable

EXIT_STATUS = {"SIGINT": 130, "SIGTERM": 143}


def train(line: Line, words: list[str]) -> int:
    """Train on one device or several; the exit status tells a run that a signal ended from one that came to its end."""
    files = files_of(words, ["data", "cfg", "weights"])
    if "data" not in files or "cfg" not in files:
        raise UsageError("usage: darknetpy detector train [data] [cfg] [weights (optional)]")
    devices = several(line)
    if devices:
        be_silent()
    strict = bool(line.get("strict"))
    data = open_data(files["data"], strict)
    if str(line.get("subdivisions") or "").isdecimal():
        line.values["set"] = [*(line.get("set") or ()), f"net.subdivisions={line.get('subdivisions')}"]
    structure = lay_out(files["cfg"], line, training=True)
    check_trainable(structure)
    weights = files.get("weights")
    if devices:
        return launch(line, weights, data.backup, structure, devices)

    from darknetpy import training

    replicas, device = join(line)
    line.again = starter(line, weights, data.backup, structure).again
    show_table(structure, line)
    if weights and replicas.main:
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
        replicas=replicas,
        until=line.get("until"),
        seed=line.number("seed"),
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
        stop_map=share(line.get("stop_map")),
        rehearse=not line.get("no_rehearsal"),
        profile=line.get("profile"),
        check_replicas=bool(line.get("check_replicas")),
        show_details=bool(line.get("show_details")),
        subdivisions=line.get("subdivisions"),
        precision=line.get("precision"),
        tf32=bool(line.get("tf32")),
        cudnn_benchmark=None if line.get("cudnn_benchmark") is None else bool(line.get("cudnn_benchmark")),
        deterministic=bool(line.get("deterministic")),
        checkpointing=bool(line.get("checkpointing")),
        strict=strict,
        sinks=sinks(line) if replicas.main else [],
    )
    return EXIT_STATUS.get(result.stopped, 0)


def sinks(line: Line) -> list:
    """Who shows the run, and where."""
    from darknetpy.reporting import default_sinks, load

    folder = line.get("tensorboard")
    return default_sinks(
        previous_chart=line.get("chart"),
        tensorboard="runs" if folder == "" else folder,
        mjpeg_port=line.get("mjpeg_port"),
        bind=line.get("bind"),
        own=load(line.get("sink")) if line.get("sink") else (),
    )


def launch(line: Line, weights: str | None, backup: str, structure: Structure, devices: list[str]) -> int:
    """Start a replica for each device; the exit status of the run."""
    from darknetpy.parallel.shares import read_shares

    read_shares(line.get("gpu_share"), len(devices))
    start = starter(line, weights, backup, structure, devices)
    return start.run(_single(line.get("burn_in_single"), structure))


def starter(line: Line, weights: str | None, backup: str, structure: Structure, devices: Sequence[str] = ()):
    """Who starts this run, again where a device has to be reset."""
    from darknetpy.parallel.start import Start

    return Start(line.arguments, weights, backup, structure.cfg.path, devices, line.get("max_restarts"))


def _single(text: str | None, structure: Structure) -> int:
    """Iterations that one device trains alone before the others join in."""
    if text is None:
        return 0
    from darknetpy.parallel.advice import alone

    return alone(structure.net) if text == "auto" else atoi(text)


def share(value: float | None) -> float | None:
    """mAP as a share of 1; what is above 1 is meant in percent."""
    return value / 100 if value is not None and value > 1 else value
