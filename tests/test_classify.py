"""`classifier predict` and its relatives by a network whose answers are known by hand."""

from __future__ import annotations

import io
import math
import re
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest
from conftest import shared

from darknetpy import Classifier
from darknetpy.cli.main import main
from darknetpy.config.datafile import read_data
from darknetpy.data.classification import Truth, class_of
from darknetpy.errors import ConfigError, ImageError
from darknetpy.evaluation.topk import TopKResult, evaluate_topk
from darknetpy.inference.classifier import ranking
from darknetpy.training import TrainResult
from darknetpy.training.classifier import train_classifier

CFG = """[net]
width=16
height=16
channels=3

[avgpool]

[connected]
output=3
activation=linear

[softmax]
"""
COLORS = {"red": (0, 0, 255), "green": (0, 255, 0), "blue": (255, 0, 0)}
SURE = math.exp(5) / (math.exp(5) + 2)
"""Probability of a class whose colour fills what is seen: the scores are five times the mean of each channel."""
QUIET = ["colour.cfg", "colour.weights", "-quiet"]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A network that tells red, green and blue pictures, with two pictures of each, one of them with a wrong name."""
    monkeypatch.chdir(tmp_path)
    Path("colour.cfg").write_text(CFG)
    weights = 5 * np.eye(3, dtype=np.float32)
    Path("colour.weights").write_bytes(struct.pack("<iiiQ", 0, 2, 5, 0) + bytes(12) + weights.tobytes())
    names = []
    for i, (name, color) in enumerate(COLORS.items()):
        for j in range(2):
            path = f"{name}_{j}.png" if (i, j) != (2, 1) else "red_blue.png"
            cv2.imwrite(path, np.full((20 + 10 * j, 30, 3), color, np.uint8))
            names.append(path)
    Path("list.txt").write_text("".join(f"{name}\n" for name in names))
    Path("colour.names").write_text("red\ngreen\nblue\n")
    Path("colour.data").write_text("classes=3\nlabels=colour.names\nvalid=list.txt\ntest=list.txt\ntop=2\n")
    return tmp_path


def run(capfd, words: list[str], status: int = 0) -> tuple[str, str]:
    capfd.readouterr()
    assert main(words) == status
    return tuple(capfd.readouterr())


def test_predict_names_what_it_sees(place, capfd) -> None:
    out, _ = run(capfd, ["classifier", "predict", "colour.data", *QUIET, "green_0.png"])
    assert re.sub(r"in [\d.]+ m", "in T m", out[out.index(" classes") :]) == (
        " classes = 3, output in cfg = 3 \n16 16\ngreen_0.png: Predicted in T milli-seconds.\n"
        f"green: {SURE:f}\nred: {(1 - SURE) / 2:f}\n"
    )
    out, _ = run(capfd, ["classifier", "predict", "colour.data", *QUIET, "blue_0.png", "-t", "9"])
    assert re.findall(r"^(\w+): \d\.\d+$", out, re.M) == ["blue", "red", "green"]


def test_predict_asks_for_pictures_and_goes_on_past_bad_ones(place, capfd, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"red_0.png\nnothing.png\nblue_0.png\r\n")))
    out, error = run(capfd, ["classifier", "predict", "colour.data", *QUIET, "-t", "1"])
    assert out.count("Enter Image Path: ") == 4
    assert re.findall(r"^(\w+): \d\.\d+$", out, re.M) == ["red", "blue"]
    assert "Cannot load image nothing.png" in error
    assert Path("bad.list").read_text() == "nothing.png\n"
    run(capfd, ["classifier", "predict", "colour.data", *QUIET, "nothing.png"], 1)


def test_classify_takes_names_in_place_of_imagenets(place, capfd) -> None:
    out, _ = run(capfd, ["classify", *QUIET, "red_1.png", "colour.names"])
    assert re.findall(r"^(\w+): \d\.\d+$", out, re.M) == ["red", "green", "blue"]
    _, error = run(capfd, ["classify", *QUIET, "red_1.png"], 1)
    assert "Couldn't open file: cfg/imagenet1k.data" in error


def test_a_wrong_number_of_classes_is_darknets_error(place, capfd) -> None:
    Path("four.data").write_text("classes=4\nnames=colour.names\n")
    _, error = run(capfd, ["classifier", "predict", "four.data", *QUIET, "red_0.png"], 1)
    assert "num of filters = 3 in the last conv-layer in cfg-file doesn't match to classes = 4" in error


@pytest.mark.parametrize("command", ["valid", "valid10", "validfull", "validmulti", "validcrop"])
def test_valid_counts_the_first_label_of_each_path(place, capfd, command) -> None:
    """`red_blue.png` is blue, but its path names red first."""
    out, _ = run(capfd, ["classifier", command, "colour.data", *QUIET])
    lines = re.findall(r"^(\d): top 1: (\d\.\d{6}), top 2: (\d\.\d{6})$", out, re.M)
    assert [float(line[1]) for line in lines] == pytest.approx([1, 1, 1, 1, 1, 5 / 6], abs=1e-6)
    assert lines[-1][2] == "1.000000"  # red and green are equally unlikely: the first of equals counts
    assert (" TOP calculation...\n\n0: top" in out) == (command == "valid")


def test_valid_does_not_depend_on_the_batch(place) -> None:
    classifier = Classifier("colour.cfg", "colour.weights", "colour.names")
    data = read_data("colour.data")
    ranks = [evaluate_topk(data, classifier, batch=n, progress=False).ranks for n in (1, 4, 6)]
    assert ranks == [[0, 0, 0, 0, 0, 1]] * 3


def test_test_and_label_go_through_the_list(place, capfd) -> None:
    out, _ = run(capfd, ["classifier", "test", "colour.data", *QUIET])
    rows = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert [row[0] for row in rows] == Path("list.txt").read_text().split()
    assert rows[2][1:] == [f"{(1 - SURE) / 2:g}", f"{SURE:g}", f"{(1 - SURE) / 2:g}"]
    out, _ = run(capfd, ["classifier", "label", "colour.data", *QUIET])
    assert out.split()[-6:] == ["red", "red", "green", "green", "blue", "blue"]


def test_the_middle_of_a_picture_is_seen(place) -> None:
    image = np.zeros((20, 60, 3), np.uint8)
    image[:, 20:40] = COLORS["green"]
    image[:, :20] = image[:, 40:] = COLORS["red"]
    classifier = Classifier("colour.cfg", "colour.weights", "colour.names")
    best = classifier(image)[0]
    assert (best.name, best.class_id, best.parent) == ("green", 1, None)
    assert best.probability == pytest.approx(SURE, abs=0.01)
    assert classifier(image.astype(np.float32).transpose(2, 0, 1)[::-1] / 255)[0].name == "green"
    assert [c.name for row in classifier.classify([image, image], top=2) for c in row] == ["green", "red"] * 2
    assert classifier.classify([]) == []
    with pytest.raises(ImageError, match="too narrow"):
        classifier(np.zeros((1, 200_000, 3), np.uint8))


def test_a_detector_is_no_classifier(place) -> None:
    with pytest.raises(ConfigError, match="is no classifier"):
        Classifier(shared("models", "yolo-fastest-1.1", "yolo-fastest-1.1.cfg"))


def test_of_equals_the_first_comes_first() -> None:
    assert ranking(np.array([0.25, 0.5, 0.25, 0.5])).tolist() == [1, 3, 0, 2]


def test_running_accuracy() -> None:
    result = TopKResult.of(2, [0, 1, 2, -1])
    assert (result.top1, result.topk, result.map) == (0.25, 0.5, 0.5)
    assert result.line() == "3: top 1: 0.250000, top 2: 0.500000"


# --- truth from paths --------------------------------------------------------------------------------------------


def test_the_first_label_in_a_path_counts() -> None:
    assert class_of("cat/dog.jpg", ["dog", "cat"]) == 0
    assert class_of("bird.jpg", ["dog", "cat"]) is None


def test_truth_without_labels_is_the_number_of_the_picture() -> None:
    truth = Truth(["cat", "dog", "car"], counted=True)
    assert [int(truth.of("cat.jpg", i).argmax()) for i in (0, 1, 2, 3)] == [0, 1, 2, 0]


# --- training on what is more than one class a picture ------------------------------------------------------------

TRAIN = """[net]
batch=8
subdivisions=2
width=12
height=12
channels=3
max_crop=14
learning_rate=0.2
decay=0
max_batches=40
{more}

