"""How several replicas are started: which devices, who waits for whom, and one device alone at first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small import data_set
from together import free_port

from darknetpy import training
from darknetpy.cli.main import main
from darknetpy.cli.parse import parse
from darknetpy.errors import UsageError
from darknetpy.parallel import choose_devices, launch
from darknetpy.training.events import TurnDone
from darknetpy.training.plan import EvaluationPlan


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return data_set(tmp_path)


def train(weights: str | None = None, **options) -> list:
    log: list = []
    options = {"workers": 0, "rehearse": False, "sinks": [log.append], "overrides": ["net.max_batches=9"], **options}
    training.train("obj.data", "tiny.cfg", weights, **options)
    return [event.iteration for event in log if isinstance(event, TurnDone)]


def alone_then_together(place: Path, monkeypatch, *words: str) -> list[tuple[int, int]]:
    """(replicas, iteration) of each turn of `-burn_in_single`, all in this process, without launching any."""
    turns = []

    def launched(arguments, devices, extra=None):
        weights = next((word for word in arguments if word.endswith(".weights")), None)
        until = parse(arguments).get("until")
        stops = {"patience": 1, "evaluate": True, "map_every": 1} if "-patience" in arguments else {}
        turns.extend((len(devices), n) for n in train(weights, until=until, **stops))
        return 0

    monkeypatch.setattr("darknetpy.parallel.start.launch", launched)
    command = ["detector", "train", "obj.data", "tiny.cfg", "-nogpu", "-gpus", "0,1", "-quiet", *words]
    assert main([*command, "-set", "net.max_batches=9"]) == 0
    return turns


ONE, TWO = [(1, n) for n in range(1, 10)], [(2, n) for n in range(1, 10)]


@pytest.mark.parametrize(
    ("words", "expected", "only"),
    [
        (("-burn_in_single", "3"), ONE[:3] + TWO[3:], None),
        (("-burn_in_single", "3", "-until", "7"), ONE[:3] + TWO[3:7], None),
        (("-until=2", "-burn_in_single", "3"), ONE[:2], 2),
        (("-until", "3", "-burn_in_single", "3"), ONE[:3], 3),
        (("-burn_in_single", "auto"), ONE, 9),
        (("-burn_in_single", "9"), ONE, 9),
        (("-burn_in_single", "8", "-patience", "1"), ONE[:2], None),
        (("w5.weights", "-burn_in_single", "3"), TWO[5:], None),
        (("w2.weights", "-burn_in_single", "4"), ONE[2:4] + TWO[4:], None),
    ],
)
def test_alone_first_then_together(place, monkeypatch, capsys, words, expected, only):
    """Weights that are past the burn-in, runs that end in it, and the person's own -until."""
    for n in (2, 5):
        train(until=n)
        Path("backup/tiny_last.weights").rename(f"w{n}.weights")
        Path("backup/tiny_last.state.pt").rename(f"w{n}.state.pt")
    train(until=6)  # another run's _last, which this one must not take for its own
    os.utime("backup/tiny_last.weights", (2e9, 2e9))  # and whose disk has a clock of its own
    assert alone_then_together(place, monkeypatch, *words) == expected
    said = f"training to its end at iteration {only} on cpu only" if only else ", then on all"
    assert said in capsys.readouterr().err


def test_a_burn_in_that_is_no_number_is_said(place, capsys):
    assert main(["detector", "train", "obj.data", "tiny.cfg", "-nogpu", "-gpus", "0,1", "-burn_in_single", "abc"]) == 1
    assert "-burn_in_single takes a number of iterations, or auto ('abc')" in capsys.readouterr().err


@pytest.mark.parametrize("rank", ["0", "1"])
def test_who_does_not_come_is_waited_for_with_a_limit(tmp_path, rank):
    """One of two replicas, as when a machine is missing: where others come to, or where it goes to."""
    program = (
        "from datetime import timedelta; from darknetpy.parallel import replicas; from darknetpy.cli.main import main;"
        "replicas.MEETING, replicas.SOON = timedelta(seconds=3), 1.0;"
        "import sys; sys.exit(main(['detector', 'train', 'obj.data', 'tiny.cfg', '-nogpu', '-quiet']))"
    )
    there = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=data_set(tmp_path), env={**os.environ, **there}, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "waiting for 2 replicas to meet" in done.stderr
    assert "darknetpy: not all replicas came to the meeting point" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("strict", "iterations", "expected"),
    [(False, range(3, 15, 3), [12]), (True, range(3, 15, 3), []), (True, range(2, 11, 2), [10])],
)
def test_strict_evaluates_at_the_end_only_where_it_hits_max_batches(strict, iterations, expected):
    plan = EvaluationPlan(0, 0, 10, 100, 4, strict=strict)
    assert [n for n in iterations if plan.due(n)] == expected


class FakeProperties:
    def __init__(self, number: int):
        self.uuid, self.total_memory = f"{number}{number}-aa", 100


@pytest.fixture
def gpus(monkeypatch):
    """Four GPUs, of which the second is in use."""
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 4)
    monkeypatch.setattr(cuda, "get_device_properties", FakeProperties)
    monkeypatch.setattr(cuda, "mem_get_info", lambda i: (20 if i == 1 else 99, 100))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,1", [0, 1]), ("3,1", [3, 1]), ("0,0", [0, 0]), ("all", [0, 1, 2, 3]), ("idle", [0, 2, 3]),
        ("-1", [0, 2, 3]), ("GPU-22-aa,0", [2, 0]), ("2", [2]),
    ],
)  # fmt: skip
def test_devices_that_gpus_means(gpus, monkeypatch, text, expected):
    devices = choose_devices(text)
    assert devices == [f"cuda:{n}" for n in expected]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(len(devices)))
    monkeypatch.setenv("LOCAL_RANK", str(len(devices) - 1))
    assert launch.own_device(devices) == devices[-1]
    assert launch.devices_differ(devices) == (text != "0,0"), "two on one GPU cannot use NCCL"


@pytest.mark.parametrize(
    ("text", "no_gpu", "sentence"),
    [
        ("0,4", False, "-gpus 4: there are 4 CUDA devices; use 0 to 3"),
        ("0,x", False, "-gpus takes numbers separated by commas"),
        ("GPU-77-zz,0", False, "no such GPU"),
        ("0,x", True, "-gpus with -nogpu counts replicas on the CPU"),
    ],
)
def test_devices_that_are_not_there(gpus, text, no_gpu, sentence):
    with pytest.raises(UsageError, match=sentence):
        choose_devices(text, no_gpu=no_gpu)


@pytest.mark.parametrize(
    ("given", "each"),
    [
        ({"SLURM_NTASKS_PER_NODE": "4"}, "4"),
        ({"SLURM_TASKS_PER_NODE": "2(x3)"}, "2"),
        ({}, None),
        ({"SLURM_NTASKS_PER_NODE": "4", "SLURM_GPUS_PER_TASK": "1"}, None),
    ],
)
def test_slurm_says_how_many_replicas_a_machine_has(monkeypatch, given, each):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "MASTER_ADDR": "node0", **given}
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    assert launch.is_replica()
    assert (os.environ["RANK"], os.environ.get("LOCAL_WORLD_SIZE")) == ("1", each)
    assert launch.devices_differ(["cuda:0"]) == (each is None), "those that see the same GPU cannot use NCCL"
