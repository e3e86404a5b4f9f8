"""Every run-time choice in one place: device, precision, cuDNN's policy, threads, seeds, memory."""

from __future__ import annotations

import os
import re
import subprocess
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


PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Policy:
    """How a training computes.

    Attributes:
        precision: of convolutions and products, one of PRECISIONS; losses, statistics of batch normalisation, weights
            and their updates are float32 in any case.
        tf32: NVIDIA's shortened float32. benchmark: cuDNN times its algorithms for every new size (None: not).
        deterministic: the same numbers on every run, where torch has such algorithms; it warns where not.
        checkpointing: outputs of layers are computed a second time for the backward pass, instead of kept.
    """

    precision: str = "fp32"
    tf32: bool = False
    benchmark: bool | None = None
    deterministic: bool = False
    checkpointing: bool = False

    def __post_init__(self):
        if self.precision not in PRECISIONS:
            raise UsageError("unknown precision", value=self.precision, remedy=f"use one of {', '.join(PRECISIONS)}")

    @property
    def mixed(self) -> bool:
        """Whether two kinds of numbers are in use."""
        return self.precision != "fp32"

    def apply(self) -> None:
        """Set torch's switches for this process."""
        set_parity()
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tf32
        torch.backends.cudnn.benchmark = bool(self.benchmark)
        if self.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.backends.cudnn.deterministic = True
            torch.use_deterministic_algorithms(True, warn_only=True)

    def forward(self, device: Any) -> AbstractContextManager:
        """What a forward pass is made in."""
        if not self.mixed:
            return nullcontext()
        kind = torch.bfloat16 if self.precision == "bf16" else torch.float16
        return torch.autocast(torch.device(device).type, dtype=kind)


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


def replicas_here() -> int:
    """Replicas of a run on this machine, which share its processors and memory, as what started them says."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return 1
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or slurm_tasks() or 1))


def slurm_tasks() -> int | None:
    """SLURM's tasks on a machine, None where it says nothing."""
    text = os.environ.get("SLURM_NTASKS_PER_NODE") or os.environ.get("SLURM_TASKS_PER_NODE", "")
    found = re.match(r"\d+", text)  # 4, or 4(x2) for two machines
    return int(found[0]) if found else None


def default_workers(device: str) -> int:
    """Loader processes of a replica: most processors feed GPUs; on a CPU one process beside the training is enough."""
    count = max(1, cpu_count() // replicas_here())
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
        pattern: of the messages that mean it.
        kind: `memory` and `engine` can be tried again in this process, `sticky` has broken it and needs a new one,
            `link` concerns the connection between processes, `setup` the installation; both fail again at once.
        sentence: what happened; remedy: what a person can change.
    """

    pattern: str
    kind: str
    sentence: str
    remedy: str


TROUBLES = [
    Trouble("out of memory|ALLOC(ATION)?_FAILED|CUBLAS_STATUS_NOT_INIT|(can't|cannot|unable to) allocate|bad_alloc",
            "memory", "the memory of the device is not enough", "raise subdivisions=, or lower width= and height="),
    Trouble("no kernel image|kernel image is invalid|(ARCH|VERSION)_MISMATCH|version incompatibility",
            "setup", "this PyTorch is not built for this GPU", "run `darknetpy doctor`"),
    Trouble("driver.{0,40}(insufficient|too old)|forward compatib|no CUDA.{0,10}(device|GPUs)|no NVIDIA driver",
            "setup", "the driver does not offer this GPU", "run `darknetpy doctor`"),
    Trouble("busy or unavailable",
            "setup", "another process has the GPU to itself", "choose another one with -i or -gpus, or -gpus idle"),
    Trouble("CUDNN_STATUS_BAD_PARAM",
            "engine", "cuDNN refused a convolution's parameters", "-cudnn_benchmark 0, or another cuDNN version"),
    Trouble("CUDNN_STATUS_NOT_SUPPORTED|unable to find an engine|no valid (convolution )?algorithm|GET was unable",
            "engine", "cuDNN has no algorithm for a convolution here", "-cudnn_benchmark 0, or another cuDNN version"),
    Trouble("CUDNN_STATUS_NOT_INITIALIZED",
            "engine", "cuDNN could not start, mostly for want of memory", "free memory on the device, or lower batch="),
    Trouble("illegal memory access|misaligned address|unspecified launch failure|illegal instruction",
            "sticky", "the GPU reported an illegal memory access", "start again; if it comes back, update the driver"),
    Trouble("STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)",
            "sticky", "cuDNN failed while it ran", "start again; if it comes back, run with -cudnn_benchmark 0"),
    Trouble("device-side assert",
            "sticky", "the program met impossible values on the GPU", "start again with CUDA_LAUNCH_BLOCKING=1 -trace"),
    Trouble("uncorrectable ECC|GPU is lost|launch timed out|hardware stack error",
            "sticky", "the GPU itself is ill", "run `darknetpy doctor`; if it comes back, restart the machine"),
    Trouble("shared memory|No space left on device.*shm|bus error",
            "link", "the shared memory of this machine is too small", "enlarge /dev/shm; in containers: --shm-size"),
    Trouble("no socket interface|Unable to find address for|find network interface",
            "link", "there is no such network interface",
            "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to one that `ip addr` lists"),
    Trouble("Address already in use|EADDRINUSE",
            "link", "the port of the meeting point is in use", "set MASTER_PORT to a free one"),
    Trouble("waiting for clients|trying to connect to",
            "link", "not all replicas came to the meeting point",
            "start the command on every machine, with a MASTER_ADDR and MASTER_PORT that all can reach"),
    Trouble("Watchdog caught|collective operation timeout|Timed out (waiting|after)|wait timeout",
            "link", "the replicas lost each other", "-nccl_debug shows where; set NCCL_SOCKET_IFNAME"),
    Trouble("Connection (refused|reset|closed|timed out)|Connect timeout|socket has timed|unreachable|RemoteError",
            "link", "a replica cannot be reached", "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"),
    Trouble("Duplicate GPU|ncclInvalidUsage",
            "link", "NCCL cannot use a GPU for two replicas", "name each GPU once in -gpus"),
    Trouble("unhandled system error|ncclSystemError",
            "link", "NCCL met an error of the system", "-nccl_debug shows it; often /dev/shm is too small"),
    Trouble("unhandled cuda error|ncclUnhandledCudaError|ncclInternalError",
            "link", "NCCL met an error of CUDA", "-nccl_debug shows it; NCCL_P2P_DISABLE=1 goes around the links"),
    Trouble("CUDA error", "sticky", "the GPU reported an error", "start again; run `darknetpy doctor`"),
]  # fmt: skip
"""What messages of torch, CUDA, cuDNN and NCCL mean; the first row whose pattern is found counts."""


def trouble_of(error: BaseException) -> Trouble | None:
    """What kind of device failure an exception is, None for anything else."""
    if isinstance(error, MemoryError):
        return TROUBLES[0]
    if not isinstance(error, RuntimeError | OSError):
        return None
    text = str(error)
    return next((row for row in TROUBLES if re.search(row.pattern, text, re.IGNORECASE)), None)


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU: UUID of the GPU, process, its user, MiB (None: not known)."""

    gpu: str
    pid: int
    user: str
    mib: int | None

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user}" + ("" if self.mib is None else f" ({self.mib} MiB)")


