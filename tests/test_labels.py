"""Label files that are not as they should be, and the two ways of reading them."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from darknetpy.data import labels as labels_module
from darknetpy.data import notes
from darknetpy.data.draws import Draws
from darknetpy.data.geometry import Crop
from darknetpy.data.labels import labels_of, read_labels
from darknetpy.data.truth import fill_truth
from darknetpy.errors import DataError


@pytest.fixture(autouse=True)
def nothing_told_before(monkeypatch, tmp_path):
    monkeypatch.setattr(notes, "_told", set())
    monkeypatch.chdir(tmp_path)


def read(content: bytes, strict: bool = False):
    with open("a.txt", "wb") as stream:
        stream.write(content)
    return read_labels("a.txt", strict)


def test_plain_file():
    found = read(b"2 .5 0.25 1e-1 +0.2\n0 1 1 1 1")
    np.testing.assert_array_equal(found.boxes, np.float32([[0.5, 0.25, 0.1, 0.2], [1, 1, 1, 1]]))
    assert found.classes.tolist() == [2, 0]
    assert found.tracks.tolist()[1] - found.tracks.tolist()[0] == 1


@pytest.mark.parametrize(
    "line",
    [b"0 .1 .2 .3", b"0 .1 .2 .3 .4 .5", b"cat .1 .2 .3 .4", b"0,.1,.2,.3,.4", b"0 nan .2 .3 .4", b"0 1e60 .2 .3 .4",
     b"0.5 .1 .2 .3 .4", b"1e400 .1 .2 .3 .4", b"# 0 .1 .2 .3", "٣ .1 .2 .3 .4".encode()],
)  # fmt: skip
def test_odd_lines_are_left_out_and_said_with_their_number(line, caplog):
    found = read(b"1 .5 .5 .1 .1\n\n" + line + b"\n3 .5 .5 .1 .1\n" + line)
    assert found.classes.tolist() == [1, 3]
    assert "a.txt, line 3: " in caplog.text
    assert "(and 1 more lines)" in caplog.text
    assert len(caplog.records) == 1


def test_float_class_byte_order_mark_and_utf16_are_mended_by_default():
    assert read(b"\xef\xbb\xbf1.0 .5 .5 .1 .1").classes.tolist() == [1]
    assert read("1 .5 .5 .1 .1\r\n2 .5 .5 .1 .1".encode("utf-16")).classes.tolist() == [1, 2]


def test_strict_reads_a_stream_and_says_which_line_shifts_it(caplog):
    found = read(b"0.0 .5 .6 .7 .8\n", strict=True)
    assert found.classes.tolist() == [0]
    np.testing.assert_array_equal(found.boxes, np.float32([[0.0, 0.5, 0.6, 0.7]]))
    assert not caplog.records
    found = read(b"12 .1 .2 .3\n", strict=True)
    assert len(found) == 0, "a number must not be cut in two to make up for a missing one"
    assert "a.txt, line 1" in caplog.text


def test_binary_huge_and_endless_files_are_refused_before_they_are_kept(monkeypatch):
    with pytest.raises(DataError, match="not a text file"):
        read(b"\x89PNG\0\0\0")
    monkeypatch.setattr(labels_module, "MAX_BYTES", 100)
    with pytest.raises(DataError, match="is longer than"):
        read(b"0 .5 .5 .1 .1\n" * 50)
    with pytest.raises(DataError, match="is longer than"):
        read_labels("/dev/zero")


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_bytes(b"\0")])
def test_a_picture_without_usable_labels_is_a_negative_and_noted_once(make, caplog, tmp_path):
    make(tmp_path / "a.txt")
    for _ in range(2):
        assert len(labels_of("a.jpg")) == 0
    assert len(caplog.records) == 1
    with open("bad.list") as stream:
        assert stream.read() == "a.txt\n"


def test_missing_labels_are_said_in_darknets_words(caplog):
    labels_of("a.jpg")
    assert caplog.messages == ["Can't open label file. (This can be normal only if you use MSCOCO): a.txt "]


def test_a_line_that_an_earlier_run_wrote_is_not_written_again(monkeypatch):
    for _ in range(2):
        monkeypatch.setattr(notes, "_told", set())
        notes.append_line("bad.list", "x y.jpg")
        notes.append_line("bad.list", "y.jpg")
    with open("bad.list") as stream:
        assert stream.read() == "x y.jpg\ny.jpg\n"


def test_a_list_that_cannot_be_written_is_said_and_survived(caplog):
    os.mkdir("bad.list")
    notes.append_line("bad.list", "a")
    notes.append_line("bad.list", "b")
    assert len(caplog.records) == 1


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("strict", [False, True])
def test_absurd_numbers_never_become_truth_that_is_no_number(strict):
    numbers = ["0", "-0", "0.5", "1", "-1", "3e38", "-3e38", "1e-45", "1e39", "-1e60"]
    lines = [f"0 {x} {y} {w} {h}" for x in numbers for y in numbers[2:4] for w in numbers for h in numbers]
    found = read("\n".join(lines).encode(), strict)
    assert len(found) == (len(lines) if strict else len(numbers[:-2]) ** 3 * 2)
    crop = Crop(40, 30, -7, 5, 3, -200)
    for flip in (False, True):
        rows, smallest = fill_truth(found, crop, Draws(flip=flip), 32, 32, 1, 1 << 20)
        assert np.isfinite(rows).all()
        assert len(rows) > 0
        assert (rows[:, :2] > 0).all()
        assert (rows[:, :4] <= 1).all()
        assert smallest >= 1


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.text("0123456789+-.eE \n\tx", max_size=200).map(str.encode), st.booleans())
@example(b"9" * 5000 + b" 1 1 1 1", True)
@example(b"9" * 5000 + b" 1 1 1 1", False)
@example(b"\xff\xfe\xd8", False)
def test_any_bytes_give_labels_or_a_clear_error(content, strict):
    try:
        found = read(content, strict)
    except DataError as error:
        assert "a.txt" in str(error)
        return
    assert found.boxes.shape == (len(found), 4)
    assert found.boxes.dtype == found.tracks.dtype == np.float32
    assert strict or np.isfinite(found.boxes).all()
