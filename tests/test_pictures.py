"""Decoded pictures in memory, and the options of augmentation that a cfg asks for."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from darknetpy.data import notes, pictures
from darknetpy.data.draws import MOSAIC, Augmentation
from darknetpy.data.pictures import Pictures, room_for_cache
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
    kept = Pictures(paths, room=2 * BYTES + 1)
    for _ in range(2):
        images = [first(kept, i) for i in range(4)]
        assert [int(image[0, 0, 0]) for image in images] == [0, 1, 2, 3]
    again = [first(kept, i) for i in range(4)]
    assert [a is b for a, b in zip(images, again, strict=True)] == [True, True, False, False]


def test_nothing_is_kept_without_room(paths):
    kept = Pictures(paths)
    assert first(kept, 0) is not first(kept, 0)


def test_room_follows_the_narrowest_of_system_and_container(monkeypatch):
    numbers = {"/proc/meminfo": 9_000, "/sys/fs/cgroup/memory.max": 0, "/sys/fs/cgroup/memory.current": 1000}
    monkeypatch.setattr(pictures, "_number", lambda path, key="": numbers[path])
    assert room_for_cache() == 9_000 * 1024 // 3
    numbers["/sys/fs/cgroup/memory.max"] = 61_000
    assert room_for_cache() == 20_000
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
