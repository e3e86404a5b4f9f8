"""What is wrong with a machine, from the facts that `doctor` has collected."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from darknetpy.runtime import trouble_of
from darknetpy.toolbox.children import stage
from darknetpy.toolbox.imports import explain_import
from darknetpy.toolbox.show import last_of, loaded, size

FEW_FILES = 1024
SMALL_SHARED = 256 << 20
SMALL_DISK = 2 << 30
CUDA_LIBRARY = re.compile(r"lib(cud|cublas|nccl|nvrtc|nvJit|cufft|curand|cusolver|cusparse)")
DRIVERS = re.compile(r"libcuda\.so|libnvidia")
"""Belongs to the driver, and to no build of torch."""


@dataclass(frozen=True)
class Finding:
    """`level` is `problem` (runs will fail or be wrong) or `note` (slower, or worth knowing)."""

    level: str
    subject: str
    sentence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.sentence}; {self.remedy}"


def findings(facts: dict[str, Any]) -> list[Finding]:
    """All that is wrong or worth knowing, problems first."""
    found = [
        Finding(*row) for judge in (_imports, _torch, _devices, _libraries, _together, _limits) for row in judge(facts)
    ]
    return sorted(dict.fromkeys(found), key=lambda finding: finding.level != "problem")


Rows = Iterator[tuple[str, str, str, str]]


def _imports(facts: dict[str, Any]) -> Rows:
    for name in ("torch", "cv2"):
        found = facts[name]
        if "error" in found and not stage(found, name):
            origin = stage(found, f"finding {name}").get("origin")
            cause, remedy = explain_import(name, found["error"], origin)
            first = found["error"].strip().splitlines()[0][:300]
            yield "problem", name, f"import {name} fails: {cause} ({first})", remedy
        elif "error" in found:
            yield (
                "problem",
                name,
                f"stopped: {found['error']}",
                _remedy(found["error"], "update the driver, or take another build"),
            )
    for name, error in _broken_modules(facts["modules"]):
        cause, remedy = explain_import(name, error, None)
        yield "problem", name, f"import {name} fails: {cause} ({error[:300]})", remedy
    if stage(facts["cv2"], "jpeg").get("works") is False:
        yield "problem", "cv2", "OpenCV cannot write and read a JPEG picture", "install opencv-python again"
    if stage(facts["cv2"], "cv2").get("gui") in ("", "NONE", "NO"):
        yield "note", "cv2", "this OpenCV opens no windows", "use -dont_show and files, or install opencv-python"


def _broken_modules(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and errors; the one that ended the process was being looked for."""
    last = ""
    for line in found["stages"]:
        last = line["stage"].removeprefix("finding ")
        if line["stage"] == "module" and "error" in line:
            yield line["name"], line["error"]
    if "error" in found:
        yield last, found["error"]


def _remedy(text: str, otherwise: str) -> str:
    trouble = trouble_of(RuntimeError(text))
    return trouble.remedy if trouble is not None else otherwise


def _torch(facts: dict[str, Any]) -> Rows:
    torch, cuda, driver = stage(facts["torch"], "torch"), stage(facts["torch"], "cuda"), facts["driver"]
    if stage(facts["torch"], "cpu").get("right") is False:
        yield "problem", "torch", "a convolution on the CPU is wrong", "install torch again"
    if torch and torch["cuda"] is None and driver["gpus"]:
        yield (
            "problem", "torch", f"{torch['version']} is built for the CPU only, and this machine has a GPU",
            "install the build for CUDA (https://pytorch.org/get-started/locally)",
        )  # fmt: skip
    if torch and torch["cuda"] and not driver.get("present") and not cuda.get("count"):
        yield "note", "torch", "built for CUDA, but there is no NVIDIA driver", "fine on a machine without GPU"
    elif cuda.get("error"):
        hidden = facts["system"]["environment"].get("CUDA_VISIBLE_DEVICES")
        hint = f"CUDA_VISIBLE_DEVICES={hidden} hides devices: unset it" if hidden is not None else (
            f"the driver must be new enough for CUDA {torch['cuda']}: update it, or take an older build of torch"
        )  # fmt: skip
        yield "problem", "torch", f"CUDA does not start: {cuda['error']}", hint
    elif cuda and torch["cuda"] and cuda["count"] < len(driver["gpus"]):
        yield (
            "note",
            "torch",
            f"sees {cuda['count']} of {len(driver['gpus'])} GPUs",
            "see CUDA_VISIBLE_DEVICES and MIG",
        )


