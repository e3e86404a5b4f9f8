"""Bad input gets one sentence with file, line, value and remedy; exit status 1, and nothing is half-written."""

from __future__ import annotations

import subprocess

import cv2
import numpy as np
import pytest
import torch
from small import CFG, data_set, picture

from darknetpy import Network
from darknetpy.cli.main import main
from darknetpy.images import load_image

TRAIN = ["detector", "train", "obj.data", "tiny.cfg", "-nogpu", "-workers", "0", "-dont_show", "-quiet"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the small data set, as working directory."""
    monkeypatch.chdir(data_set(tmp_path))
    return tmp_path


@pytest.fixture
def weights(place):
    torch.manual_seed(0)
    Network("tiny.cfg").save_weights("tiny.weights")
    return "tiny.weights"


def said(capfd, words: list[str], status: int = 1) -> str:
    """Run a command, check its exit status; what it said on stderr (and, for the sentence's sake, stdout)."""
    capfd.readouterr()
    assert main(words) == status
    captured = capfd.readouterr()
    assert "Traceback" not in captured.err
    return captured.err + captured.out


def change(place, old: str, new: str) -> None:
    assert old in CFG
    (place / "tiny.cfg").write_text(CFG.replace(old, new, 1))


DETECT = ["detector", "test", "obj.data", "tiny.cfg", "", "img/0.png", "-quiet", "-dont_show"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["detector", "test", "no.data", "tiny.cfg", "w", "img/0.png"], "Couldn't open file: no.data"),
        (["detector", "test", "obj.data", "no.cfg", "w", "img/0.png"], "Couldn't open file: no.cfg"),
        (["detector", "test", "obj.data", "tiny.cfg", "no.weights", "img/0.png"], "Couldn't open file: no.weights"),
        (["detector", "map", "obj.data", "tiny.cfg", "no.weights"], "Couldn't open file: no.weights"),
        (["detector", "tset", "obj.data", "tiny.cfg"], "did you mean `detector test`?"),
        (["detector", "test", "obj.data", "tiny.cfg", "-tresh", ".5"], "unknown flag -tresh; did you mean -thresh?"),
        (["detector", "test", "obj.data", "tiny.cfg", "img/0.png", "-thresh"], "-thresh needs a value"),
        (["detector", "test", "obj.data"], "usage: darknetpy detector test [data] [cfg]"),
        (["export", "tiny.cfg", "a.weights"], "usage: darknetpy export [cfg] [weights] [out]"),
        (
            [*DETECT, "-set", "yollo.classes=3"],
            "-set names a section that tiny.cfg does not have ('yollo.classes=3'); did you mean yolo?",
        ),
        ([*DETECT, "-set", "yolo#7.classes=3"], "it has 1 [yolo] sections, counted from 0"),
        ([*DETECT, "-set", "net.width=abc"], "tiny.cfg, -set net.width=abc: width=abc holds no number and counts as 0"),
        ([*DETECT, "-thresh", "25"], "-thresh is a share, not a percentage (25.0); for example -thresh 0.25"),
        (["detector", "map", "obj.data", "tiny.cfg", "-iou_thresh", "75"], "-iou_thresh is a share"),
        (["detector", "map", "objs.data", "tiny.cfg"], "Couldn't open file: objs.data; did you mean obj.data?"),
        (["detector", "map", "no/obj.data", "tiny.cfg"], "Couldn't open file: no/obj.data; there is no folder no"),
        (["detector", "map", "img/q", "tiny.cfg"], "Couldn't open file: img/q; looked for in "),
    ],
)
def test_a_command_that_cannot_work(place, capfd, words, sentence) -> None:
    assert sentence in said(capfd, words)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("filters=21", "filters=18", "layer 3, line 36: filters=18, needs 21 = (2+5)*3"),
        ("classes=2", "classes=3", "layer 3, line 36: filters=21, needs 24 = (3+5)*3"),
        ("mask=0,1,2", "mask=0,1,3", "layer 4, line 39: mask=3 is outside num=3 anchors; use 0 to 2"),
        ("20,20, 40,40", "20,20", "layer 4, line 39: anchors= has 4 numbers, num=3 needs 6; give num= pairs"),
        ("[maxpool]\nsize=2\nstride=2", "[route]\nlayers=-3", "layer 1, line 21: layers=-3 names layer -2"),
        ("[maxpool]\nsize=2\nstride=2", "[shortcut]\nfrom=5", "layer 1, line 21: from=5 names layer 5"),
        ("[maxpool]", "[maxpol]", "line 20: layer 1: unknown section [maxpol]; did you mean [maxpool]?"),
        ("width=64", "width=0", "No input parameters supplied: width=0, height=64, channels=3"),
        ("policy=constant", "policy=steps", "STEPS policy must have steps and scales"),
        ("filters=8", "filters=2000000000", "layer 0, line 12: [convolutional] would hold 2048000000000 numbers"),
    ],
)
def test_a_cfg_that_cannot_be_built(place, capfd, old, new, sentence) -> None:
    change(place, old, new)
    text = said(capfd, DETECT)
    assert sentence in text
    assert "tiny.cfg" in text
    assert not (place / "predictions.jpg").exists()


