"""`doctor`: what this machine has, what of it works, and what to do about the rest.

Nothing here needs torch, OpenCV or numpy: they are tried in other processes, because their failures are what is looked
for. `examine` collects facts, `findings` judges them, so that judgements can be tested without the machines.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from darknetpy import __version__
from darknetpy.runtime import cpu_count, gpu_processes, nvidia_smi
from darknetpy.toolbox.children import Child, stage
from darknetpy.toolbox.judge import Finding, findings
from darknetpy.toolbox.show import Section, sections

PATIENCE = 120.0
"""Seconds for a probe; importing torch from a slow disk takes most of a minute."""
GPU_FIELDS = (
    "index,name,uuid,driver_version,memory.total,memory.used,compute_mode,pcie.link.gen.current,"
    "pcie.link.width.current,mig.mode.current,ecc.errors.uncorrected.volatile.total"
)
OLD_FIELDS = "index,name,uuid,driver_version,memory.total,memory.used"
"""Which drivers of any age tell."""
VARIABLES = (
    "CUDA_", "NVIDIA_", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTORCH_", "TORCH_", "NCCL_", "GLOO_", "OMP_",
    "MKL_", "KMP_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_", "QT_", "DISPLAY", "OPENCV_",
)  # fmt: skip
SECRET = ("KEY", "TOKEN", "SECRET", "PASS")


@dataclass
class Report:
    """What was found: facts as plain containers, and the problems in them."""

    facts: dict[str, Any]
    findings: list[Finding]

    @property
    def healthy(self) -> bool:
        """Whether nothing was found that keeps a run from working."""
        return not any(finding.level == "problem" for finding in self.findings)

    def json(self) -> str:
        """Everything, for programs."""
        found = [asdict(finding) for finding in self.findings]
        return json.dumps({"healthy": self.healthy, "findings": found, "facts": self.facts}, indent=1)


def examine(gpus: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
    """Facts by subject, each as soon as it is known; `gpus` False leaves GPUs alone."""
    children = {
        "torch": Child("torch", str(int(gpus))),
        "cv2": Child("cv2"),
        "modules": Child("modules", "numpy", "tqdm", "tabulate"),
    }
    yield "system", _system()
    yield "limits", _limits()
    yield "driver", _driver() if gpus else {"gpus": [], "processes": [], "links": []}
    torch = children["torch"].read(PATIENCE)
    yield "torch", torch
    yield "cv2", children["cv2"].read(PATIENCE)
    yield "modules", children["modules"].read(PATIENCE)
    if stage(torch, "torch"):
        devices = sorted({line["device"] for line in torch["stages"] if line["stage"] == "device"})
        yield "together", _together([f"cuda:{i}" for i in devices] if len(devices) > 1 else ["cpu", "cpu"])


def diagnose(gpus: bool = True) -> Iterator[Section | Report]:
    """Parts of the table as they become known; at last the report."""
    facts: dict[str, Any] = {}
    for subject, found in examine(gpus):
        facts[subject] = found
        yield from sections(subject, facts)
    yield Report(facts, findings(facts))


def _system() -> dict[str, Any]:
    shown = {
        name: "(not shown)" if any(word in name.upper() for word in SECRET) else value
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLES)
    }
    return {
        "darknetpy": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "os": platform.platform(),
        "machine": platform.machine(),
        "container": os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
        "host": socket.gethostname(),
        "environment": shown,
    }


def _limits() -> dict[str, Any]:
    facts: dict[str, Any] = {"cpus": os.cpu_count(), "usable_cpus": cpu_count()}
    try:
        import resource

        facts["files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        facts["locked"] = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    except (ImportError, OSError, ValueError):
        pass
    for name, path in (("shared", "/dev/shm"), ("disk", ".")):
        try:
            found = os.statvfs(path)
            facts[name] = {"free": found.f_bavail * found.f_frsize, "total": found.f_blocks * found.f_frsize}
        except (OSError, AttributeError):
            facts[name] = None
    try:
        with open("/proc/meminfo", encoding="ascii") as stream:
            memory = dict(line.split(":", 1) for line in stream)
        facts["memory"] = {
            "free": 1024 * int(memory["MemAvailable"].split()[0]),
            "total": 1024 * int(memory["MemTotal"].split()[0]),
        }
    except (OSError, KeyError, ValueError):
        facts["memory"] = None
    facts["memory_limit"] = _memory_limit()
    return facts


def _memory_limit() -> int | None:
    """Bytes that the cgroup allows, None for no limit."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as stream:
                limit = int(stream.read())
        except (OSError, ValueError):
            continue  # another version of cgroups, or `max`
        return limit if limit < 1 << 60 else None
    return None


def _driver() -> dict[str, Any]:
    """What the driver says of GPUs, without torch."""
    gpus = _gpus(GPU_FIELDS) or _gpus(OLD_FIELDS)
    links = [line.split() for line in nvidia_smi("topo", "-m").splitlines() if line.startswith("GPU")] if gpus else []
    return {
        "gpus": gpus,
        "processes": [asdict(process) for process in gpu_processes()] if gpus else [],
        "links": [row[1 : 1 + len(gpus)] for row in links],
        "present": bool(gpus) or os.path.exists("/proc/driver/nvidia/version"),
    }


def _gpus(fields: str) -> list[dict[str, str]]:
    """Each GPU's fields by name; [] where the driver does not know one of them."""
    names = fields.split(",")
    rows = [
        dict(zip(names, (part.strip() for part in line.split(",")), strict=False))
        for line in nvidia_smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits").splitlines()
    ]
    return [dict.fromkeys(GPU_FIELDS.split(","), "?") | row for row in rows if len(row) == len(names)]


def _together(devices: list[str]) -> dict[str, Any]:
    """Replicas on all devices, each pair of which adds up numbers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(len(devices)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    children = [
        Child("member", device, environment={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank, device in enumerate(devices)
    ]
    found = [child.read(PATIENCE) for child in children]
    pairs: dict[tuple[int, int], dict[str, Any]] = {}
    for one in found:
        for line in one["stages"]:
            if line["stage"] == "pair":
                before = pairs.setdefault(tuple(line["pair"]), line)
                before |= {"right": before["right"] and line["right"], "gbs": min(before["gbs"], line["gbs"])}
    return {
        "devices": devices,
        "pairs": list(pairs.values()),
        "errors": [one["error"] for one in found if "error" in one],
        "trying": [stage(one, "trying").get("pair") for one in found if "error" in one],
    }