def gpu_processes() -> list[GpuProcess]:
    """All processes on the GPUs of this machine, as far as the driver tells. Never fails, needs no torch."""
    query = ["--query-compute-apps=gpu_uuid,pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    found = []
    for line in nvidia_smi(*query).splitlines():
        gpu, pid, memory = ([part.strip() for part in line.split(",")] + ["", ""])[:3]
        if pid.isdigit():
            found.append(GpuProcess(gpu, int(pid), _user_of(int(pid)), int(memory) if memory.isdigit() else None))
    return found


def nvidia_smi(*arguments: str) -> str:
    """What the driver's own tool prints; "" where it isn't there or does not answer."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, errors="replace", timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _user_of(pid: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_name
    except (ImportError, OSError, KeyError):
        return "somebody"


def others_on(device: str) -> str:
    """Who else holds memory of a GPU, as the end of a sentence; "" for nobody, a CPU, or where nothing is known."""
    try:
        if not device.startswith("cuda"):
            return ""
        uuid = str(torch.cuda.get_device_properties(device).uuid)
    except (AttributeError, RuntimeError, AssertionError, ValueError):
        return ""
    others = [str(p) for p in gpu_processes() if uuid in p.gpu and p.pid != os.getpid()]
    return f"; also on this GPU: {', '.join(others)}" if others else ""


def cuda_versions() -> dict[str, str | None]:
    """Versions of cuDNN and NCCL that torch has loaded; None for each that is not there."""
    built, found = torch.version.cuda is not None, dict.fromkeys(("cudnn", "nccl"))
    if built and (number := torch.backends.cudnn.version()):
        big = 10_000 if number >= 90_000 else 1000
        found["cudnn"] = f"{number // big}.{number % big // 100}.{number % 100}"
    if built and torch.distributed.is_available() and torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def free_cached_memory() -> None:
    """Give back what torch keeps for later, after a failure for want of memory."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


ENGINE_MEASURES = 2
"""How many steps `avoid_engines` has."""


def avoid_engines(step: int) -> str | None:
    """Take a measure against cuDNN's refusals: how it was called, None where it changes nothing."""
    cudnn = torch.backends.cudnn
    if step == 0 and cudnn.benchmark:
        cudnn.benchmark = False
        return "cuDNN's timing of algorithms is switched off"
    if step == 1 and cudnn.enabled:
        cudnn.enabled = False
        return "cuDNN is switched off"
    return None


def memory_to_have(device: str) -> float:
    """Bytes of a device that this process can have, with those that torch keeps; no limit on a CPU."""
    if not device.startswith("cuda"):
        return float("inf")
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)


def reserved_memory(device: str) -> int:
    """Bytes that torch has taken of a device at most since `reset_peak`; 0 on a CPU."""
    return torch.cuda.max_memory_reserved(device) if device.startswith("cuda") else 0


def held_memory(device: str) -> int:
    """Bytes that torch holds of a device now; 0 on a CPU."""
    return torch.cuda.memory_reserved(device) if device.startswith("cuda") else 0


def reset_peak(device: str) -> None:
    """Measure a device's memory from here on."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: str) -> int:
    """Bytes of the device that were in use at most so far; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else 0


def total_memory(device: str) -> int:
    """Bytes that the device has; 0 on a CPU."""
    return torch.cuda.get_device_properties(device).total_memory if device.startswith("cuda") else 0
