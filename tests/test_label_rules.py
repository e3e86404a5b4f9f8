"""What becomes of label files and lists as people have them: kept, clamped, left out, counted, and said once."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from small import CFG, data_set, picture

from darknetpy import Network
from darknetpy.cli.main import main
from darknetpy.config.datafile import label_path, read_data
from darknetpy.data import notes
from darknetpy.data.combine import Slot, combine
from darknetpy.data.detection import DetectionData, Request
from darknetpy.data.draws import MOSAIC, Augmentation, Draws, draw
from darknetpy.data.geometry import Crop
from darknetpy.data.labels import Labels, labels_of, within
from darknetpy.data.preview import Preview
from darknetpy.data.truth import fill_truth
from darknetpy.errors import DataError
from darknetpy.evaluation.anchors import calculate
from darknetpy.layers import read_structure
from darknetpy.training.learner import Learner

TRAIN = ["detector", "train", "obj.data", "tiny.cfg", "-nogpu", "-workers", "0", "-dont_show", "-quiet"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The small data set as working directory; nothing was said before."""
    monkeypatch.setattr(notes, "_told", set())
    notes.summary()
    monkeypatch.chdir(data_set(tmp_path))
    return tmp_path


def rows_of(text: str, most: int = 200, strict: bool = False, flip: bool = False) -> np.ndarray:
    """Truth rows of a label file for the whole picture, network 64 x 64, two classes."""
    Path("a.txt").write_text(text)
    rows, _ = fill_truth(labels_of("a.jpg", strict), Crop(80, 60, 0, 0, 0, 0), Draws(flip=flip), 64, 64, 2, most)
    return rows


def lines(name: str) -> list[str]:
    return Path(name).read_text().splitlines() if Path(name).exists() else []


# --- one label ---------------------------------------------------------------------------------------------------


def test_a_box_wider_than_the_picture_is_clamped_listed_and_kept(caplog):
    for _ in range(2):
        np.testing.assert_allclose(rows_of("0 .5 .5 1.2 .4\n")[:, :5], [[0.5, 0.5, 1.0, 0.4, 0]], atol=1e-6)
    assert lines("bad_label.list") == ["a.txt Wrong annotation: w = 1.200000"]
    assert [m.strip() for m in caplog.messages] == ["Wrong annotation: w = 1.200000, file: a.txt"]


def test_strict_clips_it_silently_as_darknet_does():
    assert rows_of("0 .5 .5 1.2 .4\n", strict=True)[0, 2] == 1
    assert not lines("bad_label.list")


def test_a_float_class_is_a_class_unless_strict():
    np.testing.assert_allclose(rows_of("1.0 .5 .6 .7 .4\n")[:, :5], [[0.5, 0.6, 0.7, 0.4, 1]], atol=1e-6)
    shifted = labels_of("a.jpg", strict=True)
    assert shifted.classes.tolist() == [1]
    np.testing.assert_allclose(shifted.boxes, [[0, 0.5, 0.6, 0.7]], atol=1e-7)


def test_x_of_1_is_in_the_last_cell_and_beyond_1_is_wrong():
    rows = rows_of("0 1.0 .5 .2 .2\n")
    np.testing.assert_allclose(rows[:, :4], [[0.95, 0.5, 0.1, 0.2]], atol=1e-6)
    assert not len(rows_of("0 1.2 .5 .2 .2\n"))
    assert lines("bad_label.list") == ["a.txt Wrong annotation: x = 0 or y = 0"]


@pytest.mark.parametrize("centre", ["1.01 .5", "-.01 .5", ".5 1.05", ".5 -.2"])
def test_a_centre_outside_the_picture_is_not_trained_on(place, centre):
    """Darknet, and strict, clips what of the box is inside; an evaluation counts the box."""
    Path("a.txt").write_text(f"0 {centre} .5 .5\n1 .5 .5 .2 .2\n")
    assert within(labels_of("a.jpg")).classes.tolist() == [1]
    x, y = map(float, centre.split())
    assert lines("bad_label.list") == [f"a.txt Wrong annotation: x = {x:f}, y = {y:f}"]
    assert len(labels_of("a.jpg")) == 2
    assert len(rows_of(f"0 {centre} .5 .5\n1 .5 .5 .2 .2\n", strict=True)) == 2


def test_a_truth_at_exactly_1_is_assigned_to_the_last_cell_by_the_loss(place):
    learner = Learner(Network("tiny.cfg", training=True))
    truth = torch.zeros(2, 1, 6)
    truth[0, 0] = torch.tensor([1.0, 1.0, 0.3, 0.3, 1, 1])
    mini = learner.accumulate(torch.zeros(2, 3, 64, 64), truth, 0, keep_all=True)
    delta = mini.heads[4].delta.reshape(2, 3, 7, 8, 8)
    assert torch.isfinite(delta).all()
    positive = (delta[0, :, :2].abs().sum((0, 1)) > 0).nonzero().tolist()
    assert positive == [[7, 7]]


