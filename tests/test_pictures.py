"""Decoded pictures in memory, and the options of augmentation that a cfg asks for."""

from __future__ import annotations

import os
import signal

import cv2
import numpy as np
import pytest

from darknetpy.data import cache, notes
from darknetpy.data.cache import DiskCache, PrivateCache, SharedCache, make_cache, room_for_cache
from darknetpy.data.draws import MOSAIC, Augmentation
from darknetpy.data.pictures import Pictures
from darknetpy.errors import ConfigError, DataError, UsageError
from darknetpy.layers import read_structure

BYTES = 8 * 10 * 3
"""Size of a decoded picture of the fixture."""


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setattr(notes, "_told", set())
    monkeypatch.chdir(tmp_path)
    for i in range(4):
        cv2.imwrite(f"{i}.png", np.full((8, 10, 3), i, np.uint8))
        (tmp_path / f"{i}.txt").write_text("0 .5 .5 .1 .1\n")
    return [f"{i}.png" for i in range(4)]


def first(kept: Pictures, index: int) -> np.ndarray:
    return kept.first_readable(iter([index]))[1]


def test_pictures_are_kept_while_there_is_room(paths):
    kept = Pictures(paths, cache=PrivateCache(2 * BYTES + 1))
    for _ in range(2):
        images = [first(kept, i) for i in range(4)]
        assert [int(image[0, 0, 0]) for image in images] == [0, 1, 2, 3]
    again = [first(kept, i) for i in range(4)]
    assert [a is b for a, b in zip(images, again, strict=True)] == [True, True, False, False]


def test_the_first_choice_is_taken_and_others_are_left_alone(paths):
    choices = iter([2, 0, 1])
    assert Pictures(paths).first_readable(choices)[0] == "2.png"
    assert list(choices) == [0, 1]


def test_nothing_is_kept_without_room(paths):
    kept = Pictures(paths)
    assert first(kept, 0) is not first(kept, 0)


def caches(paths, folder):
    return [SharedCache(len(paths), 1 << 16), DiskCache(folder / "kept", paths, 3)]


def test_shared_and_disk_caches_give_back_what_they_were_given(paths, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "LEAST_FREE", 0)
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (h, w, 3), np.uint8) for h, w in ((8, 10), (1, 1), (33, 7), (5, 64))]
    for kept in caches(paths, tmp_path):
        assert [kept.get(i) for i in range(4)] == [None] * 4
        for i in (2, 0, 3, 1, 2):
            kept.put(i, images[i])
        for i in range(4):
            np.testing.assert_array_equal(kept.get(i), images[i])
    for i in range(4):
        np.testing.assert_array_equal(DiskCache(tmp_path / "kept", paths, 3).get(i), images[i])