def test_a_web_page_is_no_cfg(place, capfd) -> None:
    (place / "tiny.cfg").write_text("<!DOCTYPE html>\n<html><body>404</body></html>\n")
    assert "tiny.cfg: is a web page (HTML), not a cfg; download the raw file" in said(capfd, DETECT)


def test_weights_for_another_network(place, weights, capfd) -> None:
    data = (place / weights).read_bytes()
    words = ["detector", "test", "obj.data", "tiny.cfg", weights, "img/0.png", "-quiet"]
    (place / weights).write_bytes(data + b"\0" * 40)
    text = said(capfd, words)
    assert "is longer than the network" in text
    assert f"expected {len(data)} bytes for this cfg, the file has {len(data) + 40}" in text
    (place / weights).write_bytes(data[:-40])
    text = said(capfd, words)
    assert "ends inside layer 3 [convolutional]" in text
    assert f"the file has {len(data) - 40}" in text


def test_strict_takes_weights_of_another_length_with_a_warning(place, weights, capfd) -> None:
    data = (place / weights).read_bytes()
    words = ["detector", "test", "obj.data", "tiny.cfg", weights, "img/0.png", "-quiet", "-strict"]
    for changed, sentence in ((data + b"\0" * 40, "is longer than"), (data[:-40], "ends inside layer 3")):
        (place / weights).write_bytes(changed)
        assert sentence in said(capfd, words, status=0)


def test_weights_cut_at_a_layer_are_a_warning(place, weights, capfd) -> None:
    network = Network("tiny.cfg")
    network.save_weights("tiny.conv.3", cutoff=3)
    text = said(capfd, ["detector", "test", "obj.data", "tiny.cfg", "tiny.conv.3", "img/0.png", "-quiet"], status=0)
    assert "ends before layer 3 of 5: from there on layers keep their initial values" in text
    assert "Loaded 3 layers" in text


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff\xe0 no picture", b"text"])
def test_a_single_unreadable_image_ends_with_1_and_leaves_predictions_alone(place, weights, capfd, content) -> None:
    (place / "bad.jpg").write_bytes(content)
    (place / "predictions.jpg").write_bytes(b"old")
    text = said(capfd, ["detector", "test", "obj.data", "tiny.cfg", weights, "bad.jpg", "-quiet"])
    assert "Cannot load image bad.jpg" in text
    assert (place / "predictions.jpg").read_bytes() == b"old"


def test_unreadable_images_in_a_list_are_passed_over(place, weights, capfd, monkeypatch) -> None:
    import io

    cv2.imwrite("whole.jpg", picture(w=200, h=200))
    (place / "half.jpg").write_bytes((place / "whole.jpg").read_bytes()[:2000])
    (place / "empty.jpg").write_bytes(b"")
    monkeypatch.setattr("sys.stdin", io.StringIO("empty.jpg\r\n\n\nhalf.jpg\nimg/0.png\n"))
    text = said(capfd, ["detector", "test", "obj.data", "tiny.cfg", weights, "-quiet"], status=0)
    assert "Cannot load image empty.jpg" in text
    assert "Cannot load image half.jpg" in text
    assert "img/0.png: Predicted in" in text
    assert "2 of 3 images could not be read; bad.list has their names" in text
    assert (place / "bad.list").read_text().splitlines() == ["empty.jpg", "half.jpg"]


