"""Several replicas of one network: averaging, sharing gradients, and what happens when one of them fails."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small import CFG, data_set
from together import free_port, machines, together

RANDOM = CFG.replace("random=0", "random=1").replace("burn_in=0", "burn_in=2")
STARTED: list[subprocess.Popen] = []
LINE = re.compile(r"^ (\d+): ([\d.]+), ([\d.]+) avg loss, ([\d.]+) rate, .* (\d+) images", re.M)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield data_set(tmp_path, cfg=RANDOM)
    while STARTED:  # a test that failed leaves no training behind
        STARTED.pop().kill()


# --- replicas started by a test, each running a function -------------------------------------------------------------


def train(replicas, iterations: int, weights: str | None = None, *, poison: int | None = None, **options):
    """A run of `tiny.cfg` here; returns its result and the main one's events."""
    import torch

    from darknetpy import training
    from darknetpy.data import resize
    from darknetpy.training import feed
    from darknetpy.training.learner import Learner

    resize.LAST, feed.EVERY = 0, 3
    events: list = []
    options = {"workers": 0, "rehearse": False, "overrides": [f"net.max_batches={iterations}"], **options}
    if poison is not None and replicas.rank == poison:
        original, calls = Learner.accumulate_all, [0]

        def accumulate_all(self, batches):
            calls[0] += 1
            done = original(self, batches)
            if calls[0] == 2:
                done[0].cost = done[0].cost * float("nan")
                done[0].heads[max(done[0].heads)].cost.fill_(float("nan"))
            if calls[0] == 4 and not hasattr(self, "short"):
                self.short = True
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return done

        Learner.accumulate_all = accumulate_all
    result = training.train(
        "obj.data", "tiny.cfg", weights, replicas=replicas, sinks=[lambda e: events.append(str(e))], **options
    )
    return result.iteration, result.history, events, result.stopped


def final(name: str = "final") -> bytes:
    return Path(f"backup/tiny_{name}.weights").read_bytes()


@pytest.mark.parametrize("count", [2, 3])
def test_measuring_does_not_change_the_training(place, count):
    """Evaluations fall between averagings, at sizes other than the cfg's."""
    together(count, train, 10 * count, {})
    plain = final()
    result = together(count, train, 10 * count, {"evaluate": True, "map_every": 3})
    assert final() == plain
    iteration, history, _, _ = result[0]
    assert iteration == 10 * count
    assert len(history) >= 4
    assert all(other[1] == history for other in result), "all replicas know the same results"
    assert struct.unpack("<Q", plain[12:20])[0] == 10 * count * 4


def test_gradients_shared_keep_replicas_together(place):
    """Two replicas with `-ddp` are one with twice the batch, given the same pictures and no batch statistics."""
    cfg = RANDOM.replace("batch_normalize=1\n", "").replace("random=1", "random=0").replace("policy=constant", "")
    Path("tiny.cfg").write_text(cfg)
    assert together(2, own_parameters, {"ddp": True})[0] == pytest.approx(0.0, abs=1e-6)


def own_parameters(replicas) -> float:
    """Largest difference of any parameter from another replica's, and from one replica with the whole batch."""
    import torch

    from darknetpy.network import Network
    from darknetpy.training.learner import Learner

    torch.manual_seed(1)
    network = Network("tiny.cfg", training=True)
    alone = Network(
        "tiny.cfg", training=True, overrides=["net.batch=8", "net.subdivisions=4", "net.learning_rate=.002"]
    )
    alone.load_state_dict(network.state_dict())
    one, mine = Learner(alone), Learner(network, replicas=replicas)
    assert replicas.gradients
    x = torch.rand(4, 2, 3, 64, 64)
    truth = torch.tensor([[[0.5, 0.5, 0.3, 0.3, 1, 0]], [[0.3, 0.4, 0.2, 0.3, 0, 0]]])
    for _ in range(3):
        mine.turn([(x[2 * replicas.rank + k], truth) for k in range(2)])
        one.iteration = mine.iteration - 1  # the schedule counts replicas
        one.turn([(part, truth) for part in x])
    assert mine.iteration == 6
    live = [t.detach().clone() for t in network.parameters()]
    replicas.from_main(live)
    off = [float((a - b).abs().max()) for a, b in zip(live, network.parameters(), strict=True)]
    off += [float((a - b).abs().max()) for a, b in zip(alone.parameters(), network.parameters(), strict=True)]
    return max(off)


