"""Anchors for a data set: k-means over box sizes, near meaning a high IoU (Darknet: `calc_anchors`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from tqdm import tqdm

from darknetpy.config.datafile import DataConfig
from darknetpy.data.labels import Labels, labels_of
from darknetpy.data.notes import BAD_LABELS, append_line, say
from darknetpy.data.sets import Annotations
from darknetpy.errors import DataError
from darknetpy.files import atomic_write
from darknetpy.images.draw import class_color, save_image

MAX_ITERATIONS = 1000
SLAB = 8192
"""Boxes compared with all centres at once: as many as stay in a processor's cache."""
BUDGET = 5_000_000
"""Comparisons in one pass: while more random starts stay under it, more are tried and the best is kept."""
STARTS = 10
SMALL_NET = 32
"""Up to this width anchors are printed with decimals: they count in cells, as yolo v2 wants them."""
CLOUD = 700
"""Side of the picture `cloud.png`."""


@dataclass
class Clusters:
    """`centres` (k, 2) width and height by ascending area, the mean of the best IoUs, the box's cluster (N,)."""

    centres: np.ndarray
    average_iou: float
    assigned: np.ndarray
    iterations: int


@dataclass
class Anchors:
    """Anchors of a data set.

    Attributes:
        clusters: the anchors themselves are `clusters.centres`, pixels of the network.
        sizes: (N, 2) of all boxes, pixels of the network.
        counters: boxes of each class; images: files read; width, height: network size.
    """

    clusters: Clusters
    sizes: np.ndarray
    counters: np.ndarray
    images: int
    width: int
    height: int

    def text(self) -> str:
        """The numbers as they stand after `anchors =` in a cfg."""
        form = "{:3.0f},{:3.0f}" if self.width > SMALL_NET else "{:2.4f},{:2.4f}"
        return ", ".join(form.format(w, h) for w, h in self.clusters.centres.tolist())

    def counters_text(self) -> str:
        """The line of `[yolo] counters_per_class`."""
        return "counters_per_class = " + ", ".join(str(n) for n in self.counters.tolist())


def calculate(data: DataConfig, count: int, width: int, height: int, seed: int = 0) -> Anchors:
    """Anchors from all labels of `train=`, for a network of width x height that stretches its pictures.

    The same seed gives the same anchors. Raises DataError if there are fewer boxes than anchors, or no train list.
    """
    paths = data.listed(data.file("train", "data/train.list") or "")
    classes, boxes = read_boxes(paths, data.strict, data.annotations)
    if len(boxes) < max(1, count) or count < 1:
        raise DataError(
            f"{len(boxes)} boxes in the labels of {len(paths)} images give no {count} anchors",
            file=data.path,
            remedy="add labels or lower -num_of_clusters",
        )
    known = classes[classes >= 0]
    counters = np.bincount(known, minlength=max(1, data.number("classes", 1)))
    sizes = boxes[:, 2:].astype(np.float64) * (width, height)
    return Anchors(cluster(sizes, count, seed), sizes, counters, len(paths), width, height)