@pytest.mark.parametrize(
    ("words", "data", "sentence"),
    [
        (["-map"], "classes=2\ntrain=list.txt\nnames=obj.names\n", "obj.data: has no valid= list for -map"),
        (["-map"], "train=list.txt\nvalid=no.txt\nnames=obj.names\n", "There is no no.txt file for mAP calculation"),
        (["-map"], "train=list.txt\nvalid=list.txt\nnames=three.names\n", "three.names: 3 names, but classes=2"),
        ([], "train=list.txt\nnames=obj.names\nbackup=obj.names/x\n", "obj.names/x: the folder cannot be written"),
        (
            [],
            "train=no.txt\nnames=obj.names\nbackup=backup\n",
            "Couldn't open file: no.txt; train= in obj.data names it",
        ),
    ],
)
def test_a_run_that_would_fail_later_does_not_begin(place, capfd, words, data, sentence) -> None:
    (place / "three.names").write_text("a\nb\nc\n")
    (place / "obj.data").write_text(data)
    text = said(capfd, [*TRAIN, *words])
    assert sentence in text
    assert "avg loss" not in text
    assert not list(place.glob("backup/*"))


def test_a_word_that_reaches_several_sections_is_remarked_on_once(place, capfd) -> None:
    text = said(capfd, [*DETECT, "-set", "yolo.clases=3"], status=0)
    assert text.count("clases=3 is not used by [yolo]; did you mean classes=?") == 1


@pytest.mark.parametrize("command", ["map", "recall", "valid", "train"])
def test_pictures_none_of_which_can_be_read_end_a_command_before_it_begins(place, weights, capfd, command) -> None:
    for path in (place / "list.txt").read_text().split():
        (place / path).write_bytes(b"no picture")
    words = TRAIN if command == "train" else ["detector", command, "obj.data", "tiny.cfg", weights]
    text = said(capfd, words)
    assert "list.txt: 0 of " in text
    assert "it is no picture that OpenCV knows" in text
    assert not list(place.glob("backup/*"))


def test_keys_of_the_data_file_that_look_like_others_are_remarked_on(place, weights, capfd) -> None:
    (place / "obj.data").write_text("clases=2\ntrian=list.txt\nvalid=list.txt\nnames=obj.names\nowner=me\n")
    text = said(capfd, TRAIN)
    assert "obj.data, line 1: clases= is not used; did you mean classes=?" in text
    assert "obj.data, line 2: trian= is not used; did you mean train=?" in text
    assert "owner" not in text
    assert "Couldn't open file: data/train.txt; obj.data has no train=" in text
    assert "is not used" not in said(capfd, [*TRAIN, "-strict"])


def test_classes_of_the_data_file_are_compared_with_the_networks(place, weights, capfd) -> None:
    (place / "obj.data").write_text("classes=5\ntrain=list.txt\nvalid=list.txt\nnames=obj.names\n")
    text = said(capfd, ["detector", "map", "obj.data", "tiny.cfg", weights], status=0)
    assert "obj.data: classes=5, but classes=2 in tiny.cfg; make them equal" in text


def test_names_must_match_classes_for_map(place, weights, capfd) -> None:
    (place / "obj.names").write_text("a\nb\nc\n")
    assert "obj.names: 3 names, but classes=2 in tiny.cfg" in said(
        capfd, ["detector", "map", "obj.data", "tiny.cfg", weights]
    )


@pytest.mark.parametrize(
    ("batch", "subdivisions", "sentence"),
    [
        (6, 4, "batch=6 is not divisible by subdivisions=4; use subdivisions=3"),
        (2, 4, "batch=2 is less than subdivisions=4"),
    ],
)
def test_batch_arithmetic(place, capfd, batch, subdivisions, sentence) -> None:
    text = said(capfd, [*TRAIN, "-set", f"net.batch={batch}", f"net.subdivisions={subdivisions}"])
    assert sentence in text
    said(capfd, [*DETECT, "-set", f"net.batch={batch}", f"net.subdivisions={subdivisions}"], status=0)


def test_the_block_for_testing_trains_with_a_warning(place, capfd) -> None:
    """Darknet, and strict, refuses it."""
    words = [*TRAIN, "-set", "net.batch=1", "net.subdivisions=1", "net.max_batches=6"]
    assert "batch=1 is very small" in said(capfd, words, status=0)
    trained = Network("tiny.cfg", "backup/tiny_final.weights")
    assert all(torch.isfinite(tensor).all() for tensor in trained.state_dict().values())
    assert "batch=1 cannot be trained with; use batch=64" in said(capfd, [*words, "-strict"])


