"""Each failure in training, in an evaluation and in a save, on the main replica and on another one, of three."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from faults import KINDS, Fault, install
from small import CFG, data_set
from together import PRELOADED, together

from darknetpy.errors import DataError
from darknetpy.files import atomic_write
from darknetpy.parallel import launch
from darknetpy.parallel.start import REMEDY, Start
from darknetpy.reporting import csv_log
from darknetpy.runtime import Policy
from darknetpy.training.checkpoint import read_state

COUNT, LAST = 3, 24
"""Replicas, and iterations of a run: eight turns. Weights are averaged after four turns and before saves."""
DROPPING = CFG.replace("[convolutional]\nsize=1", "[dropout]\nprobability=.3\n\n[convolutional]\nsize=1")


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A data set, and a network that remembers random numbers and statistics of its turns."""
    monkeypatch.chdir(tmp_path)
    return data_set(tmp_path, cfg=DROPPING)


def train(replicas, faults=(), iterations: int = LAST, splits=None, without=None, **options):
    """A run with failures, or one that from iteration `splits` on takes mini-batches in halves and leaves out turn
    `without`. Gives the result, what was said of failures and, by iteration, where there was an evaluation."""
    from darknetpy import training
    from darknetpy.reporting.csv_log import CsvLog
    from darknetpy.training.events import Recovered
    from darknetpy.training.learner import Learner
    from darknetpy.training.trainer import Trainer

    train_turn, accumulate_all = Trainer._train, Learner.accumulate_all

    def left_out(self, batches):
        if self.learner.iteration + COUNT == without:
            self.learner.skip()
            return None, 0.0
        return train_turn(self, batches)

    def halved(self, batches):
        if self.iteration + COUNT == splits:
            self.splits = 2
        return accumulate_all(self, batches)

    Trainer._train, Learner.accumulate_all = left_out, halved
    install(list(faults), replicas.rank)
    said: list = []
    sinks = [said.append, CsvLog(".")] if replicas.main else []
    words = [f"net.max_batches={iterations}"]
    result = training.train(
        "obj.data", "tiny.cfg", replicas=replicas, sinks=sinks, workers=0, rehearse=False, overrides=words, **options
    )
    failures = [(e.iteration, e.message) for e in said if isinstance(e, Recovered)]
    return result.iteration, [at for at, _ in result.history], failures


def weights(name: str = "final") -> bytes:
    return Path(f"backup/tiny_{name}.weights").read_bytes()


def notes() -> dict[int, str]:
    return {int(row["iteration"]): row["note"] for row in csv_log.read("results.csv") if row["note"]}


# --- failures that a run survives in its processes -------------------------------------------------------------------


