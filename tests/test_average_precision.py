"""Average precision: Darknet's printed numbers from the detections that entered them, and cases worked out by hand."""

import json
import re

import numpy as np
import pytest
from conftest import golden

from darknetpy.data.labels import read_labels
from darknetpy.errors import UsageError
from darknetpy.evaluation import Matches, report, score

CASES = {
    "map_points0_iou0.5": {},
    "map_points0_iou0.75": {"iou_thresh": 0.75},
    "map_points11_iou0.5": {"points": 11},
    "map_points11_iou0.75": {"points": 11, "iou_thresh": 0.75},
    "map_points101_iou0.5": {"points": 101},
    "map_points101_iou0.75": {"points": 101, "iou_thresh": 0.75},
    "map_points0_iou0.5_thresh0.1": {"conf_thresh": 0.1},
    "map_points0_iou0.3_thresh0.5": {"conf_thresh": 0.5, "iou_thresh": 0.3},
    "map_difficult_points0_iou0.5": {"difficult": True},
    "map_difficult_points11_iou0.5": {"difficult": True, "points": 11},
}
HINT = "\n\nSet -points flag:"


def coco_names() -> list[str]:
    """As Darknet printed them in another run."""
    return re.findall(r"class_id = \d+, name = ([^,]+),", golden("cli", "33_map_missing_labels.stdout.txt").read_text())


def collect(order=None, difficult: bool = False) -> Matches:
    """Darknet's detections of thirty pictures and their labels, added in any order."""
    matches = Matches(80)
    records = json.loads(golden("map", "raw_detections.json").read_text())
    hard = golden("map", "difficult.txt").read_text().split()
    for i in range(len(records)) if order is None else order:
        record = records[i]
        boxes = np.array([b["box"] for b in record["boxes"]], np.float32).reshape(-1, 4)
        probs = np.zeros((len(boxes), 80), np.float32)
        for row, box in enumerate(record["boxes"]):
            probs[row, [c for c, _ in box["probs"]]] = [p for _, p in box["probs"]]
        truth = read_labels(str(golden("map", record["image"].replace(".jpg", ".txt"))))
        extra = ()
        if difficult:
            labels = read_labels(str(golden("map", hard[i].replace(".jpg", ".txt"))))
            extra = (labels.boxes, labels.classes)
        matches.add(boxes, probs, truth.boxes, truth.classes, *extra, index=i)
    return matches


def result_of(matches: Matches, iou_thresh=0.5, conf_thresh=0.25, points=0, names=()):
    return score(matches, names, iou_thresh, conf_thresh, points)


@pytest.mark.parametrize("case", CASES)
def test_report_is_darknets_to_the_last_byte(case):
    options = dict(CASES[case])
    matches = collect(difficult=options.pop("difficult", False))
    printed = golden("map", "stdout", f"{case}.stdout.txt").read_bytes().decode()
    printed = printed[printed.index("\n detections_count") : printed.index(HINT)]
    assert report(result_of(matches, names=coco_names(), **options), strict=True) == printed
    assert report(result_of(matches, names=coco_names(), **options)) == re.sub(r" rank = [^\n]*\r", "", printed)


def test_order_of_adding_pictures_leaves_no_trace():
    shuffled = np.random.default_rng(0).permutation(30)
    assert report(result_of(collect(shuffled))) == report(result_of(collect()))


def test_merged_parts_equal_the_whole():
    whole, even, odd = collect(), collect(range(0, 30, 2)), collect(range(1, 30, 2))
    odd.table()
    merged = odd.merge([even])
    for points in (0, 11):
        assert report(result_of(merged, points=points)) == report(result_of(whole, points=points))
    assert merged.images == 30
    np.testing.assert_array_equal(result_of(merged).coco().precision, result_of(whole).coco().precision)
    np.testing.assert_array_equal(result_of(merged).confusion_matrix(), result_of(whole).confusion_matrix())


SQUARE = [0.5, 0.5, 0.2, 0.2]


def one_class(detections, truths, **options):
    """One picture of one class: detections (box, confidence) in storage order, truths as boxes."""
    matches = Matches(1)
    boxes, probs = [d[0] for d in detections], [[d[1]] for d in detections]
    matches.add(
        np.array(boxes, np.float32).reshape(-1, 4), np.array(probs, np.float32).reshape(-1, 1),
        np.array(truths, np.float32).reshape(-1, 4), np.zeros(len(truths), int),
    )  # fmt: skip
    return result_of(matches, **options)


def moved(dx: float) -> list[float]:
    return [SQUARE[0] + dx, *SQUARE[1:]]


def test_overlap_equal_to_the_threshold_is_not_enough():
    half = [0.5, 0.5, 0.25, 0.5], [0.5, 0.5, 0.25, 0.25]  # exact in binary: IoU 1/2
    assert one_class([(half[1], 0.9)], [half[0]]).map == 0
    assert one_class([(half[1], 0.9)], [half[0]], iou_thresh=0.499).map == 1


def test_surest_duplicate_is_right_in_the_ranking_and_the_first_stored_one_in_the_counts():
    result = one_class([(SQUARE, 0.1), (moved(0.01), 0.9)], [SQUARE])
    assert result.map == 1
    assert (result.tp, result.fp, result.fn) == (0, 1, 1)


def test_average_iou_counts_a_false_alarm_as_zero():
    result = one_class([(SQUARE, 0.9), (moved(0.4), 0.8)], [SQUARE])
    assert (result.tp, result.fp) == (1, 1)
    assert result.average_iou == pytest.approx(0.5)


