"""Measuring a detector over a list: batches, unreadable pictures, memory, parts; recall's counting."""

import re

import numpy as np
import pytest
import torch
from conftest import golden, shared

from darknetpy.data.evaluation import EvaluationImages
from darknetpy.detections import Detections
from darknetpy.evaluation import report, run_evaluation, score
from darknetpy.evaluation.evaluator import collect, evaluate
from darknetpy.evaluation.recall import Recall, run_recall
from darknetpy.images import load_image, resize_image, save_image
from darknetpy.parallel import Single


class Painter:
    """A predictor that finds one box where a picture is white, of the class that the box's colour names.

    It refuses batches larger than `room`, as a device without memory does.
    """

    names, classes = ("red", "green", "blue"), 3

    def __init__(self, room: int = 1000):
        self.room, self.batches = room, []

    def predict(self, batch, sizes, thresh, nms, hier, relative):
        if len(batch) > self.room:
            raise torch.cuda.OutOfMemoryError("no memory")
        self.batches.append(len(batch))
        return [self.look(picture) for picture in batch]

    def look(self, picture) -> Detections:
        if picture.max() < 0.5:
            return Detections.empty(3)
        color = int(picture.amax((1, 2)).argmax())
        y, x = (picture[color] > 0.5).nonzero(as_tuple=True)
        side = picture.shape[1]
        low, high = torch.stack([x.min(), y.min()]), torch.stack([x.max(), y.max()]) + 1
        box = torch.cat([(low + high) / 2, (high - low).float()]) / side
        probs = torch.zeros(1, 3)
        probs[0, color] = 0.5 + float(picture.mean())
        return Detections(box[None], torch.ones(1), probs, self.names)


@pytest.fixture
def pictures(tmp_path, monkeypatch) -> EvaluationImages:
    """Seven pictures of 32 x 32 with one coloured square each and its label; the fifth file is damaged."""
    monkeypatch.chdir(tmp_path)
    paths = []
    for i in range(7):
        image = np.zeros((32, 32, 3), np.uint8)
        image[4 : 12 + i, 8:24, i % 3] = 255
        paths.append(str(tmp_path / f"{i}.png"))
        save_image(paths[-1], image)
        (tmp_path / f"{i}.txt").write_text(f"{i % 3} 0.5 {(16 + i) / 64} 0.5 {(8 + i) / 32}\n")
    (tmp_path / "4.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    return EvaluationImages(paths, lambda picture: resize_image(picture, 32, 32))


def test_unreadable_picture_counts_as_missed_and_is_noted(pictures, tmp_path, caplog):
    result = run_evaluation(Painter(), pictures, batch=3, progress=False)
    assert (result.tp, result.fp, result.fn, result.images) == (6, 0, 1, 7)
    assert [c.ap for c in result.classes] == [1, 0.5, 1]
    assert result.average_iou == pytest.approx(1)
    assert "4.png" in caplog.text
    assert (tmp_path / "bad.list").read_text() == f"{tmp_path / '4.png'}\n"


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 100])
def test_result_does_not_depend_on_the_batch(pictures, batch):
    painter = Painter()
    result = run_evaluation(painter, pictures, batch=batch, progress=False)
    assert report(result) == report(run_evaluation(Painter(), pictures, batch=4, progress=False))
    assert painter.batches == [min(batch, 7)] * -(-7 // batch), "every pass has the same size"


def test_batch_shrinks_until_it_fits_the_device(pictures):
    painter = Painter(room=2)
    result = run_evaluation(painter, pictures, batch=7, progress=False)
    assert result.tp == 6 and painter.batches == [1] * 7


def test_picture_that_never_fits_is_an_error(pictures):
    with pytest.raises(torch.cuda.OutOfMemoryError):
        run_evaluation(Painter(room=0), pictures, batch=2, progress=False)


def test_shares_of_several_processes_make_the_whole(pictures):
    shares = []
    for rank in (0, 1):
        replica = Single()
        replica.rank, replica.size = rank, 2
        shares.append(collect(Painter(), pictures, 2, False, replica))
    merged = shares[1].merge([shares[0]])
    whole = collect(Painter(), pictures, 2, False)
    names = list(Painter.names)
    assert report(score(merged, names, 0.5, 0.25, 0)) == report(score(whole, names, 0.5, 0.25, 0))
    np.testing.assert_array_equal(merged.table().image, whole.table().image)


def test_unknown_class_in_a_label_file_is_said(pictures, tmp_path, caplog):
    (tmp_path / "0.txt").write_text("7 0.5 0.5 0.1 0.1\n")
    result = run_evaluation(Painter(), pictures, batch=3, progress=False)
    assert result.invalid == 1 and result.unique_truth_count == 6
    assert re.search(r"0\.txt: 1 labels have a class outside 0\.\.2", caplog.text)


def test_recall_by_hand():
    """Of two truths one is found by a box of any class; a weaker box on the same place is suppressed."""
    counts = Recall()
    truths = np.float32([[0.5, 0.5, 0.2, 0.2], [0.2, 0.2, 0.1, 0.1]])
    boxes = torch.tensor([[0.5, 0.5, 0.2, 0.2], [0.5, 0.51, 0.2, 0.2], [0.9, 0.9, 0.1, 0.1], [0.1, 0.9, 0.1, 0.1]])
    counts.add(Detections(boxes, torch.tensor([0.9, 0.8, 0.5, 0.0005]), torch.ones(4, 2)), truths)
    assert (counts.total, counts.correct, counts.proposals) == (2, 1, 2)
    assert counts.line() == "    0     1     2\tRPs/Img: 2.00\tIOU: 50.00%\tRecall:50.00%"
    counts.add(Detections.empty(2), truths[:0])
    assert counts.line() == "    1     1     2\tRPs/Img: 1.00\tIOU: 50.00%\tRecall:50.00%"


def test_recall_without_any_truth_is_zero():
    counts = Recall()
    counts.add(Detections.empty(2), np.zeros((0, 4), np.float32))
    assert counts.line() == "    0     0     0\tRPs/Img: 0.00\tIOU: 0.00%\tRecall:0.00%"


def test_layers_that_remember_get_picture_after_picture(tmp_path, monkeypatch):
    """A history layer would mix the pictures of a batch."""
    from darknetpy.evaluation.evaluator import for_each
    from darknetpy.inference import Detector

    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.cfg").write_text(
        "[net]\nwidth=32\nheight=32\nchannels=3\n[history]\nhistory_size=2\n"
        "[convolutional]\nfilters=6\nsize=1\nactivation=linear\n[yolo]\nmask=0\nanchors=8,8\nnum=1\nclasses=1\n"
    )
    for i in range(3):
        save_image(tmp_path / f"{i}.png", np.full((32, 32, 3), 80 * i, np.uint8))
    detector = Detector(tmp_path / "net.cfg")
    images = EvaluationImages([str(tmp_path / f"{i}.png") for i in range(3)], detector.prepare, labels=False)
    sizes, predict = [], detector.predict

    def spy(batch, *rest):
        sizes.append(len(batch))
        return predict(batch, *rest)

    monkeypatch.setattr(detector, "predict", spy)
    for_each(detector, images, lambda sample, found: None, 0.5, 0.45, batch=3)
    assert sizes == [1, 1, 1]


