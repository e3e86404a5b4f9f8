"""Failures of devices and libraries: what messages mean, and what a run does about each of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from small import CFG, data_set

from darknetpy import runtime, training
from darknetpy.cli.main import main
from darknetpy.errors import DarknetpyError
from darknetpy.network import Network
from darknetpy.training.events import Recovered

RETRIED = {"memory", "engine"}
MESSAGES = [
    ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total", "memory", "subdivisions"),
    ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "memory", "memory"),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "memory", "memory"),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "memory", "memory"),
    ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "memory", "memory"),
    ("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory", "memory", "memory"),
    ("CUDA error: no kernel image is available for execution on the device", "setup", "doctor"),
    ("cuDNN version incompatibility: PyTorch was compiled against (9, 1, 0)", "setup", "doc"),
    ("The NVIDIA driver on your system is too old (found version 11040)", "setup", "driver"),
    ("CUDA driver version is insufficient for CUDA runtime version", "setup", "driver"),
    ("No CUDA GPUs are available", "setup", "driver"),
    ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "setup", "-gpus idle"),
    ("cuDNN error: CUDNN_STATUS_BAD_PARAM", "engine", "parameters"),
    ("cuDNN error: CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER", "engine", "parameters"),
    ("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear", "engine", "algorithm"),
    ("Unable to find a valid cuDNN algorithm: no valid convolution algorithms", "engine", "algorithm"),
    ("GET was unable to find an engine to execute this computation", "engine", "algorithm"),
    ("FIND was unable to find an engine to execute this computation", "engine", "algorithm"),
    ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "engine", "could not start"),
    ("CUDA error: an illegal memory access was encountered", "sticky", "illegal"),
    ("CUDA error: misaligned address", "sticky", "illegal"),
    ("CUDA error: unspecified launch failure", "sticky", "illegal"),
    ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "sticky", "cuDNN failed"),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "sticky", "cuDNN failed"),
    ("cuDNN error: CUDNN_STATUS_MAPPING_ERROR", "sticky", "cuDNN failed"),
    ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", "sticky", "cuDNN failed"),
    ("CUDA error: device-side assert triggered", "sticky", "impossible"),
    ("CUDA error: uncorrectable ECC error encountered", "sticky", "ill"),
    ("CUDA error: the launch timed out and was terminated", "sticky", "ill"),
    ("NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error\nLast error:\nError while creating "
     "shared memory segment /dev/shm/nccl-ZxQ8dX (size 9637888)", "link", "--shm-size"),
    ("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers "
     "are out of shared memory.", "link", "--shm-size"),
    ("NCCL error: internal error. Bootstrap : no socket interface found", "link", "IFNAME"),
    ("[enforce fail at gloo/tcp/device.cc:84] ifa != nullptr. Unable to find address for: eth9", "link", "IFNA"),
    ("The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, "
     "code: -98, name: EADDRINUSE, message: address already in use", "link", "MASTER_PORT"),
    ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)", "link", "-nccl_debug"),
    ("Timed out waiting 1800000ms for send operation to complete", "link", "-nccl_debug"),
    ("Timed out after 61 seconds waiting for clients. 1/2 clients joined.", "link", "MASTER_ADDR"),
    ("The client socket has timed out after 60000ms while trying to connect to (10.0.0.7, 29500)", "link", "not all"),
    ("Connection closed by peer [127.0.0.1]:31111", "link", "IFNAME"),
    ("NCCL error in: NCCLUtils.hpp:317, remote process exited or there was a network "
     "error\nncclRemoteError", "link", "IFNAME"),
    ("NCCL error: ncclInvalidUsage: Duplicate GPU detected : rank 0 and 1 on CUDA device 1000", "link", "once"),
    ("NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error (run with NCCL_DEBUG=INFO for "
     "details)\nncclSystemError: System call or external library call failed", "link", "-nccl_debug"),
    ("NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA"
     " function failed.", "link", "NCCL_P2P_DISABLE"),
    ("NCCL error in: ProcessGroupNCCL.cpp:1970, internal error\nncclInternalError", "link", "P2P"),
    ("CUDA error: operation failed due to a previous error during capture", "sticky", "reported an error"),
]  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return data_set(tmp_path, cfg=CFG)


@pytest.fixture
def engines(monkeypatch):
    """cuDNN's switches as they were, afterwards."""
    cudnn = torch.backends.cudnn
    before = cudnn.enabled, cudnn.benchmark
    yield cudnn
    cudnn.enabled, cudnn.benchmark = before


