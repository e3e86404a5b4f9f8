"""Every run-time choice in one place: device, precision, cuDNN's policy, threads, seeds, memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from darknetpy.errors import UsageError
from darknetpy.lazy import torch


def choose_device(index: int | None = None, no_gpu: bool = False) -> str:
    """`cuda:N` or `cpu`. An index that CUDA doesn't have is an error; without CUDA it is the CPU."""
    if no_gpu or not torch.cuda.is_available():
        return "cpu"
    count = torch.cuda.device_count()
    number = 0 if index is None else index
    if number < 0:
        return "cpu"
    if number >= count:
        raise UsageError(f"-i {number}: there are {count} CUDA devices", remedy=f"use 0 to {count - 1}")
    return f"cuda:{number}"


def set_parity() -> None:
    """float32 as it is written: no TF32, algorithms chosen once and not by timing (sizes change during training)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False


def precision(device: str, amp: bool = False) -> AbstractContextManager:
    """Context of the forward pass: float32, or bfloat16 autocast where asked for."""
    if not amp:
        return nullcontext()
    return torch.autocast("cuda" if device.startswith("cuda") else "cpu", dtype=torch.bfloat16)


def cpu_count() -> int:
    """Processors that this process may use, by affinity and cgroup quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = [int(n) for n in " ".join(map(_cgroup, files)).split()]
        except (OSError, ValueError):
            continue  # another version of cgroups, or `max`
        if quota > 0 and period > 0:
            count = min(count, max(1, quota // period))
    return max(1, count)


def _cgroup(name: str) -> str:
    with open(f"/sys/fs/cgroup/{name}", encoding="ascii") as stream:
        return stream.read()


MOST_WORKERS = 24
"""Each makes some 90 mosaics of 416 x 416 a second from JPEG files, twice as many from cached pictures."""


def default_workers(device: str, replicas: int = 1) -> int:
    """Loader processes of a replica: most processors feed GPUs; on a CPU one process beside the training is enough."""
    count = max(1, cpu_count() // max(1, replicas))
    if device.startswith("cuda"):
        return max(1, min(MOST_WORKERS, count - 1))
    return 1 if count > 1 else 0


def host_arrays(device: str) -> Callable[..., Any]:
    """Maker of empty numpy arrays (shape, type) that are copied to a device: in pinned memory for a GPU, so that the
    copy runs beside the computation."""
    import numpy as np

    if not device.startswith("cuda"):
        return np.empty
    kinds = {np.uint8: torch.uint8, np.float32: torch.float32}
    return lambda shape, kind: torch.empty(shape, dtype=kinds[kind], pin_memory=True).numpy()


def seed_all(seed: int) -> None:
    """Seed torch's generators (weights, dropout); the loader derives its draws from the same number by itself."""
    torch.manual_seed(seed)


def synchronize(device) -> None:
    """Wait until a device has done what it was given."""
    if str(device).startswith("cuda"):
        torch.cuda.synchronize(device)


def device_name(device: str) -> str:
    """What to call a device on screen."""
    return (
        torch.cuda.get_device_name(device) if device.startswith("cuda") else f"CPU, {torch.get_num_threads()} threads"
    )


@dataclass(frozen=True)
class Trouble:
    """A failure of device or libraries that is not the input's fault.

    Attributes:
        kind: `memory` and `engine` can be tried again in this process, `sticky` has broken it, `link` concerns the
            connection between processes.
        sentence: what happened; remedy: what a person can change.
    """

    kind: str
    sentence: str
    remedy: str


_TROUBLES = [
    ("out of memory|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED|can't allocate memory|bad_alloc", Trouble(
        "memory", "the memory of the device is not enough", "raise subdivisions=, or lower width= and height=")),
    ("CUDNN_STATUS_BAD_PARAM", Trouble(
        "engine", "cuDNN refused a convolution's parameters", "-cudnn_benchmark 0, or another cuDNN version")),
    ("CUDNN_STATUS_NOT_SUPPORTED|unable to find an engine|no valid (convolution )?algorithm|GET was unable", Trouble(
        "engine", "cuDNN has no algorithm for a convolution here", "-cudnn_benchmark 0, or another cuDNN version")),
    ("CUDNN_STATUS_NOT_INITIALIZED", Trouble(
        "engine", "cuDNN could not start, mostly for want of memory", "free memory on the device, or lower batch=")),
    ("illegal memory access|misaligned address|unspecified launch failure", Trouble(
        "sticky", "the GPU reported an illegal memory access", "start again; if it comes back, update the driver")),
    ("CUDNN_STATUS_EXECUTION_FAILED|CUDNN_STATUS_INTERNAL_ERROR|CUBLAS_STATUS_EXECUTION_FAILED", Trouble(
        "sticky", "cuDNN failed while it ran", "start again; if it comes back, run with -cudnn_benchmark 0")),
    ("device-side assert|uncorrectable ECC|device kernel image is invalid|no kernel image", Trouble(
        "sticky", "the GPU cannot run this program", "run `darknetpy doctor`")),
    ("unhandled system error|ncclSystemError", Trouble(
        "link", "NCCL met an error of the system", "-nccl_debug shows it; often /dev/shm is too small")),
    ("ncclUnhandledCudaError|unhandled cuda error", Trouble(
        "link", "NCCL met an error of CUDA", "run `darknetpy doctor`; set NCCL_P2P_DISABLE=1 to go around the links")),
    ("Address already in use|EADDRINUSE", Trouble(
        "link", "the port of the meeting point is in use", "set MASTER_PORT to a free one")),
    ("Watchdog caught collective|collective operation timeout|Timed out waiting", Trouble(
        "link", "the replicas lost each other", "-nccl_debug shows where; set NCCL_SOCKET_IFNAME")),
    ("Connection (refused|reset|closed)|Connect timeout|Network is unreachable", Trouble(
        "link", "a replica cannot be reached", "set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to the right network")),
    ("No space left on device.*shm|shared memory|bus error", Trouble(
        "link", "the shared memory of this machine is too small", "enlarge /dev/shm, in a container with --shm-size")),
]  # fmt: skip


def trouble_of(error: BaseException) -> Trouble | None:
    """What kind of device failure an exception is, None for anything else."""
    if not isinstance(error, RuntimeError | MemoryError | OSError):
        return None
    if isinstance(error, MemoryError):
        return _TROUBLES[0][1]
    text = str(error)
    return next((trouble for pattern, trouble in _TROUBLES if re.search(pattern, text, re.IGNORECASE)), None)


def free_cached_memory() -> None:
    """Give back what torch keeps for later, after a failure for want of memory."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def avoid_engines(step: int) -> str | None:
    """Take the next measure against cuDNN's refusals: how it was called, None where none is left."""
    if step == 0:
        torch.backends.cudnn.benchmark = False
        return "cuDNN's timing of algorithms is switched off"
    if step == 1 and torch.backends.cudnn.enabled:
        torch.backends.cudnn.enabled = False
        return "cuDNN is switched off"
    return None


def peak_memory(device: str) -> int:
    """Bytes of the device that were in use at most so far; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else 0


def total_memory(device: str) -> int:
    """Bytes that the device has; 0 on a CPU."""
    return torch.cuda.get_device_properties(device).total_memory if device.startswith("cuda") else 0