def test_boxes_without_size_are_no_truth_and_no_anchor(place, caplog):
    assert len(rows_of("0 .5 .5 0 0\n1 .5 .5 .2 .2\n0 .5 .5 0 .3\n")) == 1
    (place / "img/0.txt").write_text("0 .5 .5 0 0\n0 .3 .3 0 .2\n")
    found = calculate(read_data("obj.data"), 1, 64, 64)
    assert len(found.sizes) == 5
    np.testing.assert_allclose(found.clusters.centres, [[24, 64 / 3]], rtol=1e-3)
    listed = [line for line in lines("bad_label.list") if "img/0.txt" in line]
    assert [line.split(" - ")[1].split(",")[0] for line in listed] == ["j = 0", "j = 1"]


def test_anchors_of_equal_boxes_are_equal(place):
    found = calculate(read_data("obj.data"), 3, 64, 64)
    np.testing.assert_allclose(found.clusters.centres, [[24, 64 / 3]] * 3, rtol=1e-3)
    assert found.clusters.average_iou == pytest.approx(1)


def test_only_boxes_without_size_give_no_anchors(place):
    for label in (place / "img").glob("*.txt"):
        label.write_text("0 .5 .5 0 0\n")
    with pytest.raises(DataError, match="0 boxes in the labels of 6 images give no 2 anchors"):
        calculate(read_data("obj.data"), 2, 64, 64)


# --- from picture to label file ----------------------------------------------------------------------------------


def put(*paths: str) -> None:
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("")


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("d/cat_images/x.jpg", "d/cat_images/x.txt"),
        ("d/images/train/images/x.jpg", "d/images/train/images/x.txt"),
        ("d/my_raw_image.jpg", "d/my_raw_image.txt"),
        ("d/raw/x.jpg", "d/raw/x.txt"),
        ("d/aaa.jpg.something.jpg", "d/aaa.jpg.something.txt"),
        ("d/x.JPG", "d/x.txt"),
        ("d/x.jpeg", "d/x.txt"),
        ("d/x.webp", "d/x.txt"),
        ("d/x.y.z.png", "d/x.y.z.txt"),
        ("d/images/train2017/x.jpg", "d/labels/train2017/x.txt"),
        ("d/JPEGImages/x.jpg", "d/labels/x.txt"),
    ],
)
def test_darknets_place_comes_first(image, label):
    assert label_path(image) == label
    put(label, "d/cat_labels/x.txt", "d/images/train/labels/x.txt", "d/labels/train/images/x.txt", "d/x.txt")
    assert label_path(image) == label


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("d/images/train/images/x.jpg", "d/images/train/labels/x.txt"),
        ("d/images/train/images/y.jpg", "d/labels/train/images/y.txt"),
        ("d/images/a/x.JPG", "d/labels/a/x.txt"),
        ("images/x.webp", "labels/x.txt"),
        ("d/JPEGImages/x.jpg", "d/JPEGImages/x.txt"),
    ],
)
def test_other_places_come_next_and_the_one_used_is_said_once(image, label, caplog):
    put(label)
    labels_of(image)
    labels_of(image.replace("x.", "x2."))
    put(label.replace("x.", "z."))
    labels_of(image.replace("x.", "z."))
    said = [message for message in caplog.messages if "labels are read from" in message]
    assert said == [
        f"labels are read from places like {label}, because {label_path(image, existing=False)}, where Darknet looks, "
        "doesn't exist"
    ]


def test_cat_images_never_becomes_cat_labels():
    put("d/cat_labels/x.txt", "d/labels/x.txt")
    assert label_path("d/cat_images/x.jpg") == "d/cat_images/x.txt"


# --- many boxes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "most"), [("", 200), ("max=100\n", 100), ("max=1000\n", 300)])
def test_max_is_honoured_and_the_surplus_counted(place, key, most):
    (place / "tiny.cfg").write_text(CFG.replace("jitter=.2\n", f"jitter=0\n{key}"))
    structure = read_structure("tiny.cfg")
    options = Augmentation.of(structure.net, structure.heads[-1])
    (place / "img/0.txt").write_text("".join(f"{i % 2} .5 .5 .{100 + i} .3\n" for i in range(300)))
    data = DetectionData(["img/0.png"], options)
    batch = data.batch(Request(0, 0, 64, 64, 3))
    assert [(rows[:, 0] > 0).sum() for rows in batch.truth] == [most] * 3
    kinds = [set(np.round(rows[:, 2], 4).tolist()) for rows in batch.truth]
    assert (kinds[0] == kinds[1]) is (most == 300), "the choice is random each time"
    told = notes.summary()
    assert told == ([] if most == 300 else [
        f"1 label files have more boxes than max={most} of the last head: each time so many are chosen at random; "
        "raise max="])  # fmt: skip