def test_waiting_for_a_slow_replica_is_counted(place):
    (first, again), (slow, _) = together(2, waited, {})
    assert first > 0.35 and slow < first - 0.2 and again < 0.2


def waited(replicas) -> tuple[float, float]:
    """Seconds that each replica says it waited where the second one comes half a second late, and none later."""
    import time

    replicas.total(0.0)
    replicas.waited()
    time.sleep(0.5 * replicas.rank)
    replicas.total(1.0)
    return replicas.waited(), replicas.waited()


def test_what_one_replica_meets_is_answered_by_all(place):
    """A NaN on the second replica skips the turn of both; short memory there splits the mini-batches of both."""
    results = together(2, train, 16, {"poison": 1})
    events = "".join(results[0][2])
    assert "[yolo]" in events and "of replica 1" in events and "undone and skipped" in events
    assert "worked off in 2 parts" in events
    assert results[0][0] == results[1][0] == 16
    assert np.isfinite(np.frombuffer(final()[20:], np.float32)).all()


def test_runs_go_on_with_other_numbers_of_replicas(place):
    """1, 2, 4 and 1 replicas: iteration and schedule go on without a jump, amid the burn-in and between steps."""
    plan = RANDOM.replace("burn_in=2", "burn_in=12").replace(
        "policy=constant", "policy=steps\nsteps=18,24\nscales=.5,.1"
    )
    Path("tiny.cfg").write_text(plan)
    weights = None
    for size, iterations in ((1, [1, 2, 3, 4]), (2, [6, 8, 10]), (4, [14, 18, 22]), (1, [23, 24, 25])):
        results = together(size, train, 40, weights, {"until": iterations[-1]})
        assert results[0][0] == iterations[-1] and results[0][3] == "iteration"
        rates = re.findall(r"TurnDone\(iteration=(\d+).*?rate=([-+.e\d]+)", "".join(results[0][2]))
        assert [int(iteration) for iteration, _ in rates] == iterations
        assert [float(rate) for _, rate in rates] == pytest.approx([0.001 * size * planned(it) for it in iterations])
        weights = "backup/tiny_last.weights"


def planned(iteration: int) -> float:
    """Of the cfg's rate, by hand: burn-in until 12, half of it from 18 on, a twentieth from 24 on."""
    if iteration < 12:
        return (iteration / 12) ** 4
    return 1.0 if iteration < 18 else 0.5 if iteration < 24 else 0.05


def test_a_run_of_several_goes_on_bit_for_bit(place):
    together(2, train, 24, {"evaluate": True, "map_every": 4})
    expected = final()
    together(2, train, 24, {"evaluate": True, "map_every": 4, "until": 11})
    together(2, train, 24, "backup/tiny_last.weights", {"evaluate": True, "map_every": 4})
    assert final() == expected


# --- the command -----------------------------------------------------------------------------------------------------


def start(place: Path, *words: str, terminal: int | None = None, **environment: str) -> subprocess.Popen:
    """The command, with its output in a pipe or, where one is given, all in a terminal of its own."""
    command = [sys.executable, "-m", "darknetpy", "detector", "train", "obj.data", "tiny.cfg", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    options = ("-nogpu", "-dont_show", "-no_rehearsal", "-workers", "0", "-quiet")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    if terminal is not None:
        streams = {**dict.fromkeys(("stdin", "stdout", "stderr"), terminal), "start_new_session": True}
        streams["preexec_fn"] = lambda: fcntl.ioctl(0, termios.TIOCSCTTY)
    STARTED.append(subprocess.Popen([*command, *options], cwd=place, env=env, **streams))
    return STARTED[-1]


def children(process: subprocess.Popen) -> list[int]:
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return [int(word) for word in listing.stdout.split()]


def wait_for_iteration(process: subprocess.Popen) -> str:
    seen = ""
    for line in process.stdout:
        seen += line
        if "avg loss" in line:
            return seen
    raise AssertionError(seen)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "words", "end"), [(2, [], 12), (2, ["-ddp"], 6), (6, [], 12)])
