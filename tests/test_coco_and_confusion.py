"""COCO's numbers against pycocotools, and the confusion matrix against a plain loop."""

import contextlib
import io

import numpy as np
import pytest
from test_average_precision import collect

from darknetpy.evaluation import Matches, score
from darknetpy.evaluation.matches import iou_matrix


def crowded(seed: int, classes: int = 3, pictures: int = 12) -> Matches:
    """Pictures with near misses, duplicates, equal confidences, wrong classes, and more than 100 boxes of a class."""
    random = np.random.default_rng(seed)
    matches = Matches(classes)
    for i in range(pictures):
        count = random.integers(0, 12)
        truth = np.c_[random.uniform(0.2, 0.8, (count, 2)), random.uniform(0.05, 0.3, (count, 2))].astype(np.float32)
        labels = random.integers(0, classes - (i % 2), count)
        boxes = np.repeat(truth, 3, axis=0) + random.normal(0, 0.02, (3 * count, 4))
        boxes = np.abs(np.r_[boxes, random.uniform(0.1, 0.9, (150 if i == 0 else 5, 4))]).astype(np.float32)
        probs = np.where(
            random.uniform(size=(len(boxes), classes)) < 0.6, random.integers(1, 20, (len(boxes), 1)) / 20, 0
        )
        matches.add(boxes, probs.astype(np.float32), truth, labels)
    return matches


def judged(matches: Matches):
    """pycocotools' judgement of the same arrays in pixels of 1000 x 1000 pictures."""
    pytest.importorskip("pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    table = matches.table()

    def rows(boxes):
        corner = boxes.astype(np.float64)
        corner[:, :2] -= corner[:, 2:] / 2
        return (corner * 1000).tolist()

    truth = COCO()
    annotations = [
        {"id": i + 1, "image_id": int(image), "category_id": int(c), "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        for i, (image, c, box) in enumerate(
            zip(table.truth_image, table.truth_class, rows(table.truth_boxes), strict=True)
        )
    ]
    images = [{"id": i, "width": 1000, "height": 1000} for i in range(matches.images)]
    categories = [{"id": c, "name": str(c)} for c in range(matches.classes)]
    truth.dataset = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        found = truth.loadRes(
            [
                {"image_id": int(image), "category_id": int(c), "bbox": box, "score": float(p)}
                for image, c, p, box in zip(
                    table.image, table.class_id, table.prob, rows(table.boxes[table.box]), strict=True
                )
            ]
        )
        judge = COCOeval(truth, found, "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return judge


def official(matches: Matches) -> np.ndarray:
    """AP, AP50, AP75, AR1, AR10, AR100 by pycocotools."""
    return judged(matches).stats[[0, 1, 2, 6, 7, 8]]


def ours(matches: Matches) -> list[float]:
    return list(score(matches, [], 0.5, 0.25, 0).coco().numbers().values())


@pytest.mark.parametrize("seed", range(4))
def test_coco_numbers_are_pycocotools(seed):
    matches = crowded(seed)
    np.testing.assert_allclose(
        list(score(matches, [], 0.5, 0.25, 0).coco().numbers().values()), official(matches), atol=1e-9
    )


def test_coco_numbers_of_the_reference_detections():
    matches = collect()
    np.testing.assert_allclose(
        list(score(matches, [], 0.5, 0.25, 0).coco().numbers().values()), official(matches), atol=1e-9
    )


def test_free_truth_goes_to_the_surest_detection_by_hand():
    """Two truths, three detections of which two are closest to the first truth. Greedy matching gives both truths."""
    matches = Matches(1)
    truths = np.float32([[0.5, 0.5, 0.2, 0.2], [0.54, 0.5, 0.2, 0.2]])
    boxes = np.float32([[0.5, 0.5, 0.2, 0.2], [0.501, 0.5, 0.2, 0.2], [0.9, 0.9, 0.1, 0.1]])
    matches.add(boxes, np.float32([[0.9], [0.8], [0.95]]), truths, np.zeros(2, int))
    result = score(matches, ["a"], 0.5, 0.25, 0).coco()
    # Ranked: wrong, right, right: precision 0, 1/2, 2/3, so 2/3 at every recall level. The third one's IoU is .67.
    assert result.ap50 == pytest.approx(2 / 3)
    assert result.ap75 == pytest.approx(0.5 * 51 / 101)
    assert result.ar[0] == 0


def plain_confusion(matches: Matches, conf: float, iou: float) -> np.ndarray:
    table, classes = matches.table(), matches.classes
    matrix = np.zeros((classes + 1, classes + 1), int)
    for image in range(matches.images):
        best: dict[int, tuple[float, int]] = {}
        for d in np.flatnonzero(table.image == image):
            box, prob = int(table.box[d]), float(table.prob[d])
            if prob > conf and (box not in best or prob > best[box][0]):
                best[box] = (prob, int(table.class_id[d]))
        boxes, truths = list(best), np.flatnonzero(table.truth_image == image).tolist()
        overlap = iou_matrix(table.boxes[boxes], table.truth_boxes[truths])
        order = sorted(np.ndindex(*overlap.shape), key=lambda ab: -overlap[ab])
        used_a, used_b = set(), set()
        for a, b in order:
            if overlap[a, b] > iou and a not in used_a and b not in used_b:
                used_a.add(a)
                used_b.add(b)
                matrix[table.truth_class[truths[b]], best[boxes[a]][1]] += 1
        for a in set(range(len(boxes))) - used_a:
            matrix[classes, best[boxes[a]][1]] += 1
        for b in set(range(len(truths))) - used_b:
            matrix[table.truth_class[truths[b]], classes] += 1
    return matrix


@pytest.mark.parametrize("seed", range(3))
def test_confusion_matrix_is_that_of_a_plain_loop(seed):
    matches = crowded(seed)
    for conf, iou in ((0.25, 0.5), (0.63, 0.3)):
        matrix = score(matches, [], 0.5, 0.25, 0).confusion_matrix(conf, iou)
        np.testing.assert_array_equal(matrix, plain_confusion(matches, conf, iou))


def test_every_truth_is_in_the_confusion_matrix_once():
    matches = collect()
    matrix = score(matches, [], 0.5, 0.25, 0).confusion_matrix()
    np.testing.assert_array_equal(matrix[:80].sum(1), matches.truths)