# --- mixup, mosaic, letter_box -----------------------------------------------------------------------------------


def test_mosaic_wins_over_mixup_and_says_so(place, caplog):
    (place / "tiny.cfg").write_text(CFG.replace("channels=3", "channels=3\nmosaic=1\nmixup=1"))
    structure = read_structure("tiny.cfg")
    assert Augmentation.of(structure.net, structure.heads[-1]).mode == MOSAIC
    assert "mixup=1 has no effect beside mosaic=1" in caplog.text
    assert main(TRAIN) == 0


def rectangle(rng: np.random.Generator, color: tuple[int, int, int]) -> tuple[np.ndarray, Labels]:
    """A black picture of random size with one rectangle, and its label."""
    ow, oh = (int(v) for v in rng.integers(40, 200, 2))
    bw, bh = int(rng.integers(12, 0.7 * ow)), int(rng.integers(12, 0.7 * oh))  # the mean colour stays a dark one
    left, top = int(rng.integers(0, ow - bw + 1)), int(rng.integers(0, oh - bh + 1))
    right, bottom = left + bw, top + bh
    image = np.zeros((oh, ow, 3), np.uint8)
    image[top:bottom, left:right] = color
    box = [(left + right) / 2 / ow, (top + bottom) / 2 / oh, (right - left) / ow, (bottom - top) / oh]
    return image, Labels(np.float32([box]), np.array([0]), np.float32([0]))


COLORS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)]


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize(
    ("letter_box", "jitter", "resize"), [(False, 0, 1), (True, 0, 1), (True, 0.2, 1), (True, 0, 1.5), (True, 0.3, 1.5)]
)
def test_each_box_of_a_mosaic_lies_on_its_object(bound, letter_box, jitter, resize):
    """Without letter_box only for pictures that need no padding: Darknet's estimate of it is kept there."""
    rng = np.random.default_rng(1)
    options = Augmentation(
        jitter=jitter, resize=resize, letter_box=letter_box, mode=MOSAIC, mosaic_bound=bound, classes=4
    )
    w, h, seen = 160, 128, 0
    for _ in range(60):
        cut = int(rng.integers(32, 129)), int(rng.integers(26, 103))
        slots = []
        for label, color in enumerate(COLORS):
            image, labels = rectangle(rng, color)
            labels.classes[:] = label
            slots.append(Slot(image, labels, draw(rng, options, True, 1)))
        canvas, truth = combine(slots, MOSAIC, w, h, cut, options)
        for x, y, bw, bh, label in truth[:, :5]:
            distance = np.abs(canvas.astype(int) - COLORS[int(label)]).max(2)
            ys, xs = np.nonzero(distance < 100)
            if len(xs) < 30:  # hardly anything of it is left
                continue
            found = np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
            box = np.array([(x - bw / 2) * w, (y - bh / 2) * h, (x + bw / 2) * w, (y + bh / 2) * h])
            assert np.abs(found - box).max() <= 2, (label, found, box)
            seen += 1
    assert seen > 100


# --- whole runs --------------------------------------------------------------------------------------------------


def said(capfd, words: list[str], status: int) -> str:
    capfd.readouterr()
    assert main(words) == status
    captured = capfd.readouterr()
    assert "Traceback" not in captured.err
    return captured.err + captured.out


def test_a_list_without_a_picture_is_an_error_before_anything_is_trained(place, capfd):
    (place / "list.txt").write_text("".join(f"nowhere/{i}.png\n" for i in range(7)))
    text = said(capfd, TRAIN, 1)
    assert "list.txt: 0 of 7 images readable ('nowhere/0.png'); start the program where the paths of the list" in text
    assert not list(place.glob("backup/*"))


def test_an_evaluation_without_a_picture_is_an_error_too_unless_strict(place, capfd):
    Network("tiny.cfg").save_weights("w.weights")
    (place / "list.txt").write_text("nowhere/0.png\n")
    words = ["detector", "map", "obj.data", "tiny.cfg", "w.weights", "-nogpu", "-quiet"]
    assert "list.txt: 0 of 1 images readable" in said(capfd, words, 1)
    assert "Cannot load image nowhere/0.png" in said(capfd, [*words, "-strict"], 0)


