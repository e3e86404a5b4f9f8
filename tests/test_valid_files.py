"""Result files of `detector valid` against those that Darknet wrote."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import golden
from test_average_precision import coco_names

from darknetpy.detections import Detections
from darknetpy.errors import DataError
from darknetpy.evaluation.result_files import (
    COCO_IDS,
    FORMATS,
    Found,
    coco_image_id,
    image_name,
    write_bdd,
    write_coco,
    write_imagenet,
    write_kitti,
    write_voc,
)
from darknetpy.evaluation.valid import join, pairs, read_map


@pytest.fixture(scope="module")
def darknets() -> tuple[list[dict], Found]:
    """Darknet's COCO file, and its records as detections of the eight pictures."""
    records = json.loads(golden("map", "valid", "coco", "coco_results.json").read_text())
    paths = golden("map", "valid_subset.txt").read_text().split()
    pictures = json.loads(golden("map", "raw_detections.json").read_text())
    sizes = {picture["image"]: (picture["image_w"], picture["image_h"]) for picture in pictures}
    parts = []
    for index, path in enumerate(paths):
        mine = [r for r in records if r["image_id"] == coco_image_id(path)]
        boxes = torch.tensor([r["bbox"] for r in mine], dtype=torch.float64).reshape(-1, 4)
        boxes[:, :2] += boxes[:, 2:] / 2
        probs = torch.zeros(len(mine), 80)
        probs[torch.arange(len(mine)), [COCO_IDS.index(r["category_id"]) for r in mine]] = torch.tensor(
            [r["score"] for r in mine]
        )
        found = Detections(boxes, probs.amax(1), probs, coco_names(), sizes[path], relative=False)
        parts.append((index, path, sizes[path], *pairs(found)))
    return records, join(parts, coco_names())


def test_coco_file_repeats_darknets_records(darknets, tmp_path):
    records, found = darknets
    (path,) = write_coco(found, str(tmp_path), "coco_results")
    ours, theirs = Path(path).read_text(), golden("map", "valid", "coco", "coco_results.json").read_text()
    assert [line.split('"bbox"')[0] for line in ours.split("\n")] == [
        line.split('"bbox"')[0] for line in theirs.split("\n")
    ]
    assert ours[-40:] == theirs[-40:]
    for a, b in zip(json.loads(ours), records, strict=True):
        np.testing.assert_allclose(a["bbox"] + [a["score"]], b["bbox"] + [b["score"]], rtol=0, atol=4e-5)


def test_voc_files_of_the_same_run(darknets, tmp_path):
    _, found = darknets
    paths = [Path(p) for p in write_voc(found, str(tmp_path), FORMATS["voc"].default)]
    assert len(paths) == 80
    theirs = {p.name: p for p in golden("map", "valid", "voc").iterdir()}
    assert {p.name for p in paths if p.stat().st_size} == set(theirs)
    for path in paths:
        if path.name in theirs:
            ours, lines = path.read_text().splitlines(), theirs[path.name].read_text().splitlines()
            assert [line.split(" ")[:2] for line in ours] == [line.split(" ")[:2] for line in lines]
            ours, lines = (np.array([line.split(" ")[2:] for line in side], float) for side in (ours, lines))
            np.testing.assert_allclose(ours, lines, rtol=0, atol=4e-5)


def two_boxes() -> Found:
    """A picture of 100 x 50 with a box that leaves it on all sides, and an empty picture."""
    corners = np.float32([[-5, -7, 120, 60], [10, 20, 30, 40]])
    return Found(
        ["a/one.two.jpg", "b/7.png"], np.array([[100, 50], [8, 8]]), np.array([0, 0]), np.array([2, 0]),
        np.float32([0.5, 0.25]), corners, ["car", "pedestrian", "cyclist"],
    )  # fmt: skip


def test_voc_counts_from_one_and_clips(tmp_path):
    car, _, cyclist = (Path(p).read_text() for p in write_voc(two_boxes(), str(tmp_path), ""))
    assert car == "one 0.250000 11.000000 21.000000 31.000000 41.000000\n"
    assert cyclist == "one 0.500000 1.000000 1.000000 100.000000 50.000000\n"
    assert (tmp_path / "car.txt").exists()


def test_imagenet_numbers_pictures_and_classes_from_one(tmp_path):
    (path,) = write_imagenet(two_boxes(), str(tmp_path), "x")
    assert Path(path).read_text() == (
        "1 3 0.500000 0.000000 0.000000 100.000000 50.000000\n1 1 0.250000 10.000000 20.000000 30.000000 40.000000\n"
    )


def test_kitti_writes_one_file_a_picture_with_sixteen_columns(tmp_path):
    one, empty = write_kitti(two_boxes(), str(tmp_path), "kitti_results")
    assert Path(one) == tmp_path / "kitti_results" / "data" / "one.txt" and Path(empty).read_text() == ""
    first, _ = Path(one).read_text().splitlines()
    columns = first.split(" ")
    assert len(columns) == 16 and columns[0] == "cyclist" and columns[-1] == "0.500000"
    assert columns[4:8] == ["0.000000", "0.000000", "100.000000", "50.000000"]


def test_bdd_file_is_json(tmp_path):
    (path,) = write_bdd(two_boxes(), str(tmp_path), "bdd_results")
    assert json.loads(Path(path).read_text())[1] == {
        "name": "one.two.jpg", "category": "car", "bbox": [10, 20, 30, 40], "score": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize("write", [write_coco, write_bdd])
def test_no_detection_at_all_is_an_empty_json_array(write, tmp_path):
    (path,) = write(join([], ["a"]), str(tmp_path), "none")
    assert json.loads(Path(path).read_text()) == []


@pytest.mark.parametrize(
    ("path", "number"),
    [("x/000042.jpg", 42), ("COCO_val2014_000000000042.jpg", 42), ("dog.jpg", 0), ("12ab_7.jpg", 12), ("a_7b.jpg", 0)],
)
def test_coco_image_id(path, number):
    assert coco_image_id(path) == number


def test_image_name_ends_at_the_first_dot():
    assert image_name("a.b/one.two.jpg") == "one"


def test_class_name_cannot_leave_the_folder(tmp_path):
    found = two_boxes()
    found.names = ["../car", "a/b", "ok"]
    files = write_voc(found, str(tmp_path / "."), "p_")
    assert all(Path(f).resolve().parent == tmp_path.resolve() for f in files)


def test_map_picks_the_networks_class_for_each_class_of_the_result(tmp_path):
    (tmp_path / "map.txt").write_text("2\n0\n")
    probs = torch.tensor([[0.1, 0.2, 0.3]])
    found = Detections(torch.tensor([[5.0, 5, 2, 2]]), torch.ones(1), probs, relative=False)
    class_id, prob, _ = pairs(found, read_map(str(tmp_path / "map.txt"), 3))
    assert class_id.tolist() == [0, 1] and prob.tolist() == pytest.approx([0.3, 0.1])


def test_map_with_an_unknown_class_names_its_line(tmp_path):
    (tmp_path / "map.txt").write_text("2\n3\n")
    with pytest.raises(DataError, match=r"line 2: is no class from 0 to 2 \('3'\)"):
        read_map(str(tmp_path / "map.txt"), 3)