def _devices(facts: dict[str, Any]) -> Rows:
    torch, built = facts["torch"], stage(facts["torch"], "cuda").get("architectures", [])
    for i in sorted({line["device"] for line in torch["stages"] if line["stage"] == "device"}):
        line, name = last_of(torch, i), f"cuda:{i}"
        if built and not _runs(line["capability"], built):
            major, minor = line["capability"]
            yield (
                "problem", name, f"sm_{major}{minor} of {line['name']} is not among {' '.join(built)} of this torch",
                "take a build for this GPU (newer for new ones, older for old ones)",
            )  # fmt: skip
        elif "error" in line:
            yield "problem", name, f"a convolution fails: {line['error']}", _remedy(line["error"], "update the driver")
        elif line.get("right") is False:
            yield "problem", name, f"a convolution is wrong by {line['off']:.1g}", "the GPU or its driver is faulty"
        if "free" in line and line["free"] < line["total"] / 2:
            yield (
                "note", name, f"{size(line['total'] - line['free'])} of {size(line['total'])} are in use by others",
                "choose a free one with -gpus idle",
            )  # fmt: skip
    for row in facts["driver"]["gpus"]:
        name = f"GPU {row['index']}"
        if row["compute_mode"].startswith(("Exclusive", "Prohibited")):
            yield "note", name, f"compute mode {row['compute_mode']}", "`nvidia-smi -c DEFAULT` lets processes share it"
        if row["ecc.errors.uncorrected.volatile.total"].strip("0").isdigit():
            yield (
                "problem",
                name,
                "uncorrectable memory errors",
                "restart the machine; if they come back, change the GPU",
            )


def _runs(capability: list[int], built: list[str]) -> bool:
    """Whether code for these architectures runs on a device: the same generation and not newer, or PTX to compile."""
    major, minor = capability
    for word in built:
        kind, _, digits = word.partition("_")
        number = int(re.sub(r"\D", "", digits) or 0)
        if (
            kind == "sm"
            and number // 10 == major
            and number % 10 <= minor
            and (digits[-1:] != "a" or number % 10 == minor)
        ):
            return True
        if kind == "compute" and (number // 10, number % 10) <= (major, minor):
            return True
    return False


def _libraries(facts: dict[str, Any]) -> Rows:
    """Libraries of CUDA that are loaded twice, or from where LD_LIBRARY_PATH points."""
    paths, by_name = loaded(facts), {}
    for path in paths:
        if CUDA_LIBRARY.match(os.path.basename(path)) and not DRIVERS.match(os.path.basename(path)):
            by_name.setdefault(os.path.basename(path).split(".so")[0], []).append(path)
    for name, files in by_name.items():
        if len(files) > 1:
            yield (
                "problem", "libraries", f"{name} is loaded twice: {' and '.join(files)}",
                "unset LD_LIBRARY_PATH, and keep one package of it",
            )  # fmt: skip
    folders = [
        os.path.realpath(folder)
        for folder in facts["system"]["environment"].get("LD_LIBRARY_PATH", "").split(":")
        if folder
    ]
    home = os.path.dirname(os.path.dirname(stage(facts["torch"], "torch").get("file") or "")) or None
    for files in by_name.values():
        for path in files:
            if any(os.path.realpath(path).startswith(folder + os.sep) for folder in folders) and not (
                home and path.startswith(home + os.sep)
            ):
                yield (
                    "problem", "libraries", f"LD_LIBRARY_PATH puts {path} before the file that torch was built with",
                    "unset LD_LIBRARY_PATH",
                )  # fmt: skip


def _together(facts: dict[str, Any]) -> Rows:
    found = facts.get("together")
    if not found:
        return
    place = "replicas"
    for pair in found["pairs"]:
        if not pair["right"]:
            devices = " and ".join(found["devices"][i] for i in pair["pair"])
            yield (
                "problem",
                place,
                f"{devices} add up wrongly",
                "set NCCL_P2P_DISABLE=1; mostly IOMMU or ACS is to blame",
            )
    if found["errors"]:
        where = next((f" between {' and '.join(map(str, pair))}" for pair in found["trying"] if pair), "")
        text = re.sub(r"\s+", " ", found["errors"][0])[:300]
        yield (
            "problem", place, f"several of them do not work together{where}: {text}",
            _remedy(found["errors"][0], "set NCCL_DEBUG=INFO and see; NCCL_P2P_DISABLE=1 goes around the links"),
        )  # fmt: skip


def _limits(facts: dict[str, Any]) -> Rows:
    limits, system = facts["limits"], facts["system"]
    if 0 < limits.get("files", FEW_FILES) < FEW_FILES:
        yield "problem", "open files", f"only {limits['files']} are allowed", "`ulimit -n 65536` before the command"
    if limits["shared"] and limits["shared"]["free"] < SMALL_SHARED and len(facts["driver"]["gpus"]) > 1:
        how = (
            "start the container with --shm-size=1g or --ipc=host" if system["container"] else "enlarge it, or empty it"
        )
        yield "problem", "/dev/shm", f"only {size(limits['shared']['free'])} are free, NCCL needs more", how
    if limits["disk"] and limits["disk"]["free"] < SMALL_DISK:
        yield "note", "disk", f"only {size(limits['disk']['free'])} are free here", "checkpoints of a run need some GiB"
    if limits["cpus"] and limits["usable_cpus"] < limits["cpus"] / 2 and limits["usable_cpus"] < 4:
        yield (
            "note", "processors", f"{limits['usable_cpus']} of {limits['cpus']} may be used to make pictures",
            "allow more (--cpus), or keep pictures with -cache ram",
        )  # fmt: skip