def test_a_remark_names_what_the_command_line_changed_and_comes_once(place, capfd) -> None:
    text = said(capfd, [*TRAIN, "-set", "net.batch=2", "convolutional#2.filters=20"])
    assert "tiny.cfg: layer 3, -set convolutional#2.filters=20: filters=20, needs 21 = (2+5)*3" in text
    text = said(capfd, [*TRAIN, "-set", "net.batch=2"], status=0)
    assert text.count("very small") == 1
    assert "tiny.cfg, -set net.batch=2: batch=2 is very small" in text


def test_names_shorter_than_classes_are_filled_up_in_test(place, weights, capfd) -> None:
    (place / "obj.names").write_text("only\n")
    text = said(
        capfd, ["detector", "test", "obj.data", "tiny.cfg", weights, "img/0.png", "-thresh", "0", "-quiet"], status=0
    )
    assert "class_1: " in text


def test_a_size_that_is_no_multiple_of_32_is_a_warning(place, capfd) -> None:
    text = said(capfd, [*[w for w in DETECT if w != "-quiet"], "-set", "net.width=72"], status=0)
    assert "width=72 and height=64 in cfg-file must be divisible by 32" in text


def test_wrong_label_rows_are_said_and_training_goes_on(place, capfd) -> None:
    (place / "img/0.txt").write_text("9 .5 .5 .2 .2\n0 .5 .5\n1 .4 .4 .3 .3\n")
    (place / "img/1.txt").write_text("0 1.5 .5 .2 .2\n")
    (place / "img/2.txt").unlink()
    (place / "img/3.txt").write_text("")
    (place / "img/4.png").write_bytes(b"")
    text = said(capfd, [*TRAIN, "-set", "net.max_batches=12"], status=0)
    assert "class_id = 9. But class_id should be [from 0 to 1]" in text
    assert "Can't open label file" in text
    assert "Cannot load image img/4.png" in text
    assert (place / "backup/tiny_final.weights").exists()
    assert "img/4.png" in (place / "bad.list").read_text()
    assert "class_id = 9" in (place / "bad_label.list").read_text()


def test_kinds_of_pictures_are_brought_to_three_channels(tmp_path) -> None:
    image = picture()
    cv2.imwrite(str(tmp_path / "rgb.png"), image)
    cv2.imwrite(str(tmp_path / "rgba.png"), np.dstack([image, np.full(image.shape[:2], 9, np.uint8)]))
    cv2.imwrite(str(tmp_path / "grey.png"), image[:, :, 1])
    cv2.imwrite(str(tmp_path / "deep.png"), image.astype(np.uint16) * 257)
    plain = load_image(tmp_path / "rgb.png")
    assert np.array_equal(load_image(tmp_path / "rgba.png"), plain)
    assert np.abs(load_image(tmp_path / "deep.png") - plain).max() <= 1 / 255
    grey = load_image(tmp_path / "grey.png")
    assert grey.shape == plain.shape
    assert np.array_equal(grey[0], grey[2])


def test_a_photo_taken_sideways_is_turned(tmp_path) -> None:
    cv2.imwrite(str(tmp_path / "a.jpg"), picture(w=80, h=60))
    data = (tmp_path / "a.jpg").read_bytes()
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    (tmp_path / "turned.jpg").write_bytes(data[:2] + segment + data[2:])
    straight, turned = load_image(tmp_path / "a.jpg"), load_image(tmp_path / "turned.jpg")
    assert turned.shape == (3, 80, 60)
    assert np.array_equal(turned, np.rot90(straight, -1, (1, 2)))


def test_help_and_a_cfg_error_do_not_load_torch(place) -> None:
    change(place, "filters=21", "filters=18")
    import sys

    code = (
        "import sys; from darknetpy.cli.main import main; main(%r); "
        "assert not any(name in sys.modules for name in ('torch', 'torch._C')), 'torch was loaded'"
    )
    for words in (
        ["--help"],
        ["help", "detector", "train"],
        TRAIN,
        DETECT,
        ["detector", "map", "obj.data", "tiny.cfg", "w"],
    ):
        done = subprocess.run([sys.executable, "-c", code % (words,)], capture_output=True, text=True, cwd=place)
        assert done.returncode == 0, done.stderr