def test_a_list_of_damaged_pictures_is_an_error_too(place, capfd):
    for image in (place / "img").glob("*.png"):
        image.write_bytes(image.read_bytes()[:50])
    assert "0 of 6 images readable" in said(capfd, TRAIN, 1)
    assert sorted(set(lines("bad.list"))) == [f"img/{i}.png" for i in range(6)]


def test_one_readable_picture_among_many_is_enough(place):
    names = [f"none/{i}.png" for i in range(500)]
    data = DetectionData([*names, "img/3.png"], Augmentation(), seed=1)
    batch = data.batch(Request(0, 0, 32, 32, 4))
    assert batch.paths == ["img/3.png"] * 4


@pytest.mark.parametrize("workers", ["0", "2"])
def test_nothing_in_a_bad_data_set_ends_a_training(place, capfd, workers):
    """Empty labels, 300 boxes, boxes at x=1, wrong ids, empty and cut off pictures in both lists."""
    for i in range(6, 12):
        cv2.imwrite(f"img/{i}.jpg", picture(i))
    many = "".join(f"{i % 2} .5 .5 .3 .{100 + i}\n" for i in range(300))
    contents = {"0": "", "1": many, "2": "1 1.0 1.0 .2 .2\n", "3": "7 .5 .5 .2 .2\n-1 .5 .5 .2 .2\n", "4": many,
                "5": "0 .5 .5 1.2 .4\n0 1.5 .5 .2 .2\n", "6": "0 .5 .5 0 0\n", "9": "cat .5 .5 .1 .1\n"}  # fmt: skip
    for name, text in contents.items():
        Path(f"img/{name}.txt").write_text(text)
    Path("img/7.jpg").write_bytes(b"")
    Path("img/8.jpg").write_bytes(Path("img/8.jpg").read_bytes()[:-200])
    names = [f"img/{i}.{'png' if i < 6 else 'jpg'}\n" for i in range(12)]
    Path("list.txt").write_text("".join(names))
    words = [*TRAIN, "-map", "-set", "net.max_batches=24"]
    words[words.index("-workers") + 1] = workers
    text = said(capfd, words, 0)
    assert Path("backup/tiny_final.weights").exists()
    for once in ("Cannot load image img/7.jpg", "Cannot load image img/8.jpg", "class_id = 7", "w = 1.200000, file",
                 "Can't open label file. (This can be normal only if you use MSCOCO): img/10.txt",
                 "img/9.txt, line 1: `cat .5 .5 .1 .1`"):  # fmt: skip
        assert text.count(once) == 1, once
    bad = lines("bad.list")
    assert sorted(bad) == sorted(["img/7.jpg", "img/8.jpg", *(f"img/{i}.txt" for i in (7, 8, 10, 11))])
    wrong = lines("bad_label.list")
    assert len(wrong) == len(set(wrong))
    assert f"{len(bad)} images or label files could not be read: see bad.list" in text
    assert f"{len(wrong)} labels were wrong: see bad_label.list" in text
    assert "2 label files have more boxes than max=200" in text


def test_a_batch_of_nothing_but_empty_labels_trains(place, capfd):
    for label in (place / "img").glob("*.txt"):
        label.write_text("")
    said(capfd, TRAIN, 0)
    assert not lines("bad.list")


# --- what augmentation makes -------------------------------------------------------------------------------------


def test_show_imgs_writes_the_first_pictures_with_their_boxes(place, capfd):
    said(capfd, [*TRAIN, "-show_imgs", "-close_mosaic", "2", "-prefetch", "1", "-cache", "ram"], 0)
    written = sorted(path.name for path in (place / "augmented").iterdir())
    assert written == sorted(f"aug_{turn}_{row}.jpg" for turn in range(4) for row in range(4))


def test_a_preview_draws_boxes_where_the_truth_is():
    data = DetectionData(["img/0.png"], Augmentation(jitter=0, flip=False, classes=2))
    batch = data.batch(Request(0, 0, 80, 60, 1))
    drawn = Preview(2).drawn(batch.images[0], batch.truth[0])
    changed = (drawn != batch.images[0].transpose(1, 2, 0)).any(2)
    assert changed[15, 20:50].all() and changed[34, 20:50].all()
    assert changed[15:35, 20].all() and changed[15:35, 49].all()
    assert not changed[:15].any() and not changed[35:].any()


def test_a_preview_ends_when_it_cannot_write(place, caplog):
    data = DetectionData(["img/0.png"], Augmentation(classes=2))
    preview = Preview(2)
    (place / "augmented").rmdir()
    preview([data.batch(Request(0, 0, 64, 64, 2))])
    assert caplog.text.count("-show_imgs ends") == 1
    assert preview.left == 0