@pytest.mark.parametrize("ddp", [False, True], ids=["averaging", "ddp"])
def test_what_is_tried_again_leaves_no_trace(place, ddp):
    """cuDNN's refusals in a turn, failing evaluations and failing saves: the weights are those of a run without."""
    (place / "obj.data").write_text((place / "obj.data").read_text() + "savelast=3\n")
    options = {"ddp": ddp, "evaluate": True, "map_every": 3, "save_every": 12, "policy": Policy(benchmark=True)}
    clean = together(COUNT, train, {**options, "evaluate": False})
    expected = weights(), weights("12")
    failures = [
        Fault("refused", "turn", 0, 6),
        Fault("engine", "turn", 2, 9),
        Fault("nan", "evaluation", 0, 3),
        Fault("memory", "evaluation", 2, 6),
        Fault("refused", "evaluation", 0, 9),
        Fault("memory", "evaluation", 0, 12, times=2),
        Fault("unsupported", "evaluation", 2, 15, times=2),
        Fault("memory", "snapshot", 2, 18, times=2),
        Fault("memory", "snapshot", 0, 21),
        Fault("nan", "evaluation", 2, 24),
        Fault("full", "save", 0, 12, times=3),
        Fault("memory", "save", 0, 18),
    ]
    results = together(COUNT, train, failures, options)
    assert (weights(), weights("12")) == expected
    assert [result[0] for result in results] == [LAST] * COUNT == [result[0] for result in clean]
    assert [result[1] for result in results] == [[3, 6, 9, 21, 24]] * COUNT, "tried again, or skipped by all"
    skipped = "the evaluation failed and is skipped: replica"
    memory, unsupported = KINDS["memory"][1], KINDS["unsupported"][1]
    full, short = "cannot be written: No space left on device: tried again", f"cannot be written: {memory}: tried again"
    assert results[0][2] == [
        (3, "cuDNN refused a convolution: cuDNN's timing of algorithms is switched off"),
        (6, "cuDNN refused a convolution: cuDNN is switched off"),
        (12, f"{skipped} 0: {memory}"),
        (12, f"backup/tiny_12.weights: {full} after each turn"),
        (12, f"backup/tiny_last.weights: {full} after each turn"),
        (15, f"{skipped} 2: {unsupported}"),
        (18, f"{skipped} 2: {memory}"),
        (18, f"backup/tiny_last.weights: {short} after each turn"),
    ]
    assert f"{skipped} 2: {unsupported}" in notes()[15]
    assert not [path for path in Path("backup").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(("ddp", "short", "other"), [(False, 0, 2), (True, 2, 0)], ids=["averaging", "ddp"])
def test_undone_turns_are_those_of_a_run_with_that_setting(place, ddp, short, other):
    """Short memory on one replica, NaN on another: as if all had been told so before."""
    together(COUNT, train, {"ddp": ddp, "splits": 6, "without": 15})
    expected = weights()
    failures = [Fault("memory", "turn", short, 6), Fault("nan", "turn", other, 15)]
    results = together(COUNT, train, failures, {"ddp": ddp})
    assert weights() == expected
    assert [result[0] for result in results] == [LAST] * COUNT
    (at, divided), (skipped_at, skipped) = results[0][2]
    assert (at, skipped_at) == (3, 15)
    assert divided.endswith("from here on each mini-batch is worked off in 2 parts")
    assert "gradient of layer 0 [convolutional] biases, images img/" in skipped
    assert f" of replica {other} (rate" in skipped and skipped.count("of replica") == 1
    assert "undone and skipped" in skipped and skipped in notes()[18]


@pytest.mark.parametrize("victim", [0, 2])
def test_weights_that_are_no_numbers_are_neither_measured_nor_saved(place, victim):
    """All go back: before an evaluation at 12, before a save at 18; what was saved before is there."""
    (place / "obj.data").write_text((place / "obj.data").read_text() + "savelast=6\n")
    failures = [Fault("nan", "weights", victim, 12), Fault("nan", "weights", victim, 18)]
    results = together(COUNT, train, failures, {"evaluate": True, "map_every": 4, "save_every": 18})
    assert [result[0] for result in results] == [LAST] * COUNT
    back = "the weights are not finite: back to iteration {}, going on with {} times the learning rate"
    assert results[0][2] == [(6, back.format(6, 0.5)), (12, back.format(12, 0.25))]
    for file in Path("backup").glob("*.weights"):
        assert np.isfinite(np.frombuffer(file.read_bytes()[20:], np.float32)).all(), file


def bad_pictures(replicas) -> tuple[list[str], list[str], list[int]]:
    """Unreadable pictures that this replica met and what was said of them; and the evaluations."""
    import logging

    from darknetpy.data import pictures

    met, said, append_line = [], [], pictures.append_line
    pictures.append_line = lambda name, line: (met.append(line), append_line(name, line))
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("darknetpy").addHandler(handler)
    if not replicas.main:
        logging.getLogger("darknetpy").setLevel(logging.ERROR)
    _, evaluated, _ = train(replicas, iterations=6, evaluate=True, map_every=3)
    return met, said, evaluated


def test_bad_pictures_are_named_once_whoever_meets_them(place):
    data_set(place, count=60, cfg=DROPPING)
    Path("valid.txt").write_text("".join(f"img/{i}.png\n" for i in (0, 1, 57, 58, 59)))
    Path("obj.data").write_text(Path("obj.data").read_text().replace("valid=list", "valid=valid"))
    for i in (*range(0, 50, 2), 57, 58, 59):
        Path(f"img/{i}.png").write_bytes(b"no picture")
    results = together(COUNT, bad_pictures, {})
    met = [set(mine) for mine, _, _ in results]
    assert met[1] - met[0] and met[2] - met[0], "each meets some that the main one does not"
    everyones = set().union(*met, (f"img/{i}.png" for i in (0, 57, 58, 59)))
    said = results[0][1]
    assert [sum(f"{path}:" in line or f"{path} " in line for line in said) for path in everyones] == [1] * len(
        everyones
    )
    assert sorted(Path("bad.list").read_text().split()) == sorted(everyones)
    assert f"{len(everyones)} images or label files could not be read: see bad.list" in said
    assert results[0][2] == [3, 6]


def test_a_disk_that_fills_up_within_a_state_is_no_fault_of_the_program(place):
    """torch hides what the system said."""
    import torch

    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(DataError, match=r"x\.pt: cannot be written: File too large"), atomic_write("x.pt") as stream:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            torch.save({"a": torch.zeros(100_000)}, stream)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(place.glob(".x*")) and not Path("x.pt").exists()


# --- failures that end the processes ---------------------------------------------------------------------------------


class Forked:
    """In place of a Popen of `python -m darknetpy ...`: the same command in a fork of a process that has torch."""

    lives: ClassVar[list[list[Fault]]] = []
    """What happens in the first processes, in those that follow them, and so on."""

    def __init__(self, command: list[str], env: dict[str, str]):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        life = int(env[REMEDY])
        faults = self.lives[life] if life < len(self.lives) else []
        assert command[:3] == [sys.executable, "-m", "darknetpy"]
        self.process = context.Process(target=_replica, args=(command[3:], env, faults))
        self.process.start()

    def poll(self) -> int | None:
        return self.process.exitcode

    returncode = property(poll)

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> None:
        self.process.join()

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


def _replica(arguments: list[str], environment: dict[str, str], faults: list[Fault]) -> None:
    import torch

    from darknetpy.cli.main import main

    os.environ.update(environment, **{launch.PARENT: str(os.getppid())})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, sys.stdout.fileno()), os.dup2(log, sys.stderr.fileno())
    install(faults, int(environment[launch.RANK]))
    sys.exit(main(arguments))