def failing(monkeypatch, message: str, calls: set[int], kind: type = RuntimeError) -> None:
    """Make passes with these numbers (from 1) fail."""
    original, count = Network.run, [0]

    def run(self, *args, **kwargs):
        count[0] += 1
        if count[0] in calls:
            raise kind(message)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Network, "run", run)


def run(iterations: int = 2, **options):
    said: list = []
    options = {"workers": 0, "rehearse": False, "sinks": [said.append], **options}
    training.train("obj.data", "tiny.cfg", overrides=[f"net.max_batches={iterations}"], **options)
    return [event.message for event in said if isinstance(event, Recovered)]


def test_each_row_is_met_by_a_message():
    met = {id(runtime.trouble_of(RuntimeError(message))) for message, _, _ in MESSAGES}
    assert [row.pattern for row in runtime.TROUBLES if id(row) not in met] == []


def test_other_errors_are_the_programs_own():
    assert runtime.trouble_of(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
    assert runtime.trouble_of(ValueError("CUDA out of memory")) is None
    assert runtime.trouble_of(MemoryError()).kind == "memory"


@pytest.mark.parametrize(("message", "kind", "word"), MESSAGES, ids=lambda value: str(value)[:50])
def test_every_row_by_fault_injection(place, monkeypatch, capsys, engines, message, kind, word):
    """What can be tried again is, with the same result; all else ends with one sentence that says what to change."""
    trouble = runtime.trouble_of(RuntimeError(message))
    assert trouble.kind == kind
    assert word in f"{trouble.sentence}; {trouble.remedy}"
    failing(monkeypatch, message, {2})
    if kind in RETRIED:
        assert len(run()) == 1
        assert Path("backup/tiny_final.weights").exists()
        return
    monkeypatch.setenv("DARKNETPY_REMEDY", "3")  # the last attempt
    status = main(["detector", "train", "obj.data", "tiny.cfg", "-nogpu", "-workers", "0", "-no_rehearsal", "-quiet"])
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("darknetpy: ")]
    assert status == 1
    assert said[0] == f"darknetpy: {trouble.sentence} ({message.splitlines()[0][:160]}); {trouble.remedy}"
    assert len(said) == (2 if kind == "sticky" else 1)


def test_measures_come_in_order_and_end(place, monkeypatch, engines):
    """cuDNN's timing off, cuDNN off, then the end in one sentence."""
    engines.enabled = True
    failing(monkeypatch, "cuDNN error: CUDNN_STATUS_BAD_PARAM", {2, 3, 4})
    with pytest.raises(DarknetpyError, match="cuDNN refused a convolution: no setting is left to try"):
        run(policy=runtime.Policy(benchmark=True))
    assert not engines.benchmark and not engines.enabled


def test_memory_that_never_suffices_ends_in_one_sentence(place, monkeypatch):
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    monkeypatch.setattr("darknetpy.training.remedies.others_on", lambda device: f"; also on this GPU: {uuid}")
    failing(monkeypatch, "CUDA out of memory. Tried to allocate 2.00 GiB", set(range(2, 100)))
    with pytest.raises(DarknetpyError, match=f"not enough; also on this GPU: {uuid}: no setting .*subdivisions="):
        run()


# --- who else is on a GPU --------------------------------------------------------------------------------------------


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A driver's tool that prints what a test wants."""

    def answer(text: str, status: int = 0) -> None:
        tool = tmp_path / "bin" / "nvidia-smi"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {status}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")

    return answer


def test_processes_of_others_are_named(smi, monkeypatch):
    me = os.getpid()
    smi(f"GPU-aaaa, {os.getppid()}, 10240\nGPU-aaaa, {me}, 300\nGPU-bbbb, 1, 7\nGPU-aaaa, 999999999, [N/A]\nnonsense")
    found = runtime.gpu_processes()
    assert [(p.gpu, p.pid, p.mib) for p in found][1:] == [
        ("GPU-aaaa", me, 300), ("GPU-bbbb", 1, 7), ("GPU-aaaa", 999999999, None),
    ]  # fmt: skip
    properties = type("Properties", (), {"uuid": "aaaa"})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    user = found[0].user
    assert runtime.others_on("cuda:0") == (
        f"; also on this GPU: process {os.getppid()} of {user} (10240 MiB), process 999999999 of somebody"
    )
    assert runtime.others_on("cpu") == ""


def test_nothing_is_known_without_a_driver(smi, monkeypatch):
    smi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", 9)
    assert runtime.gpu_processes() == []
    monkeypatch.setenv("PATH", "/nowhere")
    assert runtime.gpu_processes() == []
    assert runtime.others_on("cuda:0") == ""


