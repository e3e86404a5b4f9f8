"""`doctor`: it runs where nothing else does, and says what is wrong."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from darknetpy.toolbox import doctor
from darknetpy.toolbox.children import Child, stage
from darknetpy.toolbox.imports import CAUSES, explain_import
from darknetpy.toolbox.judge import findings
from darknetpy.toolbox.show import sections

REPOSITORY = Path(__file__).parent.parent


def run(*words: str, first: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
    """`darknetpy doctor`, with modules of a folder before all others."""
    path = os.pathsep.join(str(part) for part in (first, REPOSITORY) if part)
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment, "PYTHONPATH": path}
    command = [sys.executable, "-m", "darknetpy", "doctor", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


def module(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)


def test_nothing_heavy_is_needed():
    code = (
        "import sys; import darknetpy.cli.doctor; "
        "sys.exit(bool({'torch', 'numpy', 'cv2', 'tqdm', 'tabulate'} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}).returncode == 0
    )


def test_broken_imports_are_explained(tmp_path):
    """The rest is still examined; the exit status tells."""
    module(tmp_path, "torch", "raise ImportError('libcudart.so.12: cannot open shared object file: No such file')")
    module(tmp_path, "cv2", "raise ImportError('libGL.so.1: cannot open shared object file: No such file')")
    module(tmp_path, "tqdm", "import os; os.abort()")
    done = run(first=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    verdict = done.stdout[done.stdout.index("3 problems") :]
    assert "import torch fails: this build needs libcudart.so.12 of CUDA" in verdict
    assert "import cv2 fails: it needs libGL.so.1 of a desktop" in verdict
    assert "pip install opencv-python-headless" in verdict
    assert "killed by SIGABRT, after stage `finding tqdm`" in verdict
    assert "processors" in done.stdout


@pytest.mark.slow
def test_this_machine_is_examined(tmp_path):
    """All facts are there, as a document and as a table; a file takes the document too."""
    path = tmp_path / "report.json"
    done = run("--json")
    report = json.loads(done.stdout)
    assert done.returncode == int(not report["healthy"]), done.stdout
    facts = report["facts"]
    import torch

    assert stage(facts["torch"], "torch")["version"] == torch.__version__
    assert stage(facts["torch"], "cpu")["right"]
    assert any("libtorch" in file for file in stage(facts["torch"], "libraries")["libraries"])
    assert stage(facts["cv2"], "jpeg")["works"]
    assert all(pair["right"] for pair in facts["together"]["pairs"])
    done = run("-json", str(path), "-nogpu")
    assert json.loads(path.read_text())["facts"]["limits"].keys() == facts["limits"].keys()
    for title in ("This machine", "Limits", "PyTorch", "OpenCV", "Libraries that are really", "Replicas together"):
        assert f"\n{title}" in done.stdout
    assert done.returncode == 0 or "problem" in done.stdout


# --- processes that crash or hang ------------------------------------------------------------------------------------


def test_a_probe_that_hangs_or_crashes_is_ended_and_said(tmp_path, monkeypatch):
    module(tmp_path, "sleepy", "import time; time.sleep(60)")
    module(tmp_path, "suicidal", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.syspath_prepend(tmp_path)
    sleepy, suicidal = Child("modules", "numpy", "sleepy"), Child("modules", "suicidal")
    assert suicidal.read(60)["error"].startswith("killed by SIGILL")
    found = sleepy.read(8)
    assert "no answer within 8 s" in found["error"]
    assert not found["stages"] or found["stages"][-1]["stage"] in ("finding sleepy", "finding numpy", "module")


# --- judgements ------------------------------------------------------------------------------------------------------

MESSAGES = [
    ("torch", "ModuleNotFoundError: No module named 'torch'", "is not installed"),
    ("torch", "ImportError: libcudnn.so.9: cannot open shared object file", "libcudnn.so.9 of CUDA"),
    ("cv2", "ImportError: libgthread-2.0.so.0: cannot open shared object file", "libgthread-2.0.so.0 of a desktop"),
    ("torch", "ImportError: libtorch_cpu.so: wrong ELF class: ELFCLASS32", "another kind of processor"),
    ("cv2", "ImportError: /lib/libc.so.6: version `GLIBC_2.34' not found", "newer system"),
    ("torch", "ImportError: libcudnn_ops.so.9: undefined symbol: cublasLtGet", "mixed"),
    ("cv2", "AttributeError: _ARRAY_API not found", "another NumPy"),
    ("torch", "OSError: libmpi.so.40: cannot open shared object file", "libmpi.so.40, which is not here"),
    ("torch", "killed by SIGILL, after stage `start`", "instructions"),
    ("torch", "killed by SIGSEGV, after stage `start`", "crashes"),
    ("torch", "no answer within 120 s, after stage `start`", "hangs"),
    ("torch", "AttributeError: partially initialized module 'torch' has no attribute", "in the way (/here/torch.py)"),
]


@pytest.mark.parametrize(("name", "error", "words"), MESSAGES)
def test_failures_of_imports_are_explained(name, error, words):
    cause, remedy = explain_import(name, error, "/here/torch.py")
    assert words in cause
    assert "{" not in cause + remedy
    assert len(MESSAGES) == len(CAUSES), "a cause without a test"


def machine(**changes) -> dict:
    """Facts of a sound machine with two GPUs; `changes` by dotted name with `__` for the dot."""
    device = {"stage": "device", "name": "NVIDIA A100", "capability": [8, 0], "uuid": "a", "total": 80 << 30,
              "free": 79 << 30, "right": True, "off": 1e-6, "ms": 1.0}  # fmt: skip
    gpu = {"index": "0", "name": "NVIDIA A100", "uuid": "GPU-a", "driver_version": "570.1", "memory.total": "81920",
           "memory.used": "4", "compute_mode": "Default", "pcie.link.gen.current": "4", "pcie.link.width.current": "16",
           "mig.mode.current": "Disabled", "ecc.errors.uncorrected.volatile.total": "0"}  # fmt: skip
    home = "/env/site-packages"
    facts = {
        "system": {"darknetpy": "1", "python": "3.11", "executable": "python", "os": "Linux", "container": True,
                   "environment": {}},
        "limits": {"cpus": 16, "usable_cpus": 16, "files": 4096, "shared": {"free": 8 << 30, "total": 8 << 30},
                   "disk": {"free": 99 << 30, "total": 99 << 30}, "memory": {"free": 9 << 30, "total": 9 << 30},
                   "memory_limit": None},
        "driver": {"gpus": [gpu, {**gpu, "index": "1"}], "processes": [], "present": True,
                   "links": [["X", "NV12"], ["NV12", "X"]]},
        "torch": {"stages": [
            {"stage": "torch", "version": "2.9.0", "file": f"{home}/torch/__init__.py", "cuda": "12.8",
             "cudnn": "9.10.2", "nccl": "2.27.5"},
            {"stage": "cpu", "right": True, "off": 1e-6, "ms": 9.0},
            {"stage": "cuda", "count": 2, "architectures": ["sm_75", "sm_80", "sm_90"]},
            {**device, "device": 0}, {**device, "device": 1},
            {"stage": "libraries", "libraries": [f"{home}/nvidia/cudnn/lib/libcudnn.so.9"]},
            {"stage": "end"},
        ]},
        "cv2": {"stages": [{"stage": "cv2", "version": "4.11", "file": "cv2.so", "gui": "QT5", "ffmpeg": "YES",
                            "libraries": []}, {"stage": "jpeg", "works": True}, {"stage": "end"}]},
        "modules": {"stages": [{"stage": "module", "name": "numpy", "version": "2"}, {"stage": "end"}]},
        "together": {"devices": ["cuda:0", "cuda:1"], "pairs": [{"pair": [0, 1], "right": True, "gbs": 200.0}],
                     "errors": [], "trying": []},
    }  # fmt: skip
    for name, value in changes.items():
        *path, last = name.split("__")
        place = facts
        for part in path:
            stages = place.get("stages") if isinstance(place, dict) else None
            place = place[int(part)] if isinstance(place, list) else stage(place, part) if stages else place[part]
        place[last] = value
    return facts


def test_a_sound_machine_has_no_problem():
    assert findings(machine()) == []


PROBLEMS = [
    ({"torch__torch__cuda": None, "torch__cuda__count": 0}, "built for the CPU only, and this machine has a GPU"),
    ({"torch__cuda__error": "The NVIDIA driver on your system is too old"}, "driver must be new enough for CUDA 12.8"),
    ({"torch__cuda__error": "No CUDA GPUs are available", "system__environment": {"CUDA_VISIBLE_DEVICES": "7"}},
     "CUDA_VISIBLE_DEVICES=7 hides devices"),
    ({"torch__device__capability": [12, 0]}, "cuda:1: sm_120 of NVIDIA A100 is not among sm_75 sm_80 sm_90"),
    ({"torch__device__capability": [7, 0]}, "sm_70 of NVIDIA A100 is not among"),
    ({"torch__device__right": False, "torch__device__off": 0.5}, "cuda:1: a convolution is wrong by 0.5"),
    ({"torch__device__error": "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"}, "lower batch="),
    ({"torch__cpu__right": False}, "a convolution on the CPU is wrong"),
    ({"torch__error": "killed by SIGSEGV, after stage `device`"}, "stopped: killed by SIGSEGV"),
    ({"torch__libraries__libraries": ["/env/site-packages/nvidia/lib/libcudnn.so.9", "/usr/lib/libcudnn.so.9"]},
     "libcudnn is loaded twice: /env/site-packages/nvidia/lib/libcudnn.so.9 and /usr/lib/libcudnn.so.9"),
    ({"torch__libraries__libraries": ["/usr/local/cuda/lib64/libcublas.so.12"],
      "system__environment": {"LD_LIBRARY_PATH": "/opt:/usr/local/cuda/lib64"}},
     "LD_LIBRARY_PATH puts /usr/local/cuda/lib64/libcublas.so.12 before the file"),
    ({"driver__gpus__0__ecc.errors.uncorrected.volatile.total": "3"}, "uncorrectable memory errors"),
    ({"together__pairs": [{"pair": [0, 1], "right": False, "gbs": 1.0}]}, "cuda:0 and cuda:1 add up wrongly"),
    ({"together__errors": ["no answer within 120 s, after stage `trying`"], "together__trying": [[0, 1]]},
     "do not work together between 0 and 1"),
    ({"together__errors": ["DistBackendError: ncclSystemError\nError while creating shared memory segment /dev/shm/x"],
      "together__trying": [None]}, "--shm-size"),
    ({"limits__files": 256}, "only 256 are allowed; `ulimit -n 65536`"),
    ({"limits__shared": {"free": 64 << 20, "total": 64 << 20}}, "only 64 MiB are free, NCCL needs more; start"),
    ({"cv2__jpeg__works": False}, "cannot write and read a JPEG"),
]  # fmt: skip
NOTES = [
    ({"torch__device__free": 8 << 30}, "72.0 GiB of 80.0 GiB are in use by others; choose a free one with -gpus idle"),
    ({"torch__cuda__count": 1}, "sees 1 of 2 GPUs"),
    ({"driver__gpus": [], "driver__present": False, "torch__cuda__count": 0}, "there is no NVIDIA driver"),
    ({"driver__gpus__0__compute_mode": "Exclusive_Process"}, "compute mode Exclusive_Process"),
    ({"limits__usable_cpus": 2}, "2 of 16 may be used"),
    ({"limits__disk": {"free": 1 << 30, "total": 99 << 30}}, "only 1.0 GiB are free here"),
    ({"cv2__cv2__gui": "NONE"}, "opens no windows"),
]


@pytest.mark.parametrize(
    ("level", "changes", "words"),
    [("problem", *row) for row in PROBLEMS] + [("note", *row) for row in NOTES],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_found(level, changes, words):
    facts = machine(**copy.deepcopy(changes))
    found = findings(facts)
    assert [finding.level for finding in found] == [level]
    assert words in str(found[0])
    assert doctor.Report(facts, found).healthy == (level == "note")


def test_newer_devices_of_a_generation_and_ptx_run():
    for capability, built in (([8, 6], ["sm_80"]), ([12, 0], ["sm_80", "compute_90"]), ([9, 0], ["sm_90a"])):
        facts = machine(torch__device__capability=capability, torch__cuda__architectures=["sm_80", *built])
        assert findings(facts) == []
    facts = machine(torch__device__capability=[9, 1], torch__cuda__architectures=["sm_80", "sm_90a"])
    assert [finding.level for finding in findings(facts)] == ["problem"]


def test_old_drivers_tell_less(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ncase $1 in\n*ecc*) echo 'Field \"ecc\" is not a valid field to query.'; exit 2;;\n"
        "--query-gpu*) echo '0, Tesla K80, GPU-a, 390.1, 11441, 4';;\nesac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    driver = doctor._driver()
    text = str(next(sections("driver", {"driver": driver})))
    assert "GPU 0         Tesla K80, 4 of 11441 MiB in use, PCIe ? x?, GPU-a" in text
    assert findings(machine(driver=driver, torch__cuda__count=1)) == []


def test_gpus_and_who_holds_them_are_shown(tmp_path, monkeypatch):
    """By the driver's own tool, without torch."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ncase $1 in\n"
        "--query-gpu*) echo '0, NVIDIA A100, GPU-a, 570.1, 81920, 4, Default, 4, 16, Disabled, 0'\n"
        "echo '1, NVIDIA A100, GPU-b, 570.1, 81920, 9, Default, 4, 16, Disabled, 0';;\n"
        "--query-compute*) echo 'GPU-b, 1, 512';;\n"
        "topo) printf '\\tGPU0\\tGPU1\\tCPU\\nGPU0\\t X \\tNV12\\t0-9\\nGPU1\\tNV12\\t X \\t0-9\\n';;\nesac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    facts = {"driver": doctor._driver()}
    assert facts["driver"]["links"] == [["X", "NV12"], ["NV12", "X"]]
    text = str(next(sections("driver", facts)))
    assert "driver        570.1" in text
    assert (
        "GPU 1         NVIDIA A100, 9 of 81920 MiB in use, PCIe 4 x16, GPU-b, held by process 1 of root (512 MiB)"
        in text
    )
    assert "links of 0    to 1: NV12" in text
