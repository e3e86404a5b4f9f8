"""Pictures that a command is asked about: a folder, a list, and where what was drawn goes."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
import torch
from small import data_set

from darknetpy import Network
from darknetpy.cli.main import main

QUIET = ["-quiet", "-nogpu", "-dont_show"]
TEST = ["detector", "test", "obj.data", "tiny.cfg", "tiny.weights"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(data_set(tmp_path))
    torch.manual_seed(0)
    Network("tiny.cfg").save_weights("tiny.weights")
    (tmp_path / "img" / "deeper").mkdir()
    (tmp_path / "img" / "0.png").rename(tmp_path / "img" / "deeper" / "1.png")
    (tmp_path / "img" / "broken.jpg").write_bytes(b"no picture")
    (tmp_path / "img" / "notes.doc").write_text("not asked for")
    return tmp_path


def asked(capfd, *words: str, status: int = 0) -> tuple[list[str], str]:
    """Pictures that a command looked at, in order, and all it said."""
    capfd.readouterr()
    assert main([*words, *QUIET]) == status
    said = "".join(capfd.readouterr())
    assert "Enter Image Path" not in said
    return [line.split(": Predicted")[0] for line in said.splitlines() if "Predicted in" in line], said


def test_all_pictures_of_a_folder(place, capfd):
    paths, said = asked(capfd, *TEST, "img", "-out", "r.json", "-out_dir", "drawn")
    pictures = [f"img/{i}.png" for i in range(1, 6)]
    assert paths == [*pictures, "img/deeper/1.png"]
    assert "Cannot load image img/broken.jpg" in said
    assert "1 of 7 images could not be read" in said
    frames = [frame["filename"] for frame in json.loads((place / "r.json").read_text())]
    assert frames == [*pictures[:5], "img/broken.jpg", "img/deeper/1.png"]
    assert sorted(path.name for path in (place / "drawn").iterdir()) == sorted(
        [*(f"{i}.jpg" for i in range(1, 6)), "1_2.jpg"]
    )
    last = cv2.imread("predictions.jpg")
    assert np.array_equal(cv2.imread("drawn/1_2.jpg"), last)


def test_all_pictures_of_a_list(place, capfd):
    (place / "few.txt").write_text("img/3.png\nimg/broken.jpg\nimg/1.png\n")
    assert asked(capfd, *TEST, "few.txt")[0] == ["img/3.png", "img/1.png"]
    assert asked(capfd, *TEST, "few.txt", "-gpus", "0,1")[0] == ["img/3.png", "img/1.png"]


def test_a_classifier_takes_a_folder_too(place, capfd):
    (place / "c.cfg").write_text(
        "[net]\nwidth=8\nheight=8\nchannels=3\n[convolutional]\nfilters=2\nsize=1\nstride=1\n[avgpool]\n[softmax]\n"
    )
    words = ["classifier", "predict", "obj.data", "c.cfg", "", "img"]
    assert asked(capfd, *words)[0] == [*(f"img/{i}.png" for i in range(1, 6)), "img/deeper/1.png"]


def test_a_folder_without_a_picture(place, capfd):
    (place / "empty").mkdir()
    assert "empty: has no pictures in it" in asked(capfd, *TEST, "empty", status=1)[1]


def test_a_picture_is_not_written_over_by_its_own_boxes(place, capfd):
    picture = cv2.imread("img/1.png")
    cv2.imwrite("img/a.jpg", picture)
    before = (place / "img" / "a.jpg").read_bytes()
    _, said = asked(capfd, *TEST, "img/a.jpg", "-out_dir", "img", status=1)
    assert "img/a.jpg: would be written over by its own boxes; choose another -out_dir" in said
    assert (place / "img" / "a.jpg").read_bytes() == before


def test_a_folder_for_drawings_that_cannot_be_made(place, capfd):
    said = asked(capfd, *TEST, "img", "-out_dir", "obj.data/x", status=1)[1]
    assert "obj.data/x: the folder cannot be written" in said
    assert not (place / "predictions.jpg").exists()
