"""`detector calc_anchors`: k-means over box sizes, against a run of Darknet."""

import re

import numpy as np
import pytest
from conftest import golden

from darknetpy.config.datafile import read_data
from darknetpy.errors import DataError
from darknetpy.evaluation.anchors import calculate, cloud, cluster, kmeans, read_boxes, write

DARKNET = {
    "37_calc_anchors": (6, 76.34),
    "39_calc_anchors_bad_label": (3, 61.64),
}
"""Clusters and average IoU that Darknet printed."""


@pytest.fixture(params=DARKNET)
def run(request, tmp_path, monkeypatch):
    """The data set of a captured run, laid out in the working directory."""
    (tmp_path / "data" / "set").mkdir(parents=True)
    for name in ("dog", "eagle", "giraffe", "horses", "person"):
        text = golden("cli", f"{request.param}.file.data__set__{name}.txt").read_text()
        (tmp_path / "data" / "set" / f"{name}.txt").write_text(text)
    (tmp_path / "data" / "train.txt").write_text(golden("cli", "inputs", "valid.txt").read_text())
    (tmp_path / "coco.data").write_text("classes= 80\ntrain = data/train.txt\n")
    monkeypatch.chdir(tmp_path)
    return request.param


def darknets_anchors(case: str) -> np.ndarray:
    text = golden("cli", f"{case}.file.anchors.txt").read_text()
    return np.array([float(v) for v in text.split(",")]).reshape(-1, 2)


def darknets_text(case: str) -> str:
    """From the first line that is the command's own."""
    text = golden("cli", f"{case}.stdout.txt").read_bytes().decode()
    return text[text.index("\n num_of_clusters") :]


def test_darknets_anchors_are_where_k_means_comes_to_rest(run):
    result = calculate(read_data("coco.data"), DARKNET[run][0], 416, 416)
    rest = kmeans(result.sizes, darknets_anchors(run))
    assert np.array_equal(np.round(rest.centres), darknets_anchors(run))
    assert f"{100 * rest.average_iou:.2f}" == f"{DARKNET[run][1]}"


def test_best_of_several_starts_is_no_worse_than_darknets(run):
    result = calculate(read_data("coco.data"), DARKNET[run][0], 416, 416)
    assert 100 * result.clusters.average_iou >= DARKNET[run][1] - 0.005


def test_text_is_darknets_but_for_the_random_numbers(run):
    count, _ = DARKNET[run]
    result = calculate(read_data("coco.data"), count, 416, 416)
    ours, theirs = write(result) + "\n", darknets_text(run)
    theirs = re.sub(r"\n\nWrong label: [^\n]*\n", "", theirs)
    theirs = re.sub(r"\r loaded [^\n]*\r", "\r", theirs)
    for random in (r"iterations = (\d+)", r"avg IoU = ([0-9.]+)", r"anchors = ([0-9, ]+)"):
        ours, theirs = (re.sub(random, "RANDOM", text) for text in (ours, theirs))
    assert ours.count("RANDOM") == 3
    assert ours == theirs


def test_files(run, tmp_path):
    write(calculate(read_data("coco.data"), DARKNET[run][0], 416, 416))
    assert (tmp_path / "counters_per_class.txt").read_text() == golden(
        "cli", f"{run}.file.counters_per_class.txt"
    ).read_text()
    ours, theirs = (tmp_path / "anchors.txt").read_text(), golden("cli", f"{run}.file.anchors.txt").read_text()
    assert re.sub(r"\d", "0", ours).replace(" ", "0") == re.sub(r"\d", "0", theirs).replace(" ", "0")


def test_wrong_label_is_noted_and_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dog.txt").write_text("3 0.5 0.5 0.2 0.2\n0 1.5 0.5 0.2 0.2\n")
    classes, boxes = read_boxes([str(tmp_path / "dog.jpg")])
    assert classes.tolist() == [3, 0] and len(boxes) == 2
    expected = golden("cli", "39_calc_anchors_bad_label.file.bad_label.list").read_text()
    expected = expected.replace("data/set", str(tmp_path)).replace("j = 7", "j = 1")
    assert (tmp_path / "bad_label.list").read_text() == expected


def test_k_means_of_two_plain_groups_by_hand():
    sizes = np.array([[10, 10], [12, 8], [100, 50], [120, 50.0]])
    found = kmeans(sizes, np.array([[120, 50], [10, 10.0]]))
    assert found.centres.tolist() == [[11, 9], [110, 50]]
    assert found.assigned.tolist() == [0, 0, 1, 1]
    ious = [9 * 10 / (100 + 99 - 90), 11 * 8 / (96 + 99 - 88), 100 / 110, 110 / 120]
    assert found.average_iou == pytest.approx(np.mean(ious))


def test_centre_without_boxes_stays():
    found = kmeans(np.array([[10, 10], [10, 10.0]]), np.array([[10, 10], [500, 500.0]]))
    assert found.centres.tolist() == [[10, 10], [500, 500]]


def test_same_seed_same_anchors():
    sizes = np.random.default_rng(5).uniform(5, 300, (500, 2))
    assert np.array_equal(cluster(sizes, 9, seed=3).centres, cluster(sizes, 9, seed=3).centres)


def test_small_network_prints_decimals(run):
    result = calculate(read_data("coco.data"), 2, 13, 13)
    assert re.fullmatch(r"\d+\.\d{4},\d+\.\d{4}, \d+\.\d{4},\d+\.\d{4}", result.text())


def test_fewer_boxes_than_clusters_is_said(run):
    with pytest.raises(DataError, match="lower -num_of_clusters"):
        calculate(read_data("coco.data"), 99, 416, 416)


def test_cloud_shows_an_anchor_at_its_relative_size(run):
    result = calculate(read_data("coco.data"), 2, 416, 832)
    picture = cloud(result)
    assert picture.shape == (700, 700, 3)
    x, y = (np.round(result.clusters.centres[0] * 699 / (416, 832))).astype(int)
    assert picture[y, x // 2].tolist() == [0, 0, 0] and picture[y // 2, x].tolist() == [0, 0, 0]