def test_a_full_shared_cache_and_too_large_pictures_are_left_out():
    kept = SharedCache(3, 3 * 64)
    kept.put(0, np.zeros((4, 4, 3), np.uint8))
    kept.put(1, np.zeros((4, 4, 3), np.uint8))
    kept.put(2, np.zeros((1 << 15, 1, 3), np.uint8))
    assert [kept.get(i) is None for i in range(3)] == [False, True, True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_killed_while_it_writes_into_a_shared_cache_blocks_nobody():
    kept = SharedCache(2, 1 << 12)
    child = os.fork()
    if not child:
        with kept._locked():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    kept.put(1, np.full((2, 2, 3), 7, np.uint8))
    assert kept.get(1).sum() == 7 * 12


def test_a_changed_picture_and_a_damaged_file_are_decoded_again(paths, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "LEAST_FREE", 0)
    kept = DiskCache(tmp_path / "kept", paths, 3)
    kept.put(0, np.zeros((8, 10, 3), np.uint8))
    kept.put(1, np.zeros((8, 10, 3), np.uint8))
    os.utime("0.png", ns=(1, 1))
    assert kept.get(0) is None
    (file,) = [f for f in (tmp_path / "kept").rglob("*.npy") if str(f) == kept._name(1)]
    for damage in (b"", file.read_bytes()[:100], b"rubbish" * 50, file.read_bytes().replace(b"|u1", b"|O8")):
        file.write_bytes(damage)
        assert kept.get(1) is None


def test_a_disk_that_fills_up_ends_the_writing_and_is_said_once(paths, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(cache, "LEAST_FREE", 1 << 60)
    kept = DiskCache(tmp_path / "kept", paths, 3)
    for i in range(4):
        kept.put(i, np.zeros((8, 10, 3), np.uint8))
    assert not list((tmp_path / "kept").rglob("*.npy"))
    assert len(caplog.messages) == 1


def test_words_for_the_cache(paths, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    kinds = {kind: type(make_cache(kind, paths, 3)) for kind in ("ram", "disk", "none", None, True, False)}
    nothing = type(None)
    assert kinds == {
        "ram": SharedCache, "disk": DiskCache, "none": nothing, None: SharedCache, True: SharedCache, False: nothing
    }  # fmt: skip
    assert (tmp_path / "user" / "darknetpy" / "pictures").is_dir()
    assert make_cache(None, paths * 1000, 3) is None
    assert make_cache(None, paths, 3, str(tmp_path / "here")).folder == str(tmp_path / "here")
    with pytest.raises(UsageError, match="-cache is ram or disk"):
        make_cache("floppy", paths, 3)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="choose another one with -cache_dir"):
        make_cache("disk", paths, 3, str(tmp_path / "file" / "x"))


def test_room_follows_the_narrowest_of_system_and_container(monkeypatch):
    numbers = {"/proc/meminfo": 9_000, "/sys/fs/cgroup/memory.max": 0, "/sys/fs/cgroup/memory.current": 1000}
    monkeypatch.setattr(cache, "_number", lambda path, key="": numbers.get(path, 0))
    assert room_for_cache() == 9_000 * 1024 // 3
    numbers["/sys/fs/cgroup/memory.max"] = 61_000
    assert room_for_cache() == 20_000
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert room_for_cache() == 5_000, "each replica keeps pictures of its own"
    numbers["/sys/fs/cgroup/memory.max"] = 500
    assert room_for_cache() == 0


def test_room_on_this_machine_is_sensible():
    assert 1 << 20 < room_for_cache() < 1 << 45


CFG = """[net]
width=64
height=64
channels=3
batch=8
hue=.1
saturation=1.5
exposure=0
mosaic=1
cutmix=1
flip=0
mosaic_bound=1
[convolutional]
filters=21
size=1
stride=1
activation=linear
[yolo]
anchors=1,1,2,2,3,3
mask=0,1,2
num=3
classes=2
jitter=.1
resize=1.1
max=10
[convolutional]
filters=21
size=1
stride=1
activation=linear
[yolo]
anchors=1,1,2,2,3,3
mask=0,1,2
num=3
classes=2
jitter=.4
resize=1.5
max=90
"""


def test_the_last_head_speaks_for_all(tmp_path):
    path = tmp_path / "two.cfg"
    path.write_text(CFG)
    structure = read_structure(str(path))
    found = Augmentation.of(structure.net, structure.heads[-1])
    assert (found.jitter, found.resize, found.max_boxes, found.classes) == pytest.approx((0.4, 1.5, 90, 2))
    assert (found.hue, found.saturation, found.exposure) == pytest.approx((0.1, 1.5, 1.0))
    assert (found.mode, found.flip, found.mosaic_bound, found.letter_box) == (MOSAIC, False, True, False)


def test_pairs_need_two_rows(tmp_path):
    path = tmp_path / "one.cfg"
    path.write_text(CFG.replace("batch=8", "batch=8\nsubdivisions=8\ncontrastive=1"))
    structure = read_structure(str(path))
    with pytest.raises(ConfigError, match="contrastive=1 needs pairs, but batch/subdivisions is 1"):
        Augmentation.of(structure.net, structure.heads[-1])
