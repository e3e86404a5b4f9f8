"""`detector map` by other people's measures: VOC's devkit, pycocotools, tables, JSON and pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from small import data_set
from test_average_precision import collect, result_of
from test_coco_and_confusion import crowded, judged

from darknetpy.evaluation import Matches, as_data, coco_text, table
from darknetpy.evaluation.matches import iou_matrix
from darknetpy.evaluation.summary import KINDS


def voc(matches: Matches, class_id: int, eleven: bool, threshold: float = 0.5) -> float:
    """Average precision of a class as VOC's development kit works it out: picture by picture, one after the other."""
    t = matches.table()
    rows = np.flatnonzero(t.class_id == class_id)
    order = rows[np.argsort(-t.prob[rows], kind="stable")]
    taken: set[int] = set()
    right = []
    for row in order:
        truths = np.flatnonzero((t.truth_image == t.image[row]) & (t.truth_class == class_id))
        overlap = iou_matrix(t.boxes[[t.box[row]]], t.truth_boxes[truths])[0]
        best = int(overlap.argmax()) if len(truths) else -1
        hit = best >= 0 and overlap[best] > threshold and truths[best] not in taken
        if hit:
            taken.add(int(truths[best]))
        right.append(hit)
    total = int((t.truth_class == class_id).sum())
    if not right or not total:
        return 0.0
    recall, precision = np.cumsum(right) / total, np.cumsum(right) / np.arange(1, len(right) + 1)
    if eleven:
        return sum(max(precision[recall >= level], default=0.0) for level in np.arange(11) * 0.1) / 11
    recall, precision = [0.0, *recall, 1.0], [0.0, *precision, 0.0]
    for i in reversed(range(len(precision) - 1)):
        precision[i] = max(precision[i], precision[i + 1])
    return sum((recall[i] - recall[i - 1]) * precision[i] for i in range(1, len(recall)) if recall[i] != recall[i - 1])


@pytest.mark.parametrize("threshold", [0.5, 0.75])
@pytest.mark.parametrize("make", [collect, lambda: crowded(1), lambda: crowded(2)], ids=["golden", "1", "2"])
def test_area_and_eleven_points_are_vocs(make, threshold):
    matches = make()
    known = np.flatnonzero(matches.truths)
    for points in (0, 11):
        found = result_of(matches, iou_thresh=threshold, points=points).classes
        expected = [voc(matches, int(c), points == 11, threshold) for c in known]
        np.testing.assert_allclose([found[c].ap for c in known], expected, atol=1e-12)


@pytest.mark.parametrize("make", [collect, lambda: crowded(3)], ids=["golden", "crowded"])
def test_101_points_of_each_class_are_pycocotools(make):
    matches = make()
    precision = judged(matches).eval["precision"][:, :, :, 0, -1]  # overlap, recall, class
    expected = np.where((precision > -1).all(1), precision.mean(1), np.nan)
    np.testing.assert_allclose(result_of(matches).coco().precision, expected, atol=1e-9)


def test_darknets_101_points_are_pycocotools_where_matching_is_the_same():
    """Objects apart from each other, boxes of any quality, confidences all different."""
    random, matches = np.random.default_rng(5), Matches(3)
    grid = np.stack(np.meshgrid([0.2, 0.5, 0.8], [0.2, 0.5, 0.8]), -1).reshape(-1, 2)
    for _ in range(20):
        truth = np.c_[grid, np.full((9, 2), 0.2)].astype(np.float32)
        boxes = np.r_[truth, truth] + random.normal(0, 0.02, (18, 4)).astype(np.float32)
        labels = random.integers(0, 3, 9)
        probs = np.zeros((18, 3), np.float32)
        probs[np.arange(18), np.r_[labels, random.integers(0, 3, 9)]] = random.uniform(0.01, 1, 18)
        matches.add(boxes, probs, truth, labels)
    result = result_of(matches, points=101)
    precision = judged(matches).eval["precision"][0, :, :, 0, -1].mean(0)
    assert 0.2 < result.map < 0.98
    np.testing.assert_allclose([c.ap for c in result.classes], precision, atol=1e-9)


def test_cocos_lines_are_pycocotools(capsys):
    matches = collect()
    judge = judged(matches)
    capsys.readouterr()
    judge.summarize()
    lines = capsys.readouterr().out.splitlines()
    assert coco_text(result_of(matches)).splitlines() == [lines[i] for i in (0, 1, 2, 6, 7, 8)]


def test_table_and_data_agree():
    matches = collect()
    names = [f"class {i}" for i in range(80)]
    result = result_of(matches, names=names)
    data = as_data(result)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["map"] == data["means"]["AP"] and data["means"]["AP101"] == result.at(points=101).map
    rows = [re.split(r"\s{2,}", line.strip()) for line in table(result).splitlines()[2:]]
    assert len(rows) == 81 and rows[-1][:2] == ["all", f"{100 * result.map:.2f}"]
    for row, c in zip(rows, data["classes"], strict=False):
        assert row[0] == c["name"] and row[1:4] == [f"{100 * c[kind]:.2f}" for kind in KINDS]
        assert row[4] == ("-" if not c["truths"] else f"{100 * c['AP50-95']:.2f}")
        assert [int(n) for n in row[-3:]] == [c["tp"], c["fp"], c["fn"]]
    assert np.array(data["confusion_matrix"])[:80].sum() == result.unique_truth_count


def test_nothing_found_is_data_too():
    result = result_of(Matches(2), names=["a", "b"])
    data = as_data(result)
    assert data["coco"]["AP@.5"] is None and data["classes"][0]["AP50-95"] is None and data["map"] == 0
    assert "nan" not in table(result) + coco_text(result) and "= -1.000" in coco_text(result)


def test_flags_add_to_darknets_text(tmp_path, monkeypatch, capsys):
    from darknetpy.cli.main import main

    monkeypatch.chdir(tmp_path)
    data_set(tmp_path)
    assert main(["detector", "train", "obj.data", "tiny.cfg", "-dont_show", "-workers", "0", "-no_rehearsal"]) == 0
    words = ["detector", "map", "obj.data", "tiny.cfg", "backup/tiny_final.weights"]
    capsys.readouterr()
    assert main(words) == 0
    plain = capsys.readouterr().out
    assert main([*words, "-table", "-coco", "-json", "all.json", "-plots"]) == 0
    more = capsys.readouterr().out
    assert more.startswith(plain) and "AP50-95" in more and "IoU=0.50:0.95" in more
    assert json.loads(Path("all.json").read_text())["images"] == 6
    assert sorted(p.name for p in Path("plots").iterdir()) == ["confusion.png", "curves.png"]
    assert main([*words, "-json", "no/such/folder/all.json"]) == 1
    assert "no/such/folder" in capsys.readouterr().err.splitlines()[-1]