@pytest.fixture
def start(place, monkeypatch):
    """Run a training whose processes meet failures; gives its exit status and what they print."""
    (place / "obj.data").write_text((place / "obj.data").read_text() + "savelast=6\n")
    monkeypatch.setattr(launch.subprocess, "Popen", Forked)

    def run(*lives: list[Fault]) -> tuple[int, str]:
        monkeypatch.setattr(Forked, "lives", list(lives))
        Path("log").unlink(missing_ok=True)
        words = ["detector", "train", "obj.data", "tiny.cfg", "-gpus", "0,1,2", "-nogpu", "-dont_show", "-workers", "0"]
        words += ["-no_rehearsal", "-quiet", "-map", "-map_every", "6", "-set", f"net.max_batches={LAST}"]
        status = Start(words, None, "backup", "tiny.cfg", ["cpu"] * COUNT, restarts=3).run()
        return status, Path("log").read_text()

    return run


@pytest.mark.slow
def test_broken_devices_are_started_anew_wherever_they_break(start, capsys):
    """The run ends like an undisturbed one, which says each averaging as Darknet does: those before saves are not."""
    status, log = start()
    expected = weights()
    lines = [line.split(":")[0].strip() for line in log.splitlines() if "Syncing" in line or "avg loss" in line]
    assert lines == ["3", "6", "9", "Syncing... Done!", "12", "15", "18", "21", "Syncing... Done!", "24"]
    assert status == 0
    for file in Path("backup").iterdir():
        file.unlink()
    status, log = start(
        [Fault("illegal", "turn", 2, 15)],
        [Fault("executed", "evaluation", 0, 18)],
        [Fault("internal", "state", 2, 18)],
    )  # fmt: skip
    assert status == 0, log
    assert weights() == expected
    for kind, sentence in (
        ("illegal", "illegal memory access"),
        ("executed", "cuDNN failed"),
        ("internal", "cuDNN fa"),
    ):
        assert f"({KINDS[kind][1]})" in log and sentence in log, log
    said = capsys.readouterr().err
    assert [f"starting again ({n} of 3) from the last checkpoint" in said for n in (1, 2, 3)] == [True] * 3, said
    assert "after a failure of the device: cuDNN is switched off" in log
    assert "skipped" not in log


@pytest.mark.parametrize(("where", "victim"), [("turn", 0), ("turn", 2), ("evaluation", 2), ("state", 2), ("save", 0)])
def test_a_fault_of_the_program_ends_all(start, where, victim):
    """Within seconds, by that replica's message; the checkpoint before it is whole."""
    began = time.monotonic()
    status, log = start([Fault("exception", where, victim, 12)])
    assert time.monotonic() - began < 30
    assert status == 1
    assert log.count("ValueError: a fault of the program") == 1, log
    state = read_state("backup/tiny_last.weights")
    assert [replica["counters"][1] for replica in state["replicas"]] == [6] * COUNT
    assert sorted(path.name for path in Path("backup").iterdir() if not path.name.endswith(".lock")) == [
        "tiny_best.weights", "tiny_last.state.pt", "tiny_last.weights",
    ]  # fmt: skip
