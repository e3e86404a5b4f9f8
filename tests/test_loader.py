"""Batches are the same however they are made, and nothing that a loader meets ends a training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

from darknetpy.data import loader as loader_module
from darknetpy.data import notes
from darknetpy.data.buffers import Buffers
from darknetpy.data.cache import SharedCache
from darknetpy.data.detection import DetectionData, Request
from darknetpy.data.draws import MIXUP, MOSAIC, NONE, Augmentation
from darknetpy.data.loader import Loader
from darknetpy.errors import DataError

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs fork and /proc")


@pytest.fixture
def paths(tmp_path, monkeypatch):
    """Nine pictures of differing size with two boxes each, in an empty working directory."""
    monkeypatch.setattr(notes, "_told", set())
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = []
    for i in range(9):
        shape = (int(rng.integers(20, 60)), int(rng.integers(20, 60)), 3)
        cv2.imwrite(f"{i}.png", rng.integers(0, 256, shape, np.uint8))
        with open(f"{i}.txt", "w") as stream:
            stream.write("0 .5 .5 .4 .4\n1 .3 .6 .3 .2\n")
        names.append(f"{i}.png")
    return names


def data_of(paths, mode=MOSAIC, **options) -> DetectionData:
    ranges = Augmentation(jitter=0.3, resize=1.5, hue=0.1, saturation=1.5, exposure=1.5, mode=mode, classes=2)
    return DetectionData(paths, ranges, seed=5, **options)


def turns(count: int, w: int = 48, h: int = 32, rows: int = 5, chunks: int = 2) -> list[list[Request]]:
    return [[Request(turn, chunk, w, h, rows) for chunk in range(chunks)] for turn in range(count)]


def made(loader: Loader, wanted: list[list[Request]]) -> list:
    return [batch for i, turn in enumerate(wanted) for batch in loader.turn(turn, wanted[i + 1 :])]


def assert_same(found: list, expected: list) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.request == other.request
        assert one.paths == other.paths
        assert one.images.dtype == other.images.dtype
        np.testing.assert_array_equal(one.images, other.images)
        np.testing.assert_array_equal(one.truth, other.truth)


def children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as stream:
        return {int(pid) for pid in stream.read().split()}


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(pids, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)


# --- batches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [NONE, MIXUP, MOSAIC])
def test_batches_do_not_depend_on_workers(paths, mode):
    wanted = turns(4)
    expected = [data_of(paths, mode).batch(request) for turn in wanted for request in turn]
    assert {batch.images.shape for batch in expected} == {(5, 3, 32, 48)}
    assert all(batch.truth.shape[0] == 5 and batch.truth.shape[2] == 6 for batch in expected)
    kinds = {batch.images.dtype.name for batch in expected}
    assert kinds == ({"uint8", "float32"} if mode == MIXUP else {"uint8"})
    for workers in (0, 1, 3):
        with Loader(data_of(paths, mode, cache=SharedCache(9, 1 << 20) if workers == 3 else None), workers) as loader:
            assert_same(made(loader, wanted), expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_starts_at_a_later_iteration_gets_the_same_batches(paths, workers):
    wanted = turns(6)
    expected = [data_of(paths).batch(request) for turn in wanted[4:] for request in turn]
    with Loader(data_of(paths), workers, ahead=workers) as loader:
        assert_same(made(loader, wanted[4:]), expected)


def test_towards_the_end_each_picture_is_by_itself(paths):
    data, closed = data_of(paths), data_of(paths, closes=20)
    modes = [(data.sampler.mode(turn[0]), closed.sampler.mode(turn[0])) for turn in turns(40)]
    assert {a for a, _ in modes[20:]} == {NONE, MOSAIC}
    assert [a for a, _ in modes[:20]] == [b for _, b in modes[:20]]
    assert {b for _, b in modes[20:]} == {NONE}


def test_arrays_are_made_and_batches_shown_as_asked_for(paths):
    made_arrays, seen = [], []

    def empty(shape, kind):
        made_arrays.append(np.empty(shape, kind))
        return made_arrays[-1]

    for workers in (0, 1):
        with Loader(data_of(paths), workers, empty=empty, watch=seen.extend) as loader:
            batches = loader.turn(turns(1)[0])
        assert all(batch.images is array for batch, array in zip(batches, made_arrays[-2:], strict=True))
        assert all(a is b for a, b in zip(seen[-2:], batches, strict=True))


def test_a_change_of_size_throws_away_what_was_prepared(paths):
    old, new = turns(6), turns(6, w=64, h=64)
    with Loader(data_of(paths), 1) as loader:
        loader.turn(old[0], old[1:3])
        found = loader.turn(new[1], new[2:4]) + loader.turn(new[2], old[3:5]) + loader.turn(old[3])
    data = data_of(paths)
    assert_same(found, [data.batch(request) for turn in (new[1], new[2], old[3]) for request in turn])


def test_buffers_come_back_after_any_number_of_discarded_turns(paths):
    wanted = turns(12)
    with Loader(data_of(paths), 2) as loader:
        for turn in wanted:
            loader.turn(turn, [wanted[-1], turn])
        loader.discard()
        loader.turn(wanted[0])
        end = time.monotonic() + 10
        while len(loader._buffers._free) < len(loader._buffers._maps) and time.monotonic() < end:
            time.sleep(0.05)
        assert len(loader._buffers._free) == len(loader._buffers._maps) > 0


def test_batches_that_fit_no_buffer_go_through_pipes(paths, monkeypatch):
    monkeypatch.setattr(Loader, "_shared", lambda self, requests, turns: Buffers(1, 48 * 32 * 3 * 5))
    wanted = turns(2) + turns(1, w=96)
    with Loader(data_of(paths), 2) as loader:
        found = made(loader, wanted)
    data = data_of(paths)
    assert_same(found, [data.batch(request) for turn in wanted for request in turn])


def test_a_batch_once_given_is_not_overwritten(paths):
    wanted = turns(6)
    with Loader(data_of(paths), 1) as loader:
        first = loader.turn(wanted[0], wanted[1:])[0]
        before = first.images.copy()
        for i in range(1, 6):
            loader.turn(wanted[i], wanted[i + 1 :])
        np.testing.assert_array_equal(first.images, before)


def test_mosaic_and_letter_box_do_not_go_together_in_strict(paths):
    with pytest.raises(DataError, match="mosaic=1 and letter_box=1"):
        DetectionData(paths, Augmentation(mode=MOSAIC, letter_box=True), strict=True)


# --- what can go wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_pictures_are_replaced_and_listed_once(paths, workers, caplog):
    with open("3.png", "wb") as stream:
        stream.write(b"\x89PNG\r\n\x1a\nrubbish")
    with Loader(data_of([*paths, "missing.png"]), workers) as loader:
        batches = made(loader, turns(8))
    assert not {"3.png", "missing.png"} & {path for batch in batches for path in batch.paths}
    with open("bad.list") as stream:
        assert sorted(stream) == ["3.png\n", "missing.png\n"]
    said = [message for message in caplog.messages if message.startswith("Cannot load image ")]
    assert len(said) == len(caplog.messages) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_list_of_unreadable_pictures_is_an_error_and_is_listed(paths, workers):
    with (
        pytest.raises(DataError, match="0 of 1 images readable"),
        Loader(data_of(["x.png"]), workers) as loader,
    ):
        loader.turn(turns(1)[0])
    with open("bad.list") as stream:
        assert stream.read() == "x.png\n"


def test_monstrous_jitter_is_an_error_instead_of_all_memory(paths):
    data = DetectionData(paths, Augmentation(jitter=4000.0), seed=1)
    with pytest.raises(DataError, match="jitter= and resize="):
        for turn in turns(20):
            data.batch(turn[0])


@linux
def test_killed_workers_cost_nothing_but_time(paths, caplog):
    wanted = turns(6)
    before = children()
    with Loader(data_of(paths), 2) as loader:
        found = made(loader, wanted[:2])
        for _ in range(2):
            os.kill(max(children() - before), signal.SIGKILL)
            found += made(loader, wanted[len(found) // 2 : len(found) // 2 + 2])
    data = data_of(paths)
    assert_same(found, [data.batch(request) for turn in wanted for request in turn])
    told = [m.split(": ")[1] for m in caplog.messages]
    assert told[0] == "going on with 1"
    assert told[1:] in ([], ["pictures are loaded in between"]), "nobody misses a worker that has done all its work"


@linux
def test_a_worker_killed_in_the_middle_of_a_message_is_no_hang(paths, monkeypatch):
    """The reader of results waits for the rest of the message, so nobody notices the death by itself."""
    monkeypatch.setattr(loader_module, "POLL", 0.2)
    wanted = turns(3)
    with Loader(data_of(paths), 1) as loader:
        found = made(loader, wanted[:1])
        victim = max(loader._pool._processes)
        loader._pool.submit(half_a_message, loader._pool._result_queue._writer.fileno())
        found += made(loader, wanted[1:])
    data = data_of(paths)
    assert not alive(victim)
    assert_same(found, [data.batch(request) for turn in wanted for request in turn])


def half_a_message(handle: int, *_) -> None:
    os.write(handle, (1000).to_bytes(4, "big") + b"\0" * 10)
    os.kill(os.getpid(), signal.SIGKILL)


def test_without_processes_pictures_are_loaded_in_between(paths, monkeypatch, caplog):
    def refuse(*_):
        raise OSError("no semaphores here")

    monkeypatch.setattr(loader_module, "ProcessPoolExecutor", refuse)
    wanted = turns(2)
    with Loader(data_of(paths), 2) as loader:
        found = made(loader, wanted)
    data = data_of(paths)
    assert_same(found, [data.batch(request) for turn in wanted for request in turn])
    assert "no semaphores here" in caplog.text


@linux
def test_no_process_is_left_after_an_exception(paths):
    before = children()
    with pytest.raises(ZeroDivisionError), Loader(data_of(paths), 2) as loader:
        loader.turn(*[turns(1)[0], turns(3)[1:]])
        started = children() - before
        raise ZeroDivisionError
    assert len(started) == 2
    assert gone(started)


SCRIPT = """
import sys, time
from darknetpy.data.detection import DetectionData, Request
from darknetpy.data.draws import Augmentation
from darknetpy.data.loader import Loader
with Loader(DetectionData(sys.argv[1:], Augmentation()), 2) as loader:
    for turn in range(100000):
        loader.turn([Request(turn, 0, 32, 32, 4)], [[Request(turn + 1, 0, 32, 32, 4)]])
        print(*(process.pid for process in loader._pool._processes.values()), flush=True)
"""


@linux
@pytest.mark.usefixtures("hears_signals")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_when_the_run_is_ended(paths, how):
    run = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *paths], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        started = [int(pid) for pid in run.stdout.readline().split()]
        assert len(started) == 2
        if how == signal.SIGINT:
            os.killpg(run.pid, how)  # Ctrl-C reaches the workers too
        else:
            run.send_signal(how)
        _, errors = run.communicate(timeout=20)
        assert gone(started)
        assert errors.count("Traceback") == (1 if how == signal.SIGINT else 0), errors
    finally:
        run.kill()
