"""Which devices `-gpus` means."""

from __future__ import annotations

from darknetpy.errors import UsageError, warn
from darknetpy.lazy import torch

IDLE_SHARE = 0.05
"""A GPU with less of its memory in use counts as free."""


def choose_devices(text: str | None, index: int | None = None, no_gpu: bool = False) -> list[str]:
    """Devices of the replicas, one each, as torch names them.

    Args:
        text: of `-gpus`: numbers, names by UUID, `all`, or `idle` (also `-1`): those that nobody uses.
        index: of `-i`, where `-gpus` is not given. no_gpu: as many replicas on the CPU.

    Raises UsageError for a device that is not there.
    """
    wanted = [word.strip() for word in (text or "").split(",") if word.strip()]
    if no_gpu:
        if wanted in (["all"], ["idle"], ["-1"]):
            return ["cpu"]
        if odd := next((word for word in wanted if not word.isdecimal()), None):
            raise UsageError("-gpus with -nogpu counts replicas on the CPU, as 0,1,2", value=odd)
        return ["cpu"] * max(1, len(wanted))
    if not torch.cuda.is_available():
        if wanted:
            warn("CUDA is not available: one replica on the CPU does the work; -nogpu with -gpus makes more of them")
        return ["cpu"]
    if not wanted:
        return [_numbered(str(index or 0), "-i")] if index is None or index >= 0 else ["cpu"]
    if wanted == ["all"]:
        return [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if wanted in (["idle"], ["-1"]):
        return _idle()
    return [
        _by_uuid(word) if word.upper().startswith(("GPU-", "MIG-")) else _numbered(word, "-gpus") for word in wanted
    ]


def _numbered(word: str, flag: str) -> str:
    count = torch.cuda.device_count()
    try:
        number = int(word)
    except ValueError:
        raise UsageError(
            f"{flag} takes numbers separated by commas, UUIDs, all or idle", value=word, remedy="for example -gpus 0,1"
        ) from None
    if not 0 <= number < count:
        raise UsageError(f"{flag} {number}: there are {count} CUDA devices", remedy=f"use 0 to {count - 1}")
    return f"cuda:{number}"


def _by_uuid(word: str) -> str:
    for i in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(i).uuid).lower() in word.lower():
            return f"cuda:{i}"
    raise UsageError("no such GPU", value=word, remedy="darknetpy doctor lists them")


def _idle() -> list[str]:
    free = []
    for i in range(torch.cuda.device_count()):
        left, total = torch.cuda.mem_get_info(i)
        if (total - left) / total < IDLE_SHARE:
            free.append(f"cuda:{i}")
    if not free:
        raise UsageError("-gpus idle: all devices are in use", remedy="name the ones to share, as -gpus 0,1")
    return free