# --- failures that only a new process mends --------------------------------------------------------------------------

ILLEGAL = "CUDA error: an illegal memory access was encountered"
WRAPPER = '''
"""Lets passes of the network fail, as often as a file says."""
import importlib.abc, importlib.machinery, os, sys
from pathlib import Path

LEFT, AFTER, RANK = Path(os.environ["FAILURES"]), int(os.environ["AFTER"]), os.environ["VICTIM"]


class Wrapping(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "darknetpy.network":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), wrap(module.Network))
        return spec


def wrap(network):
    original, calls = network.run, [0]

    def run(self, *args, **kwargs):
        calls[0] += 1
        fails = calls[0] > AFTER and os.environ.get("RANK", "0") == RANK
        left = int(LEFT.read_text()) if fails else 0  # others might see it half written
        if left:
            LEFT.write_text(str(left - 1))
            raise {"broken": RuntimeError, "wrong": ValueError}[os.environ["KIND"]](os.environ["MESSAGE"])
        return original(self, *args, **kwargs)

    network.run = run


sys.meta_path.insert(0, Wrapping())
'''


def command(place: Path, failures: int, *words: str, victim: int = 0, kind: str = "broken") -> tuple[int, str]:
    """Status and output of a training on the CPU whose passes fail so often, each time after some turns: the device is
    `broken`, or the program `wrong`."""
    folder = place / "wrapper"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(textwrap.dedent(WRAPPER))
    (place / "failures").write_text(str(failures))
    path = os.pathsep.join([str(folder), str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "FAILURES": str(place / "failures"), "AFTER": "8",
        "VICTIM": str(victim), "KIND": kind, "MESSAGE": ILLEGAL if kind == "broken" else "a fault of the program",
    }  # fmt: skip
    flags = ("-nogpu", "-dont_show", "-no_rehearsal", "-workers", "0", "-quiet", "-set", "net.max_batches=24")
    line = [sys.executable, "-m", "darknetpy", "detector", "train", "obj.data", "tiny.cfg", *words, *flags]
    done = subprocess.run(line, cwd=place, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("words", "failures"), [((), 1), (("-gpus", "0,1"), 2)], ids=["one", "two"])
def test_a_new_process_goes_on_where_a_broken_one_was(place, words, failures):
    """Whichever replica breaks, all begin again from the last checkpoint, and the run ends like an undisturbed one."""
    (place / "obj.data").write_text((place / "obj.data").read_text() + "savelast=2\n")
    assert command(place, 0, *words)[0] == 0
    expected = (place / "backup/tiny_final.weights").read_bytes()
    for file in (place / "backup").iterdir():
        file.unlink()
    status, output = command(place, failures, *words, victim=len(words) // 2)
    assert status == 0, output
    assert output.count("illegal memory access was encountered") == failures, output
    assert re.findall(r"starting again \((\d) of 3\) from the last checkpoint", output) == ["1", "2"][:failures], output
    assert ("cuDNN is switched off" in output) == (failures == 2), "the second restart takes the next measure"
    assert (place / "backup/tiny_final.weights").read_bytes() == expected


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_fault_of_the_program_ends_all_processes(place, victim):
    """Within seconds, by the victim's traceback and nobody else's word; nothing is started again."""
    status, output = command(place, 9, "-gpus", "0,1", victim=victim, kind="wrong")
    assert time.time() - (place / "failures").stat().st_mtime < 30
    assert status == 1
    assert output.count("Traceback") == output.count("ValueError: a fault of the program") == 1, output
    assert "darknetpy: " not in output and "starting again" not in output
    assert int((place / "failures").read_text()) == 8


@pytest.mark.slow
def test_restarts_are_counted_and_end(place):
    """Older checkpoints are not gone on from; the last word is a sentence, the exit status 1."""
    (place / "backup").mkdir()
    (place / "backup/tiny_last.weights").write_bytes(b"of another run")
    os.utime(place / "backup/tiny_last.weights", (1e9, 1e9))
    (place / "obj.data").write_text((place / "obj.data").read_text() + "savelast=1000\n")
    status, output = command(place, 99, "-gpus", "0,1", "-max_restarts", "1", victim=1)
    assert status == 1, output
    assert output.count("starting again (1 of 1) ") == 1, output
    assert "the device failed 2 times and the run ends; `darknetpy doctor` examines it" in output.splitlines()[-1]
    assert int((place / "failures").read_text()) == 97
