"""Pictures of what is inside a network: filters, outputs, and what a layer dreams of."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from small import data_set

from darknetpy import Network
from darknetpy.cli.main import main
from darknetpy.images import filter_tiles, output_tiles
from darknetpy.inference.dream import Dream, Settings, turned

QUIET = ["-quiet", "-nogpu", "-dont_show"]
CFG = """[net]
width=32
height=32
channels=3
[convolutional]
filters=6
size=3
stride=1
pad=1
activation=leaky
[maxpool]
size=2
stride=2
[convolutional]
filters=4
size=3
stride=1
pad=1
activation=leaky
[avgpool]
[softmax]
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(data_set(tmp_path))
    (tmp_path / "c.cfg").write_text(CFG)
    torch.manual_seed(0)
    Network("c.cfg").save_weights("c.weights")
    return tmp_path


def said(capfd, *words: str, status: int = 0) -> str:
    capfd.readouterr()
    assert main([*words, *QUIET]) == status
    return "".join(capfd.readouterr())


def test_filters_of_three_channels_are_tiles_in_colours():
    weights = np.zeros((5, 3, 2, 2), np.float32)
    weights[0, 0] = 1  # all red
    weights[1, 2, 0] = -1  # the upper half lacks blue
    sheet = filter_tiles(weights)
    side = 24 + 1  # enlarged to 24 pixels, and a gap
    assert sheet.shape == (2 * side, 3 * side, 3)
    assert (sheet[:24, :24] == [255, 0, 0]).all()
    assert (sheet[:12, side : side + 24] == [255, 255, 0]).all()
    assert (sheet[12:24, side : side + 24] == [255, 255, 255]).all()
    assert (sheet[:24, 2 * side : 2 * side + 24] == 128).all()  # all numbers are equal
    assert (sheet[side:, 2 * side :] == 0).all()  # there is no sixth


def test_other_filters_are_rows_of_grey_tiles():
    weights = np.arange(2 * 4 * 3 * 3, dtype=np.float32).reshape(2, 4, 3, 3)
    sheet = filter_tiles(weights)
    assert sheet.shape == (2 * 25, 4 * 25, 3)
    assert sheet[0, 0].tolist() == [0, 0, 0] and sheet[23, 3 * 25 + 23].tolist() == [255, 255, 255]
    assert (sheet[..., 0] == sheet[..., 2]).all()


def test_a_wide_layer_is_no_giant_picture():
    assert max(filter_tiles(np.zeros((1024, 1024, 1, 1), np.float32)).shape) <= 4096
    assert max(output_tiles(np.zeros((2048, 128, 128), np.float32)).shape) <= 4096
    assert output_tiles(np.full((3, 4, 4), np.nan, np.float32)).max() <= 128


def test_visualize_draws_each_convolutional_layer(place, capfd):
    said(capfd, "visualize", "c.cfg", "c.weights")
    assert sorted(path.name for path in place.glob("Layer*")) == ["Layer 0.jpg", "Layer 2.jpg"]
    network = Network("c.cfg", "c.weights")
    drawn = cv2.imread("Layer 0.jpg")[..., ::-1].astype(int)
    expected = filter_tiles(network.tensors_of(0).get("weights").detach().numpy()).astype(int)
    assert drawn.shape == expected.shape and abs(drawn - expected).mean() < 12  # JPEG
    said(capfd, "visualize", "c.cfg", "c.weights", "img/1.png")
    assert {path.name for path in place.glob("*Output.jpg")} == {"Layer 0 Output.jpg", "Layer 2 Output.jpg"}


def test_a_layer_answers_more_strongly_to_its_dream(place):
    network = Network("c.cfg", "c.weights").requires_grad_(False)
    picture = torch.rand(1, 3, 48, 64, generator=torch.Generator().manual_seed(1)) * 0.2 + 0.4

    def answer(x):
        return float(network.run(x, keep_all=True, layers=3).outputs[2].square().mean())

    before = answer(picture)
    dream = Dream(network, 2, Settings(octaves=1), seed=3)
    for _ in range(10):
        picture = dream.step(picture)
    assert answer(picture) > 2 * before
    assert picture.shape == (1, 3, 48, 64) and float(picture.min()) >= 0 and float(picture.max()) <= 1


def test_turning_and_zooming():
    picture = torch.zeros(1, 1, 9, 9)
    picture[0, 0, 4, 7] = 1
    assert torch.allclose(turned(picture, 1.0, 0.0), picture, atol=1e-6)
    quarter = turned(picture, 1.0, np.pi / 2)[0, 0]
    assert divmod(int(quarter.argmax()), 9) in {(1, 4), (7, 4)}
    assert divmod(int(turned(picture, 0.75, 0.0)[0, 0].argmax()), 9) == (4, 8)


def test_nightmare_writes_each_round(place, capfd):
    words = ["nightmare", "c.cfg", "c.weights", "img/1.png", "2", "-rounds", "2", "-iters", "3", "-srand", "5"]
    assert "0 1_c_2_000000\n1 1_c_2_000001\n" in said(capfd, *words, "-zoom", "0.9", "-rotate", "0.1", "-thresh", "2")
    first = [(place / f"1_c_2_00000{i}.jpg").read_bytes() for i in range(2)]
    said(capfd, *words, "-prefix", "dreams", "-zoom", "0.9", "-rotate", "0.1", "-thresh", "2")
    assert [(place / "dreams" / f"1_c_2_00000{i}.jpg").read_bytes() for i in range(2)] == first
    said(capfd, *words[:-1], "6", "-prefix", "other")
    assert (place / "other" / "1_c_2_000001.jpg").read_bytes() != first[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nightmare", "c.cfg", "c.weights", "img/1.png", "5"], "there is no layer 5; choose one of 0 to 4"),
        (
            ["nightmare", "c.cfg", "c.weights", "img/1.png"],
            "darknetpy nightmare [cfg] [weights] [image] [layer]",
        ),
        (["nightmare", "c.cfg", "c.weights", "img/1.png", "last"], "usage: darknetpy nightmare"),
        (["nightmare", "c.cfg", "c.weights", "img/none.png", "1"], "img/none.png"),
        (["visualize", "none.cfg"], "none.cfg"),
        (["visualize", "c.cfg", "c.weights", "img/1.txt"], "img/1.txt"),
        (["visualize"], "usage: darknetpy visualize"),
    ],
)
def test_bad_input_ends_with_a_sentence(place, capfd, words, sentence):
    out = said(capfd, *words, status=1)
    assert sentence in out and "Traceback" not in out
    assert not list(place.glob("*.jpg"))
