"""Darknet's rules for [region], one prediction and one truth at a time (see `reference_yolo`)."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from reference_yolo import Box, iou


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


class RegionReference:
    """Delta of one mini-batch; `counts` sums up what the printed line divides.

    Args:
        head: the layer; output: (B, H, W, n, 5 + classes) float64, activated; truth: (B, M, 6).
    """

    def __init__(self, head, output, truth, seen: int):
        self.head, self.o, self.out, self.truth = head, head.options, output, truth
        self.b, self.h, self.w, self.n, _ = output.shape
        self.seen = seen
        self.delta = np.zeros_like(output)
        self.counts: Counter = Counter()
        for b in range(self.b):
            if not self._class_only(b):
                self._image(b)

    def _rows(self, b: int):
        for row in self.truth[b].tolist():
            if row[4] >= self.head.classes:
                continue
            if row[0] == 0:
                return
            yield Box(*row[:4]), int(row[4])

    def _class_only(self, b: int) -> bool:
        if self.head.tree is None:
            return False
        for t, c in self._rows(b):
            if t.x > 100000 and t.y > 100000:
                cells = self.out[b].reshape(-1, self.out.shape[-1])
                belief = [v[4] * math.prod(v[5 + k] for k in self._path(c)) for v in cells]
                self._class(*np.unravel_index(int(np.argmax(belief)), (self.h, self.w, self.n)), b, c, 1.0)
                return True
        return False

    def _path(self, c: int):
        while c >= 0:
            yield c
            c = self.head.tree.parents[c]

    def _box(self, b, j, i, k) -> Box:
        v = self.out[b, j, i, k].tolist()
        w, h = math.exp(v[2]) * self.head.anchors[2 * k], math.exp(v[3]) * self.head.anchors[2 * k + 1]
        return Box((i + logistic(v[0])) / self.w, (j + logistic(v[1])) / self.h, w / self.w, h / self.h)

    def _image(self, b: int) -> None:
        o = self.o
        for j, i, k in np.ndindex(self.h, self.w, self.n):
            box, d = self._box(b, j, i, k), self.delta[b, j, i, k]
            p = self.out[b, j, i, k, 4]
            self.counts["no_obj"] += p
            best, c = 0.0, -1
            for t, number in self._rows(b):
                if iou(box, t) > best:
                    best, c = iou(box, t), number
            d[4] = o.noobject_scale * ((best if o.classfix == -1 else 0) - p) * p * (1 - p)
            if o.classfix != -1 and best > o.thresh:
                d[4] = 0
                if o.classfix > 0:
                    self._class(j, i, k, b, c, p if o.classfix == 2 else 1.0)
            if self.seen < 12800:
                aw, ah = self.head.anchors[2 * k : 2 * k + 2]
                centre = Box((i + 0.5) / self.w, (j + 0.5) / self.h, aw / self.w, ah / self.h)
                self._pull_box(b, j, i, k, centre, 0.01)
        for t, c in self._rows(b):
            self._object(b, t, c)

    def _object(self, b: int, t: Box, c: int) -> None:
        i, j, o = int(t.x * self.w), int(t.y * self.h), self.o
        best, chosen = 0.0, 0
        for k in range(self.n):
            shape = self._box(b, j, i, k)
            if o.bias_match:
                shape = Box(0, 0, self.head.anchors[2 * k] / self.w, self.head.anchors[2 * k + 1] / self.h)
            fit = iou(Box(0, 0, shape.w, shape.h), Box(0, 0, t.w, t.h))
            if fit > best:
                best, chosen = fit, k
        d, p = self.delta[b, j, i, chosen], self.out[b, j, i, chosen, 4]
        overlap = iou(self._box(b, j, i, chosen), t)
        self._pull_box(b, j, i, chosen, t, o.coord_scale)
        d[4] = o.object_scale * ((overlap if o.rescore else 1) - p) * p * (1 - p)
        self._class(j, i, chosen, b, c if self.head.class_map is None else self.head.class_map[c], 1.0)
        self.counts.update(count=1, iou=overlap, obj=p, recall=overlap > 0.5)

    def _pull_box(self, b, j, i, k, t: Box, scale: float) -> None:
        v, d = self.out[b, j, i, k].tolist(), self.delta[b, j, i, k]
        x, y = logistic(v[0]), logistic(v[1])
        d[0] = scale * (t.x * self.w - i - x) * x * (1 - x)
        d[1] = scale * (t.y * self.h - j - y) * y * (1 - y)
        d[2] = scale * (math.log(t.w * self.w / self.head.anchors[2 * k]) - v[2])
        d[3] = scale * (math.log(t.h * self.h / self.head.anchors[2 * k + 1]) - v[3])

    def _class(self, j, i, k, b, c: int, share: float) -> None:
        probs, rates = self.out[b, j, i, k, 5:], self.delta[b, j, i, k, 5:]
        scale = self.o.class_scale * share
        likely = probs[c]
        if self.head.tree is not None:
            likely = math.prod(probs[number] for number in self._path(c))
            for number in self._path(c):
                group = self.head.tree.groups[number]
                for other in range(len(probs)):
                    if self.head.tree.groups[other] == group:
                        rates[other] = scale * ((other == number) - probs[other])
        else:
            factor = 1.0
            if self.o.focal_loss:
                pt = probs[c] + 1e-15
                factor = -0.5 * (1 - pt) * (2 * pt * math.log(pt) + pt - 1)
            rates[:] = [scale * factor * ((other == c) - p) for other, p in enumerate(probs)]
        self.counts.update(class_count=1, likely=likely)
