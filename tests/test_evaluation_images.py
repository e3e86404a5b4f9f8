"""Pictures and truths for evaluation: in order, and complete whatever the files are like."""

from __future__ import annotations

import threading

import cv2
import numpy as np
import pytest

from darknetpy.data import notes
from darknetpy.data.evaluation import EvaluationImages
from darknetpy.errors import DataError
from darknetpy.images import resize_image


@pytest.fixture
def paths(tmp_path, monkeypatch):
    """Eleven grey pictures whose brightness is their number, with as many boxes as their number says."""
    monkeypatch.setattr(notes, "_told", set())
    monkeypatch.chdir(tmp_path)
    for i in range(11):
        cv2.imwrite(f"{i}.png", np.full((10 + i, 20, 3), i, np.uint8))
        with open(f"{i}.txt", "w") as stream:
            stream.write("0 .5 .5 .4 .4\n" * i)
    return [f"{i}.png" for i in range(11)]


def small(picture: np.ndarray) -> np.ndarray:
    return resize_image(picture, 4, 3)


@pytest.mark.parametrize("threads", [0, 1, 3, None])
@pytest.mark.parametrize("size", [1, 4, 11, 64])
def test_batches_come_in_order_with_sizes_and_truths(paths, threads, size):
    batches = list(EvaluationImages(paths, small, threads=threads).batches(size))
    assert [len(batch) for batch in batches] == [size] * (11 // size) + ([11 % size] if 11 % size else [])
    samples = [sample for batch in batches for sample in batch]
    assert [(s.index, s.path, s.size, len(s.labels)) for s in samples] == [
        (i, f"{i}.png", (20, 10 + i), i) for i in range(11)
    ]
    assert all(s.input.shape == (3, 3, 4) and s.difficult is None for s in samples)
    np.testing.assert_allclose([s.input.mean() for s in samples], np.arange(11) / 255, atol=1e-6)


def test_an_unreadable_picture_is_black_and_keeps_its_truths(paths, caplog):
    with open("4.png", "wb") as stream:
        stream.write(b"rubbish")
    sample = EvaluationImages(paths, small).sample(4)
    assert (sample.input.max(), sample.size, len(sample.labels)) == (0, (10, 10), 4)
    assert caplog.messages[0].startswith("Cannot load image 4.png")
    with open("bad.list") as stream:
        assert stream.read() == "4.png\n"


def test_difficult_truths_stand_in_a_list_of_their_own(paths, tmp_path):
    (tmp_path / "hard").mkdir()
    (tmp_path / "hard" / "2.txt").write_text("1 .1 .2 .3 .4\n")
    images = EvaluationImages(paths, small, difficult=[f"hard/{i}.png" for i in range(11)])
    hard = images.sample(2).difficult
    assert (hard.classes.tolist(), hard.boxes.tolist()) == ([1], np.float32([[0.1, 0.2, 0.3, 0.4]]).tolist())
    assert images.sample(3).difficult is None
    with pytest.raises(DataError, match="difficult= lists 1 images, valid= 11"):
        EvaluationImages(paths, small, difficult=["a.png"])


def test_truths_that_nobody_asked_for_are_not_read(paths, caplog):
    sample = EvaluationImages(["1.png"], small, labels=False).sample(0)
    assert sample.labels is None
    assert not caplog.records


def test_stopping_early_ends_the_threads(paths):
    before = threading.active_count()
    batches = EvaluationImages(paths, small, threads=3).batches(2)
    next(batches)
    assert threading.active_count() > before
    batches.close()
    assert threading.active_count() == before


def test_an_error_in_preparing_reaches_the_caller(paths):
    def fail(picture):
        raise DataError("cannot be prepared")

    with pytest.raises(DataError, match="cannot be prepared"):
        list(EvaluationImages(paths, fail, threads=2).batches(2))
