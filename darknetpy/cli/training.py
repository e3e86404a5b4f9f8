"""What `detector train`, `classifier train` and `rnn train` share: replicas, sinks, options, the exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from darknetpy.cli.common import show_table
from darknetpy.cli.parse import Line
from darknetpy.cli.replicas import be_silent, join, several
from darknetpy.errors import UsageError, silenced, warn
from darknetpy.layers import Structure
from darknetpy.layers.trainable import BOX_HEADS, check_trainable


def devices_of(line: Line) -> list[str]:
    """Devices of replicas still to be started, which then do the talking; [] where this process trains itself."""
    devices = several(line)
    if devices:
        be_silent()
    return devices


def check(structure: Structure, heads: frozenset[str] = BOX_HEADS) -> None:
    """Raise ConfigError for a network that cannot be trained; what the training only warns of, it says itself."""
    with silenced():
        check_trainable(structure, heads)


def run(line: Line, structure: Structure, weights: str | None, backup: str, devices: list[str], task: Callable) -> int:
    """Train here or start a replica on each of the devices; the exit status.

    Args:
        backup: folder of the weights files. task: is called with the options that every training has.
    """
    if devices:
        return _launch(line, weights, backup, structure, devices)
    from darknetpy.parallel.launch import ENDING, started_here

    replicas, device = join(line)
    if line.get("burn_in_single") and replicas.size > 1 and not started_here():
        warn("-burn_in_single has no effect where torchrun or SLURM starts the replicas: train alone first, -until N")
    line.again = _starter(line, weights, backup, structure).again
    show_table(structure, line)
    if weights and replicas.main:
        print(f"Loading weights from {weights}...", file=sys.stderr)
    result = task(
        clear=bool(line.get("clear")),
        device=device,
        replicas=replicas,
        policy=_policy(line),
        until=line.get("until"),
        hours=line.get("time"),
        rehearse=not line.get("no_rehearsal"),
        profile=line.get("profile"),
        check_replicas=bool(line.get("check_replicas")),
        strict=bool(line.get("strict")),
        sinks=_sinks(line) if replicas.main else [],
    )
    return ENDING.get(result.stopped, 0)


def refuse_auto(line: Line) -> None:
    """Raise UsageError for `-subdivisions` other than a number."""
    text = line.get("subdivisions")
    if text is not None and not str(text).isdecimal():
        raise UsageError("-subdivisions must be a number here", value=text, remedy="`auto` is for detectors")


def picture_options(line: Line) -> dict:
    """What trainings on pictures have besides."""
    names = ("map_every", "workers", "cache", "cache_dir", "prefetch", "close_mosaic", "patience")
    return {
        **{name: line.get(name) for name in names},
        "seed": line.number("seed"),
        "batch": line.get("batch", 0),
        "show_imgs": bool(line.get("show_imgs")),
    }


def share(value: float | None) -> float | None:
    """mAP as a share of 1; what is above 1 is meant in percent."""
    return value / 100 if value is not None and value > 1 else value


def _policy(line: Line):
    from darknetpy.runtime import Policy

    timing = line.get("cudnn_benchmark")
    return Policy(
        line.get("precision"),
        bool(line.get("tf32")),
        None if timing is None else bool(timing),
        bool(line.get("deterministic")),
        bool(line.get("checkpointing")),
    )


def _sinks(line: Line) -> list:
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


def _launch(line: Line, weights: str | None, backup: str, structure: Structure, devices: list[str]) -> int:
    from darknetpy.parallel.shares import read_shares

    read_shares(line.get("gpu_share"), len(devices))
    start = _starter(line, weights, backup, structure, devices)
    return start.run(_alone(line.get("burn_in_single"), structure))


def _starter(line: Line, weights: str | None, backup: str, structure: Structure, devices: Sequence[str] = ()):
    """Who starts this run, again where a device has to be reset."""
    from darknetpy.parallel.start import Start

    return Start(
        line.arguments, weights, backup, structure.cfg.path, devices, line.get("max_restarts"), line.get("until"),
        structure.net,
    )  # fmt: skip


def _alone(text: str | None, structure: Structure) -> int:
    """Iterations that one device trains before the others join in."""
    if text is None:
        return 0
    if text != "auto":
        if not text.isdecimal():
            raise UsageError("-burn_in_single takes a number of iterations, or auto", value=text)
        return int(text)
    from darknetpy.parallel.advice import alone

    return alone(structure.net)
