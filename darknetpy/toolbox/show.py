"""The doctor's facts as a table that is pleasant to read."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from darknetpy.toolbox.children import stage

WIDTH = 118
LEAST = 12
"""Letters of the first column, at least."""


@dataclass(frozen=True)
class Section:
    """A part of the table: a title and rows of name and value."""

    title: str
    rows: list[tuple[str, str]]

    def __str__(self) -> str:
        lines = [f"\n{self.title}"]
        column = max([LEAST, *(len(name) for name, _ in self.rows)]) + 2
        for name, value in self.rows:
            first, *rest = textwrap.wrap(value, WIDTH - column - 2, break_on_hyphens=False) or [""]
            lines.append(f"  {name:<{column}}{first}")
            lines += [" " * (column + 2) + line for line in rest]
        return "\n".join(lines)


def size(count: float | None) -> str:
    """Bytes for people."""
    if count is None:
        return "unknown"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def sections(subject: str, facts: dict[str, Any]) -> Iterator[Section]:
    """The parts of the table that become known with a subject."""
    make = {"system": _system, "limits": _limits, "driver": _driver, "torch": _torch, "cv2": _cv2}.get(subject)
    if subject == "modules":
        yield Section("Other modules", _modules(facts[subject]))
        yield Section("Libraries that are really loaded", _libraries(facts))
    elif subject == "together":
        yield Section("Replicas together", _together(facts[subject]))
    else:
        yield Section(*make(facts[subject]))


def _system(f: dict) -> tuple[str, list[tuple[str, str]]]:
    where = ", in a container" if f["container"] else ""
    return "This machine", [
        ("darknetpy", f["darknetpy"]),
        ("Python", f"{f['python']} ({f['executable']})"),
        ("system", f"{f['os']}{where}"),
        *((name, value) for name, value in f["environment"].items()),
    ]


def _limits(f: dict) -> tuple[str, list[tuple[str, str]]]:
    def room(found: dict | None) -> str:
        return f"{size(found['free'])} free of {size(found['total'])}" if found else "unknown"

    fewer = "" if f["cpus"] == f["usable_cpus"] else f" of {f['cpus']}, by affinity and cgroup"
    memory = room(f["memory"]) + (f", this process may use {size(f['memory_limit'])}" if f["memory_limit"] else "")
    return "Limits", [
        ("processors", f"{f['usable_cpus']}{fewer}"),
        ("memory", memory),
        ("/dev/shm", room(f["shared"])),
        ("disk here", room(f["disk"])),
        ("open files", str(f.get("files", "unknown"))),
    ]


def _driver(f: dict) -> tuple[str, list[tuple[str, str]]]:
    if not f["gpus"]:
        return "GPUs", [("driver", "no NVIDIA driver answers (nvidia-smi)")]
    rows = [("driver", f["gpus"][0]["driver_version"])]
    for row in f["gpus"]:
        held = [p for p in f["processes"] if row["uuid"] and row["uuid"] in p["gpu"]]
        names = ", ".join(f"{p['pid']} of {p['user']}" + (f" ({p['mib']} MiB)" if p["mib"] else "") for p in held)
        rows.append((
            f"GPU {row['index']}",
            f"{row['name']}, {row['memory.used']} of {row['memory.total']} MiB in use, PCIe "
            f"{row['pcie.link.gen.current']} x{row['pcie.link.width.current']}, {row['uuid']}"
            + (f", held by process {names}" if names else ""),
        ))  # fmt: skip
    for i, row in enumerate(f["links"]):
        if len(row) > 1:
            rows.append((f"links of {i}", ", ".join(f"to {j}: {link}" for j, link in enumerate(row) if j != i)))
    return "GPUs", rows


def _failed(f: dict) -> list[tuple[str, str]]:
    return [("failed", f["error"])] if "error" in f else []


def _torch(f: dict) -> tuple[str, list[tuple[str, str]]]:
    rows, torch, cpu, cuda = [], stage(f, "torch"), stage(f, "cpu"), stage(f, "cuda")
    if torch:
        kind = f"CUDA {torch['cuda']}, cuDNN {torch['cudnn']}, NCCL {torch['nccl']}" if torch["cuda"] else "CPU only"
        rows += [("version", f"{torch['version']}, built for {kind}"), ("from", torch["file"])]
    if cuda.get("architectures"):
        rows.append(("built for", " ".join(cuda["architectures"])))
    if cpu:
        rows.append(("CPU", _convolution(cpu)))
    for line in f["stages"]:
        if line["stage"] == "device" and line is last_of(f, line["device"]):
            major, minor = line["capability"]
            room = f", {size(line['free'])} free of {size(line['total'])}" if "free" in line else ""
            rows.append((f"cuda:{line['device']}", f"{line['name']}, sm_{major}{minor}{room}; {_convolution(line)}"))
    return "PyTorch", rows + _failed(f)


def last_of(f: dict, device: int) -> dict[str, Any]:
    """What was found last about a device."""
    return [line for line in f["stages"] if line["stage"] == "device" and line["device"] == device][-1]


def _convolution(line: dict) -> str:
    if "error" in line:
        return f"convolution failed: {line['error']}"
    if "right" not in line:
        return "convolution not finished"
    return f"convolution {'right' if line['right'] else 'WRONG'}, {line['ms']:.1f} ms there and back"


def _cv2(f: dict) -> tuple[str, list[tuple[str, str]]]:
    cv2, jpeg, rows = stage(f, "cv2"), stage(f, "jpeg"), []
    if cv2:
        gui = "no windows" if cv2["gui"] in ("", "NONE", "NO") else f"windows by {cv2['gui']}"
        rows = [("version", f"{cv2['version']}, {gui}, FFMPEG: {cv2['ffmpeg'] or 'NO'}"), ("from", cv2["file"])]
    if jpeg:
        rows.append(("JPEG", "written and read" if jpeg["works"] else "WRONG"))
    return "OpenCV", rows + _failed(f)


def _modules(f: dict) -> list[tuple[str, str]]:
    lines = [line for line in f["stages"] if line["stage"] == "module"]
    return [(line["name"], line["error"] if "error" in line else line["version"]) for line in lines] + _failed(f)


def _libraries(facts: dict[str, Any]) -> list[tuple[str, str]]:
    folders: dict[str, list[str]] = {}
    for path in loaded(facts):
        folders.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
    return [("in", f"{folder}: {' '.join(names)}") for folder, names in sorted(folders.items())]


def loaded(facts: dict[str, Any]) -> list[str]:
    """Files of all libraries that torch and OpenCV have loaded."""
    torch = stage(facts["torch"], "libraries").get("libraries", [])
    return sorted({*torch, *stage(facts.get("cv2", {"stages": []}), "cv2").get("libraries", [])})


def _together(f: dict) -> list[tuple[str, str]]:
    how = "NCCL" if f["devices"][0] != "cpu" else "gloo, on the CPU"
    rows = [("over", f"{how}: {len(f['devices'])} replicas")]
    for pair in f["pairs"]:
        i, j = pair["pair"]
        rows.append((f"{i} and {j}", f"{'right' if pair['right'] else 'WRONG'}, {pair['gbs']:.2f} GB/s"))
    return rows + [("failed", re.sub(r"\s+", " ", text)) for text in f["errors"][:1]]