def test_the_command_counts_as_darknet(place, count, words, end):
    devices = ",".join(map(str, range(count)))
    output, _ = start(place, "-gpus", devices, *words, "-set", f"net.max_batches={end}", "net.burn_in=0").communicate()
    rows = LINE.findall(output)
    assert [int(row[0]) for row in rows] == list(range(count, end + 1, count)), output
    assert {row[3] for row in rows} == {f"{0.001 * count:.6f}"}
    assert [int(row[4]) for row in rows] == [4 * count * int(row[0]) for row in rows]
    assert output.count("Learning Rate:") == 1
    assert struct.unpack("<Q", final()[12:20])[0] == end * 4
    assert np.isfinite(np.frombuffer(final()[20:], np.float32)).all()


@pytest.mark.slow
def test_two_machines_do_what_one_does(place):
    words = ("-set", "net.max_batches=16", "net.burn_in=0")
    start(place, "-gpus", "0,1,2,3", *words).communicate()
    expected = final()
    rest = ["detector", "train", "obj.data", "tiny.cfg", *words, "-nogpu", "-no_rehearsal", "-workers", "0"]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "2", "--rdzv_backend",
        "static", "--master_addr", "127.0.0.1", "--master_port", free_port(), "--node_rank",
    ]  # fmt: skip
    machines([[*command, str(node), "-m", "darknetpy", *rest] for node in range(2)], [{}, {}])
    assert final() == expected


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_replica_ends_all_within_seconds(place, victim):
    process = start(place, "-gpus", "0,1", "-set", "net.max_batches=100000")
    wait_for_iteration(process)
    pids = sorted(children(process))
    began = time.monotonic()
    os.kill(pids[victim], signal.SIGKILL)
    rest, _ = process.communicate(timeout=30)
    assert time.monotonic() - began < 30
    assert process.returncode == 1
    assert f"replica {victim} was ended by SIGKILL" in rest
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_a_dead_launcher_leaves_no_replica(place):
    process = start(place, "-gpus", "0,1", "-set", "net.max_batches=100000")
    wait_for_iteration(process)
    pids = children(process)
    process.kill()
    end = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_a_signal_to_the_launcher_saves_and_ends(place):
    process = start(place, "-gpus", "0,1", "-set", "net.max_batches=100000")
    wait_for_iteration(process)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    assert "go on with backup/tiny_last.weights" in rest
    assert Path("backup/tiny_last.state.pt").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("hears_signals")
def test_a_closed_terminal_saves_and_ends(place):
    """Launcher and replicas hear of it, these from the launcher, too; and there is nowhere to write to any more."""
    ours, theirs = os.openpty()
    process, seen = start(place, "-gpus", "0,1", "-set", "net.max_batches=100000", terminal=theirs), b""
    os.close(theirs)
    while b"avg loss" not in seen:
        seen += os.read(ours, 4096)
    pids = children(process)
    os.close(ours)
    assert process.wait(timeout=60) == 129
    assert Path("backup/tiny_last.state.pt").exists()
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_replicas_killed_at_random_end_together_and_go_on(tmp_path):
    from tools import soak_replicas, soak_resume

    soak_resume.soak(tmp_path, 2, 60, 5, soak_replicas.WORDS, soak_replicas.kill_one)


@pytest.mark.slow
def test_an_error_is_said_once(place):
    Path("list.txt").write_text("img/missing.png\n")
    output, _ = start(place, "-gpus", "0,1").communicate(timeout=60)
    assert len([line for line in output.splitlines() if line.startswith("darknetpy: ")]) == 1, output


@pytest.mark.slow
def test_one_device_burns_in_alone(place):
    process = start(place, "-gpus", "0,1", "-burn_in_single", "3", "-set", "net.max_batches=9")
    output, _ = process.communicate()
    assert [int(row[0]) for row in LINE.findall(output)] == [1, 2, 3, 5, 7, 9], output
