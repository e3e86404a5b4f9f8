"""Detecting from Python: what a `Detector` takes, what `Detections` give, and that writers lose nothing."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from small import CERTAIN, CFG, spot_network, spot_picture

from darknetpy import Detections, Detector, Network
from darknetpy.data.labels import labels_of
from darknetpy.errors import ConfigError, DataError, ImageError, MissingFileError
from darknetpy.inference.writers import (
    JsonWriter,
    detection_lines,
    frame_lines,
    json_frame,
    label_lines,
    save_labels,
)

SPOTS = {(0, 0): 0, (2, 1): 1}
CAT, DOG = (0.125, 0.125, 0.25, 0.125), (0.625, 0.375, 0.25, 0.125)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = spot_network(tmp_path_factory.mktemp("spot"))
    cv2.imwrite(str(folder / "a.png"), spot_picture(SPOTS))
    cv2.imwrite(str(folder / "none.png"), spot_picture({}))
    return folder


@pytest.fixture(scope="module")
def detector(place):
    return Detector(place / "spot.cfg", place / "spot.weights", place / "obj.names")


def seen(found: Detections) -> dict[str, tuple]:
    assert all(d.confidence == pytest.approx(CERTAIN, abs=1e-6) for d in found)
    return {d.name: tuple(round(v, 6) for v in d.box) for d in found}


# ---------------------------------------------------------------------------------------------- Detector


def kinds(place) -> dict[str, object]:
    """The same picture in every form that is taken."""
    bgr = spot_picture(SPOTS)
    planar = np.ascontiguousarray(bgr[:, :, ::-1].transpose(2, 0, 1), np.float32) / 255
    return {
        "path": place / "a.png",
        "text": str(place / "a.png"),
        "bytes": bgr,
        "bytes with alpha": np.dstack([bgr, np.full(bgr.shape[:2], 7, np.uint8)]),
        "a view": np.asfortranarray(bgr),
        "reversed": bgr[::-1, ::-1][::-1, ::-1],
        "floats": planar,
        "doubles": planar.astype(np.float64),
        "halves": planar.astype(np.float16),
        "tensor": torch.from_numpy(planar),
        "bfloat16": torch.from_numpy(planar).bfloat16(),
        "tensor with gradient": torch.from_numpy(planar).requires_grad_(),
    }


@pytest.mark.parametrize("kind", list(kinds(Path())))
def test_one_picture_in_every_form(place, detector, kind) -> None:
    found = detector(kinds(place)[kind])
    assert seen(found) == {"cat": CAT, "dog": DOG}
    assert (found.image_size, found.relative, found.names) == ((128, 128), True, ["cat", "dog"])


def test_a_grey_array_fills_three_channels(detector) -> None:
    grey = np.zeros((128, 128), np.uint8)
    grey[8:24, 8:24] = 255  # white is red and green and blue: a cat and a dog in one box
    for given in (grey, grey[:, :, None]):
        (found,) = detector(given)
        assert found.box == CAT
    assert detector(grey).probs[0].tolist() == pytest.approx([CERTAIN, CERTAIN])


def test_colour_arrays_become_grey_for_a_grey_network(place) -> None:
    cfg = (place / "spot.cfg").read_text().replace("channels=3", "channels=1")
    (place / "grey.cfg").write_text(cfg)
    grey = Detector(place / "grey.cfg")
    shape = grey.prepare(grey._picture(np.zeros((10, 20, 3), np.uint8))).shape
    assert shape == (1, 64, 64)
    white = grey._picture(np.full((2, 2, 3), 255, np.uint8))
    assert np.allclose(white, 1, atol=1e-6)
    assert grey._picture(np.uint8([[[255, 0, 0]]]))[0, 0, 0] == pytest.approx(0.114)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((10, 20, 3), np.float32),
        np.zeros((4, 10, 20), np.float32),
        np.zeros((10, 20), np.float32),
        np.zeros((1, 3, 10, 20), np.float32),
        torch.zeros(2, 3, 8, 8),
        np.zeros((0, 20, 3), np.uint8),
        np.zeros((3, 0, 5), np.float32),
        np.zeros((10, 20, 3), np.int64),
        np.zeros((10, 20, 2), np.uint8),
        torch.zeros(3, 8, 8, dtype=torch.int32),
        None,
        7,
        [[1, 2], [3, 4]],
    ],
    ids=lambda image: f"{type(image).__name__}{getattr(image, 'shape', image)}",
)
def test_what_is_no_picture_is_an_image_error(detector, image) -> None:
    with pytest.raises(ImageError, match="an image must be "):
        detector(image)


def test_a_file_that_cannot_be_read(detector, place) -> None:
    (place / "bad.jpg").write_bytes(b"text")
    for name in ("no.jpg", "bad.jpg"):
        with pytest.raises(ImageError, match=f"Cannot load image .*{name}"):
            detector(place / name)


def test_several_pictures_are_one_batch_and_each_as_if_alone(place, detector) -> None:
    small = cv2.resize(spot_picture({(3, 3): 1}), (77, 50))
    images = [place / "a.png", place / "none.png", small, kinds(place)["tensor"]]
    together = detector.detect(images)
    alone = [detector(image) for image in images]
    assert [len(found) for found in together] == [2, 0, 1, 2]
    assert [found.image_size for found in together] == [(128, 128), (128, 128), (77, 50), (128, 128)]
    for a, b in zip(together, alone, strict=True):
        assert torch.allclose(a.boxes, b.boxes)
        assert torch.allclose(a.probs, b.probs, atol=1e-6)


def test_nothing_in_nothing_out(place, detector) -> None:
    assert detector.detect([]) == []
    found = detector(place / "none.png")
    assert (len(found), list(found), repr(found)) == (0, [], "Detections(0: )")
    assert (found.boxes.shape, found.probs.shape) == ((0, 4), (0, 2))
    assert detection_lines(found) == label_lines(found) == frame_lines(found) == []
    assert len(found.nms()) == len(found.above(0.1)) == len(found.to_pixels()) == 0


def test_thresholds(place, detector) -> None:
    assert len(detector(place / "a.png", thresh=0.0)) == 16
    found = detector(place / "a.png", thresh=0.99995)  # objectness passes, the product with the class does not
    assert (len(found), list(found)) == (2, [])
    assert len(detector(place / "a.png", thresh=0.99999)) == 0


def test_a_picture_leaves_no_trace_in_the_next(place, detector) -> None:
    first = detector(place / "a.png")
    detector(place / "none.png")
    assert torch.equal(detector(place / "a.png").boxes, first.boxes)
    assert seen(first) == {"cat": CAT, "dog": DOG}


def test_letterbox_from_argument_and_cfg(place) -> None:
    wide = spot_picture({(0, 1): 0, (2, 2): 1})[32:96]
    (place / "boxed.cfg").write_text((place / "spot.cfg").read_text().replace("[net]", "[net]\nletter_box=1"))
    for cfg, letter_box in (("spot.cfg", True), ("boxed.cfg", None)):
        found = Detector(place / cfg, place / "spot.weights", letter_box=letter_box)(wide)
        assert sorted(tuple(round(v, 6) for v in d.box) for d in found) == [
            (0.125, 0.25, 0.25, 0.25),
            (0.625, 0.75, 0.25, 0.25),
        ]
    assert Detector(place / "boxed.cfg", letter_box=False).letter_box is False


def test_ways_to_give_a_network_and_names(place) -> None:
    network = Network(place / "spot.cfg", place / "spot.weights")
    network.train(True)
    detector = Detector(network, names=["Katze", "Hund"])
    assert not network.training
    assert seen(detector(place / "a.png")) == {"Katze": CAT, "Hund": DOG}
    assert Detector(place / "spot.cfg").names == ["class_0", "class_1"]
    small = Detector(place / "spot.cfg", overrides=["net.width=32", "net.height=32"])
    assert small.prepare(np.zeros((3, 9, 9), np.float32)).shape == (3, 32, 32)


def test_too_few_names_are_filled_up_with_a_warning(place, caplog) -> None:
    detector = Detector(place / "spot.cfg", place / "spot.weights", ["only"])
    assert detector.names == ["only", "class_1"]
    assert "there are 1 names for 2 classes" in caplog.text


def test_networks_that_cannot_detect(place) -> None:
    (place / "headless.cfg").write_text(CFG[: CFG.index("[yolo]")])
    with pytest.raises(ConfigError, match=r"headless\.cfg: has no detection layer"):
        Detector(place / "headless.cfg")
    with pytest.raises(MissingFileError, match=r"Couldn't open file: .*no\.weights"):
        Detector(place / "spot.cfg", place / "no.weights")
    with pytest.raises((MissingFileError, DataError), match=r"no\.names"):
        Detector(place / "spot.cfg", names=place / "no.names")


def test_neighbours_of_one_class_are_suppressed(place) -> None:
    """Boxes as large as the picture overlap; the first of equals stays, each class for itself."""
    everywhere = {(x, y): 0 for x in range(2) for y in range(2)} | {(3, 3): 1}
    detector = Detector(place / "spot.cfg", place / "spot.weights", overrides=["yolo.anchors=128,128"])
    assert len([d for d in detector(spot_picture(everywhere)) if d.confidence > 0]) == 2
    assert len(list(detector(spot_picture(everywhere), nms=0))) == 5


# ---------------------------------------------------------------------------------------------- Detections


def some(names=("cat", "dog", "dont_show_bird")) -> Detections:
    boxes = torch.tensor([[0.5, 0.5, 0.2, 0.4], [0.3, 0.3, 0.2, 0.2], [0.9, 0.9, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1]])
    probs = torch.tensor([[0.3, 0.6, 0.0], [0.9, 0.0, 0.0], [0.0, 0.0, 0.8], [0.0, 0.0, 0.0]])
    return Detections(boxes, torch.tensor([0.7, 0.9, 0.8, 0.1]), probs, list(names), (200, 100))


def test_iteration_is_strongest_first_without_hidden_and_empty_ones() -> None:
    found = some()
    assert len(found) == 4
    assert [(d.name, d.class_id) for d in found] == [("cat", 0), ("dog", 1)]
    first = next(iter(found))
    assert first.confidence == pytest.approx(0.9)
    assert first.objectness == pytest.approx(0.9)
    assert first.box == pytest.approx((0.3, 0.3, 0.2, 0.2))
    assert repr(found) == "Detections(2: cat 0.90, dog 0.60)"


def test_names_that_are_missing() -> None:
    found = some(names=("cat",))
    assert [d.name for d in found] == ["cat", "class_2", "class_1"]


def test_pixels() -> None:
    pixels = some().to_pixels()
    assert pixels.boxes[0].tolist() == pytest.approx([100, 50, 40, 40])
    assert not pixels.relative
    assert torch.equal(pixels.to_pixels().boxes, pixels.boxes)
    assert some().boxes[0].tolist() == pytest.approx([0.5, 0.5, 0.2, 0.4])


def test_selecting() -> None:
    found = some()
    assert found.above(0.5).probs.max(1).values.tolist() == pytest.approx([0.6, 0.9, 0.8])
    assert found.select(torch.tensor([3, 0])).objectness.tolist() == pytest.approx([0.1, 0.7])
    assert found.cpu() is found


def test_cat_pads_classes() -> None:
    few = Detections(torch.zeros(1, 4), torch.ones(1), torch.tensor([[0.5]]), ["cat"], (200, 100))
    together = Detections.cat([some(), few, Detections.empty(3)])
    assert together.probs.shape == (5, 3)
    assert together.probs[4].tolist() == [0.5, 0, 0]
    assert (together.names, together.image_size) == (["cat", "dog", "dont_show_bird"], (200, 100))
    assert Detections.cat([few]) is few


def test_correct_undoes_the_letterbox() -> None:
    """200 x 100 in 64 x 64 is 64 x 32, 16 rows down: the middle stays, heights double."""
    found = Detections(torch.tensor([[0.5, 0.5, 0.5, 0.25], [0.25, 0.25, 0.1, 0.1]]), torch.ones(2), torch.ones(2, 1))
    boxed = found.correct((200, 100), (64, 64), letter_box=True)
    assert boxed.boxes.tolist() == [pytest.approx([0.5, 0.5, 0.5, 0.5]), pytest.approx([0.25, 0.0, 0.1, 0.2])]
    plain = found.correct((200, 100), (64, 64), letter_box=False, relative=False)
    assert plain.boxes[0].tolist() == pytest.approx([100, 50, 100, 25])
    assert plain.image_size == (200, 100)


def test_suppression_by_class_and_by_objectness() -> None:
    boxes = torch.tensor([[0.5, 0.5, 0.4, 0.4], [0.52, 0.5, 0.4, 0.4], [0.5, 0.5, 0.38, 0.4], [0.9, 0.9, 0.1, 0.1]])
    probs = torch.tensor([[0.6, 0.0], [0.9, 0.0], [0.0, 0.5], [0.4, 0.0]])
    found = Detections(boxes, torch.tensor([0.6, 0.9, 0.5, 0.4]), probs)
    by_class = found.nms(thresh=0.45)
    assert sorted(d.confidence for d in by_class) == pytest.approx([0.4, 0.5, 0.9])
    assert sorted(d.confidence for d in found.nms_objectness(0.45)) == pytest.approx([0.4, 0.9])
    assert found.probs[0, 0] == pytest.approx(0.6)  # the original is as it was


# ---------------------------------------------------------------------------------------------- writers


def test_lines_say_best_class_first_then_the_others() -> None:
    assert detection_lines(some()) == ["cat: 90%", "dog: 60%", "cat: 30%"]
    assert frame_lines(some()) == ["cat: 30% , dog: 60% ", "cat: 90% "]
    assert detection_lines(some(), ext_output=True)[1] == (
        "dog: 60%\t(left_x:   80   top_y:   30   width:   40   height:   40)"
    )


def test_percent_is_rounded_half_to_even_on_the_double() -> None:
    for value, text in ((0.125, "12%"), (0.375, "38%"), (0.625, "62%")):
        found = Detections(torch.rand(1, 4), torch.ones(1), torch.tensor([[value]]), ["a"], (10, 10))
        assert detection_lines(found) == [f"a: {text}"]


def test_json_comes_back(tmp_path) -> None:
    found = some(names=('c"a\\t\n', "dög", "dont_show_bird"))
    with JsonWriter(tmp_path / "r.json") as writer:
        for path in ("a.png", 'dir\\"b".png', None):
            writer.write(found, path)
    frames = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert [frame.get("filename") for frame in frames] == ["a.png", 'dir\\"b".png', None]
    back = {(o["name"], o["class_id"]): o for o in frames[0]["objects"]}
    assert set(back) == {('c"a\\t\n', 0), ("dög", 1)}
    assert len(frames[0]["objects"]) == 3
    coordinates = back["dög", 1]["relative_coordinates"]
    assert list(coordinates) == ["center_x", "center_y", "width", "height"]
    assert list(coordinates.values()) == pytest.approx([0.5, 0.5, 0.2, 0.4], abs=1e-6)
    assert back["dög", 1]["confidence"] == pytest.approx(0.6, abs=1e-6)
    assert json.loads(json_frame(found, 7))["frame_id"] == 7


def test_json_is_whole_even_after_an_error(tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt), JsonWriter(tmp_path / "r.json") as writer:
        writer.write(some(), "a.png")
        assert (tmp_path / "r.json").stat().st_size > 100  # readable while the rest is computed
        raise KeyboardInterrupt
    assert len(json.loads((tmp_path / "r.json").read_text())) == 1


def test_labels_come_back(tmp_path) -> None:
    path = save_labels(some(), tmp_path / "a.png")
    assert path == str(tmp_path / "a.txt")
    labels = labels_of(str(tmp_path / "a.png"))
    assert labels.classes.tolist() == [1, 0]
    assert labels.boxes == pytest.approx(np.float32([[0.5, 0.5, 0.2, 0.4], [0.3, 0.3, 0.2, 0.2]]), abs=1e-4)


def test_label_paths_follow_darknets_rule(tmp_path) -> None:
    (tmp_path / "labels").mkdir()
    assert save_labels(some(), tmp_path / "JPEGImages/a.JPG") == str(tmp_path / "labels/a.txt")
    (tmp_path / "images").mkdir()
    assert save_labels(some(), tmp_path / "images/b.jpeg") == str(tmp_path / "images/b.txt")


def test_a_label_file_that_cannot_be_written_is_said(tmp_path) -> None:
    with pytest.raises(DataError, match="cannot be written: No such file or directory"):
        save_labels(some(), tmp_path / "nowhere/a.png")