@pytest.fixture(scope="module")
def fastest():
    from darknetpy.inference import Detector

    folder = shared("models", "yolo-fastest-1.1")
    return Detector(folder / "yolo-fastest-1.1.cfg", folder / "yolo-fastest-1.1.weights", folder / "coco.names")


def data_file(tmp_path) -> str:
    (tmp_path / "valid.txt").write_text(
        "".join(f"{golden('map', line)}\n" for line in golden("map", "valid.txt").read_text().split())
    )
    names = shared("models", "yolo-fastest-1.1", "coco.names")
    (tmp_path / "obj.data").write_text(f"valid = {tmp_path / 'valid.txt'}\nnames = {names}\n")
    return str(tmp_path / "obj.data")


def test_real_network_reaches_darknets_map(fastest, tmp_path):
    """JPEGs are decoded by another library here, which moves boxes by up to 0.002: see the reference data's text."""
    result = evaluate(data_file(tmp_path), fastest, progress=False)
    assert result.map == pytest.approx(0.067135, abs=0.002)
    assert abs(result.tp - 42) <= 2 and abs(result.detections_count - 1637) < 0.02 * 1637
    assert result.unique_truth_count == 73


def test_real_network_reaches_darknets_recall(fastest):
    paths = [str(golden("map", line)) for line in golden("map", "valid.txt").read_text().split()]
    lines = []
    run_recall(fastest, EvaluationImages(paths, lambda p: resize_image(p, 320, 320)), lines.append)
    theirs = [
        line for line in golden("map", "stdout", "recall.stderr.txt").read_text().splitlines() if "RPs/Img" in line
    ]
    for ours, line in zip(lines, theirs, strict=True):
        (a, b) = (np.array(re.findall(r"[0-9.]+", text), float) for text in (ours, line))
        assert a[[0, 2]].tolist() == b[[0, 2]].tolist()
        np.testing.assert_allclose(a[[1, 3, 4, 5]], b[[1, 3, 4, 5]], atol=3)


def test_valid_finds_what_darknet_found(fastest):
    """Each of Darknet's records over the usual threshold has one of ours, nearly the same in place and score."""
    import json

    from darknetpy.evaluation.result_files import coco_category, coco_image_id
    from darknetpy.evaluation.valid import collect as collect_valid

    paths = [str(golden("map", line)) for line in golden("map", "valid_subset.txt").read_text().split()]
    found = collect_valid(fastest, EvaluationImages(paths, fastest.prepare, labels=False))
    corners = found.clipped(0)
    ours: dict[tuple, list] = {}
    for image, class_id, prob, box in zip(found.image, found.class_id, found.prob, corners, strict=True):
        ours.setdefault((coco_image_id(paths[image]), coco_category(class_id)), []).append((*box, prob))
    width = {coco_image_id(path): load_image(path).shape[2] for path in paths}
    for record in json.loads(golden("map", "valid", "coco", "coco_results.json").read_text()):
        if record["score"] > 0.25:
            x, y, w, h = record["bbox"]
            theirs = np.array([x, y, x + w, y + h, record["score"]])
            near = np.abs(np.array(ours[record["image_id"], record["category_id"]]) - theirs)
            allowed = [0.01 * width[record["image_id"]]] * 4 + [0.02]
            assert (near <= allowed).all(1).any(), record