[avgpool]

[connected]
output={outputs}
activation={activation}

"""


def paint(folder: Path, names: list[str]) -> None:
    """Pictures with a stripe of each colour that their names hold, and `list.txt` of them."""
    rng = np.random.default_rng(0)
    for name in names:
        stripes = [np.full((24, 24, 3), COLORS[color], int) for color in name.split("_")[:-1]]
        noisy = np.concatenate(stripes, 1) + rng.integers(-40, 40, (24, 24 * len(stripes), 3))
        cv2.imwrite(f"{name}.png", cv2.resize(np.clip(noisy, 0, 255).astype(np.uint8), (24, 24)))
    Path("list.txt").write_text("".join(f"{name}.png\n" for name in names))


def train(name: str, head: str, labels: list[str], activation: str = "linear", more: str = "") -> TrainResult:
    Path(f"{name}.cfg").write_text(TRAIN.format(outputs=len(labels), activation=activation, more=more) + head)
    Path(f"{name}.names").write_text("".join(f"{label}\n" for label in labels))
    Path(f"{name}.data").write_text(
        f"classes={len(labels)}\ntrain=list.txt\nvalid=list.txt\nlabels={name}.names\nbackup=backup\ntop=2\n"
    )
    return train_classifier(f"{name}.data", f"{name}.cfg", evaluate=True, workers=0, rehearse=False, sinks=[])


def test_several_classes_a_picture_are_learnt(place) -> None:
    pairs = [("red", "green"), ("green", "blue"), ("blue", "red")]
    paint(place, [f"{a}_{b}_{i}" for i in range(4) for a, b in pairs])
    train("multi", "[cost]\ntype=sse\n", list(COLORS), "logistic")
    classifier = Classifier("multi.cfg", "backup/multi_final.weights", list(COLORS))
    for pair in pairs:
        found = classifier(f"{pair[0]}_{pair[1]}_0.png", top=3)
        assert {c.name for c in found[:2]} == set(pair)
        assert found[1].probability > found[2].probability + 0.05


def test_a_class_tree_is_learnt_and_says_the_parents(place) -> None:
    Path("t.tree").write_text("warm -1\ncold -1\nred 0\ngreen 1\nblue 1\n")
    paint(place, [f"{color}_{i}" for i in range(4) for color in COLORS])
    result = train("tree", "[softmax]\ntree=t.tree\n", ["warm", "cold", *COLORS])
    assert result.map == 1
    best = Classifier("tree.cfg", "backup/tree_final.weights")("blue_1.png", top=2)
    assert [(c.name, c.parent) for c in best] == [("cold", "Root"), ("blue", "cold")]
    assert best[0].probability > best[1].probability > 0.5


def test_unsupervised_pairs_with_mixing_train(place) -> None:
    paint(place, [f"{color}_{i}" for i in range(2) for color in COLORS])
    result = train("pairs", "[softmax]\n", list(COLORS), more="unsupervised=1\ncontrastive=1\ncutmix=1\nmosaic=1")
    assert result.iteration == 40
    assert np.isfinite(result.avg_loss)
