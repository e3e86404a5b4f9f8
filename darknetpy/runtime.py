"""Every run-time choice in one place: device, precision, cuDNN's policy, threads, seeds, memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from darknetpy.errors import UsageError, warn
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


def parse_gpus(text: str | None) -> list[int]:
    """`0,1,2` to numbers. Raises UsageError for anything else."""
    if not text:
        return []
    try:
        return [int(part) for part in str(text).split(",") if part.strip()]
    except ValueError:
        raise UsageError(
            "-gpus takes numbers separated by commas", value=text, remedy="for example -gpus 0,1"
        ) from None


def training_device(gpus: Sequence[int], index: int | None, no_gpu: bool) -> str:
    """The device of a single replica; says so where more were asked for."""
    if len(gpus) > 1:
        warn(f"-gpus {','.join(map(str, gpus))}: training on several devices is not here yet, the first one is used")
    if gpus and not no_gpu and not torch.cuda.is_available():
        warn("CUDA is not available: training on the CPU")
    return choose_device(gpus[0] if gpus else index, no_gpu)


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
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as stream:
            quota, period = stream.read().split()[:2]
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return max(1, count)


def default_workers(device: str) -> int:
    """Loader processes: most processors feed a GPU; on a CPU one process beside the training is enough."""
    count = cpu_count()
    if device.startswith("cuda"):
        return max(1, min(12, count - 1))
    return 1 if count > 1 else 0


def seed_all(seed: int) -> None:
    """Seed torch's generators (weights, dropout); the loader derives its draws from the same number by itself."""
    torch.manual_seed(seed)


def device_name(device: str) -> str:
    """What to call a device on screen."""
    return (
        torch.cuda.get_device_name(device) if device.startswith("cuda") else f"CPU, {torch.get_num_threads()} threads"
    )