def read_boxes(
    paths: Sequence[str], strict: bool = False, annotations: Annotations | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Classes (N,) and boxes (N, 4) of all images' labels; odd values are said and noted in `bad_label.list`.

    They are kept, except for boxes without width or height: no anchor can be near those. Strict keeps them too.
    """
    labels = []
    for path in tqdm(paths, unit="img", disable=not sys.stderr.isatty(), leave=False):
        labels.append(labels_of(path, strict, annotations))
        _report_odd(labels[-1])
    if not labels:
        return np.zeros(0, np.int64), np.zeros((0, 4), np.float32)
    classes, boxes = (np.concatenate([getattr(part, name) for part in labels]) for name in ("classes", "boxes"))
    kept = np.ones(len(boxes), bool) if strict else (boxes[:, 2:] > 0).all(1)
    return classes[kept], boxes[kept]


def _report_odd(labels: Labels) -> None:
    odd = ((labels.boxes <= 0) | (labels.boxes > 1)).any(1)
    for j in np.flatnonzero(odd).tolist():
        x, y, w, h = labels.boxes[j].tolist()
        text = f"Wrong label: {labels.path} - j = {j}, x = {x:f}, y = {y:f}, width = {w:f}, height = {h:f}"
        say(f"{text} ")
        append_line(BAD_LABELS, text)


def cluster(sizes: np.ndarray, count: int, seed: int = 0) -> Clusters:
    """The best of several k-means runs, each begun at `count` distinct boxes.

    Args:
        sizes: (N, 2) width and height.
    """
    random = np.random.default_rng(seed)
    distinct = np.unique(sizes, axis=0)
    pool = distinct if len(distinct) >= count else sizes
    starts = int(np.clip(BUDGET // (len(sizes) * count), 1, STARTS))
    runs = [kmeans(sizes, pool[random.choice(len(pool), count, replace=False)]) for _ in range(starts)]
    return max(runs, key=lambda run: run.average_iou)


def kmeans(sizes: np.ndarray, centres: np.ndarray) -> Clusters:
    """k-means from given centres (k, 2), distance 1 - IoU of boxes that share a corner.

    A centre is the mean of its boxes; one without boxes stays where it is. Ends when no box changes its cluster.
    """
    centres, iterations = centres.astype(np.float64), 0
    before = np.full(len(sizes), -1)
    while iterations < MAX_ITERATIONS:
        iterations += 1
        assigned, _ = nearest(sizes, centres)
        if np.array_equal(before, assigned):
            break
        before = assigned
        members = np.bincount(assigned, minlength=len(centres))
        sums = np.stack([np.bincount(assigned, sizes[:, axis], len(centres)) for axis in (0, 1)], axis=1)
        means = sums / np.maximum(members, 1)[:, None]
        centres = np.where(means != 0, means, centres)
    assigned, overlap = nearest(sizes, centres)
    order = np.argsort(centres.prod(1), kind="stable")
    return Clusters(centres[order], float(overlap.mean()), np.argsort(order)[assigned], iterations)


def nearest(sizes: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each box's centre of highest IoU (N,), the first of equals, and that IoU (N,)."""
    which, overlap = np.empty(len(sizes), np.int64), np.empty(len(sizes))
    columns, areas = np.ascontiguousarray(sizes.T), sizes.prod(1)
    (w, h), area = centres.T[:, :, None], centres.prod(1)[:, None]
    for low in range(0, len(sizes), SLAB):
        part = slice(low, low + SLAB)
        inter = np.minimum(columns[0, part], w)
        inter *= np.minimum(columns[1, part], h)
        union = areas[part] + area
        union -= inter
        iou = np.divide(inter, union, out=np.zeros_like(inter), where=union > 0)
        which[part] = iou.argmax(0)
        overlap[part] = iou.max(0)
    return which, overlap


def write(anchors: Anchors, show: bool = False, folder: str = "") -> str:
    """Write `anchors.txt` and `counters_per_class.txt` (with `show` also `cloud.png`); returns Darknet's text.

    Raises DataError where a file cannot be written.
    """
    found = anchors.clusters
    _save(os.path.join(folder, "anchors.txt"), anchors.text())
    _save(os.path.join(folder, "counters_per_class.txt"), anchors.counters_text())
    if show:
        save_image(os.path.join(folder, "cloud.png"), cloud(anchors))
    return "\n".join(
        [
            "",
            f" num_of_clusters = {len(found.centres)}, width = {anchors.width}, height = {anchors.height} ",
            f" read labels from {anchors.images} images ",
            f"\r loaded \t image: {anchors.images} \t box: {len(anchors.sizes)}",
            " all loaded. ",
            "",
            " calculating k-means++ ...",
            "",
            f" iterations = {found.iterations} ",
            "",
            "",
            anchors.counters_text(),
            "",
            f" avg IoU = {100 * found.average_iou:2.2f} % ",
            "",
            "Saving anchors to the file: anchors.txt ",
            f"anchors = {anchors.text()}",
        ]
    )


def _save(path: str, text: str) -> None:
    try:
        with atomic_write(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror}", file=path) from error


def cloud(anchors: Anchors) -> np.ndarray:
    """All box sizes as dots coloured by cluster, and the anchors as rectangles: uint8 (700, 700, 3) RGB.

    Width goes right and height down, both relative to the network, so that a dot is the lower right corner of its box.
    """
    image = np.full((CLOUD, CLOUD, 3), 255, np.uint8)
    scale = (CLOUD - 1) / np.array([anchors.width, anchors.height], np.float64)
    dots = np.clip(anchors.sizes * scale, 0, CLOUD - 1).astype(np.int64)
    count = len(anchors.clusters.centres)
    colors = np.array([class_color(i, count) for i in range(count)], np.uint8)
    near = np.stack(np.meshgrid([-1, 0, 1], [-1, 0, 1]), -1).reshape(-1, 2)
    spread = np.clip(dots[:, None] + near[None], 0, CLOUD - 1)
    image[spread[..., 1], spread[..., 0]] = colors[anchors.clusters.assigned][:, None]
    for i, centre in enumerate((anchors.clusters.centres * scale).tolist()):
        corner = tuple(round(min(v, CLOUD - 1)) for v in centre)
        cv2.rectangle(image, (0, 0), corner, [int(v) for v in colors[i]], 2)
        cv2.rectangle(image, (0, 0), corner, (0, 0, 0), 1)
    return image
