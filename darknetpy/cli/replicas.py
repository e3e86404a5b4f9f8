"""Several devices behind one command line: starting the replicas, and being one of them."""

from __future__ import annotations

import logging
import os
import sys

from darknetpy.cli.parse import Line
from darknetpy.errors import warn


def several(line: Line) -> list[str]:
    """Devices of the replicas that a command line asks for, [] where it is one or this process is one of them."""
    text = str(line.get("gpus") or "")
    if not ("," in text or text in ("all", "idle", "-1")) or _is_replica():
        return []
    from darknetpy.parallel import choose_devices

    devices = choose_devices(text, None, bool(line.get("nogpu")))
    if len(devices) > 1:
        return devices
    line.values.update({"gpus": devices[0][5:]} if devices[0] != "cpu" else {"gpus": None, "nogpu": True})
    return []


def start(line: Line, devices: list[str]) -> int:
    """Run this command line in a replica for each device; the exit status."""
    from darknetpy.parallel.launch import launch

    return launch(line.arguments, devices)


def _is_replica() -> bool:
    names = ("RANK", "DARKNETPY_PARENT", "SLURM_PROCID")
    if not any(name in os.environ for name in names):  # spares the import of torch
        return False
    from darknetpy.parallel.launch import is_replica

    return is_replica()


def be_silent() -> None:
    """Leave it to the main replica to speak; errors are still said."""
    logging.getLogger("darknetpy").setLevel(logging.ERROR)


def join(line: Line):
    """The replicas of this run and the device of this one. All but the main one fall silent."""
    from darknetpy.parallel import Single, choose_devices
    from darknetpy.parallel import join as meet
    from darknetpy.parallel.launch import devices_differ, leave_with_launcher, log_nccl, own_device

    devices = [] if "DARKNETPY_DEVICES" in os.environ else _chosen(line, choose_devices)
    if not _is_replica():
        return Single(), devices[0]
    leave_with_launcher()
    device = own_device(devices)
    if os.environ.get("RANK", "0") != "0":
        be_silent()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        line.values["quiet"] = True
    if (folder := line.get("nccl_debug")) is not None:
        log_nccl(folder or "nccl")
        warn(f"-nccl_debug: each replica on a GPU writes NCCL's log to {folder or 'nccl'}/rank*.log")
    flags = (bool(line.get("sync_bn")), bool(line.get("sync_bn_stats")))
    return meet(device, bool(line.get("ddp")), devices_differ(devices), line.get("gpu_share"), *flags), device


def _chosen(line: Line, choose_devices) -> list[str]:
    """Devices of this machine: those named, or under torchrun all."""
    text = line.get("gpus")
    if text is None and _is_replica() and not line.get("nogpu"):
        text = "all"
    return choose_devices(text, line.get("i"), bool(line.get("nogpu")))