def test_precision_recall_curve_by_hand():
    detections = [(SQUARE, 0.9), (moved(0.4), 0.8), (moved(-0.3), 0.7)]
    result = one_class(detections, [SQUARE, moved(-0.3), [0.1, 0.1, 0.1, 0.1]])
    (curve,) = result.curves
    assert curve.recall.tolist() == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    assert curve.precision.tolist() == pytest.approx([1, 1 / 2, 2 / 3])
    assert result.map == pytest.approx(1 / 3 + 1 / 3 * 2 / 3)
    assert result.at(points=11).map == pytest.approx((4 * 1 + 3 * 2 / 3) / 11)  # levels 0-.3 and .4-.6


def test_recall_of_three_fifths_misses_level_six_of_eleven():
    truths = [[0.1 + 0.2 * i, 0.5, 0.1, 0.1] for i in range(5)]
    result = one_class([(box, 0.9) for box in truths[:3]], truths, points=11)
    assert result.map == pytest.approx(6 / 11)


def test_best_truth_counts_even_when_taken():
    near, far = SQUARE, moved(0.06)
    result = one_class([(near, 0.9), (moved(0.01), 0.8)], [near, far])
    assert (result.tp, result.fp) == (1, 1)
    assert result.coco().recall[2, 0].item() == 1.0  # COCO lets the second one take the other truth


def test_detection_of_a_difficult_object_leaves_the_ranking_but_counts_as_wrong():
    matches = Matches(1)
    boxes = np.float32([moved(0.4), SQUARE])
    hard = np.float32([moved(0.4)]), np.zeros(1, int)
    matches.add(boxes, np.float32([[0.9], [0.5]]), np.float32([SQUARE]), np.zeros(1, int), *hard)
    result = result_of(matches)
    assert (result.map, result.detections_count) == (1.0, 1)
    assert (result.tp, result.fp) == (1, 1)


def test_class_without_truths_lowers_the_mean():
    matches = Matches(2)
    matches.add(np.float32([SQUARE]), np.float32([[0.9, 0.3]]), np.float32([SQUARE]), np.zeros(1, int))
    result = result_of(matches)
    assert [c.ap for c in result.classes] == [1, 0] and result.map == 0.5
    assert (result.classes[1].fp, result.classes[1].detections) == (1, 1)


@pytest.mark.parametrize("points", [0, 11, 101])
def test_no_detection_gives_zero(points):
    result = one_class([], [SQUARE], points=points)
    assert (result.map, result.tp, result.fp, result.fn, result.precision, result.f1) == (0, 0, 0, 1, 0, 0)
    assert "nan" not in report(result)


def test_nothing_at_all_gives_zero():
    result = result_of(Matches(3))
    assert result.map == 0 and np.isnan(result.coco().ap) and not result.confusion_matrix().any()


def test_no_truth_prints_zero_or_darknets_nan():
    result = one_class([(SQUARE, 0.9)], [])
    printed = golden("cli", "33_map_missing_labels.stdout.txt").read_text()
    line = re.search(r" for conf_thresh = 0\.25, precision[^\n]*", printed)[0]
    assert line in report(result, strict=True)
    assert "precision = 0.00, recall = 0.00, F1-score = 0.00" in report(result)


def test_truth_of_an_unknown_class_is_left_out():
    matches = Matches(2)
    wrong = matches.add(np.zeros((0, 4)), np.zeros((0, 2)), np.float32([SQUARE] * 3), np.array([0, 2, -1]))
    assert (wrong, matches.invalid, matches.truths.tolist()) == (2, 2, [1, 0])


@pytest.mark.parametrize("points", [1, -5])
def test_impossible_number_of_points_is_said(points):
    with pytest.raises(UsageError, match="-points"):
        one_class([], [], points=points)


def test_rates_round_like_32_bit_floats():
    """9/200 is under 0.045 in 64 bits and over it in 32."""
    truths = [[0.1 * i, 0.1, 0.05, 0.05] for i in range(1, 10)]
    result = one_class([(box, 0.9) for box in truths] + [(SQUARE, 0.9)] * 191, truths)
    assert result.precision == 9 / 200 and f"{result.precision:.2f}" == "0.04"
    assert "precision = 0.05," in report(result)


def test_notebook_table_has_every_class_and_escapes_names():
    matches = Matches(2)
    matches.add(np.float32([SQUARE]), np.float32([[0.9, 0.3]]), np.float32([SQUARE]), np.zeros(1, int))
    result = result_of(matches, names=["<b>", "dog"])
    assert "mAP@0.50 50.00 %" in repr(result)
    html = result._repr_html_()
    assert "&lt;b&gt;" in html and "<b>" not in html and html.count("<tr>") == 3
    assert result.rows()[1]["fp"] == 1


def test_a_million_detections_take_seconds():
    import time

    random = np.random.default_rng(0)
    matches = Matches(80)
    began = time.perf_counter()
    for _ in range(250):
        boxes = random.uniform(0.05, 0.95, (400, 4)).astype(np.float32)
        probs = np.where(random.uniform(size=(400, 80)) < 0.125, random.uniform(size=(400, 80)), 0)
        matches.add(boxes, probs, boxes[:20], random.integers(0, 80, 20))
    result = result_of(matches)
    assert result.detections_count > 900_000
    assert time.perf_counter() - began < 10
