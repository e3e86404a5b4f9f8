"""Darknet's rules for [yolo] and [Gaussian_yolo], one prediction and one truth at a time.

Slow and plain on purpose: the vectorised losses are compared with this on random inputs. Numbers are Python floats.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np


class Box(NamedTuple):
    x: float
    y: float
    w: float
    h: float

    @property
    def edges(self):
        """Left, right, top, bottom."""
        return self.x - self.w / 2, self.x + self.w / 2, self.y - self.h / 2, self.y + self.h / 2


# ---------------------------------------------------------------------------------------------------------- overlaps


def iou(a: Box, b: Box) -> float:
    (al, ar, at, ab), (bl, br, bt, bb) = a.edges, b.edges
    w, h = min(ar, br) - max(al, bl), min(ab, bb) - max(at, bt)
    if w <= 0 or h <= 0:
        return 0.0
    union = a.w * a.h + b.w * b.h - w * h
    return w * h / union if union else 0.0


def hull(a: Box, b: Box):
    """Width and height of the box around both."""
    (al, ar, at, ab), (bl, br, bt, bb) = a.edges, b.edges
    return max(ar, br) - min(al, bl), max(ab, bb) - min(at, bt)


def giou(a: Box, b: Box) -> float:
    w, h = hull(a, b)
    if w * h == 0:
        return iou(a, b)
    (al, ar, at, ab), (bl, br, bt, bb) = a.edges, b.edges
    inter = max(0.0, min(ar, br) - max(al, bl)) * max(0.0, min(ab, bb) - max(at, bt))
    union = a.w * a.h + b.w * b.h - inter
    return iou(a, b) - (w * h - union) / (w * h)


def offset(a: Box, b: Box) -> float:
    w, h = hull(a, b)
    return ((a.x - b.x) ** 2 + (a.y - b.y) ** 2) / (w * w + h * h)


def diou(a: Box, b: Box) -> float:
    w, h = hull(a, b)
    return iou(a, b) - (offset(a, b) ** 0.6 if w * w + h * h else 0)


def ciou(a: Box, b: Box) -> float:
    w, h = hull(a, b)
    if w * w + h * h == 0:
        return iou(a, b)
    v = 4 / math.pi**2 * (math.atan2(b.w, b.h) - math.atan2(a.w, a.h)) ** 2
    return iou(a, b) - offset(a, b) - v * v / (1 - iou(a, b) + v + 1e-6)


KINDS = {"iou": iou, "giou": giou, "diou": diou, "ciou": ciou}


def box_gradient(p: Box, t: Box, kind: str) -> list[float]:
    """The push on x, y, w, h of `p`, with all of Darknet's liberties (layers.md 6.5c)."""
    p = Box(p.x, p.y, p.w or 1.0, p.h or 1.0)
    (left, right, top, bottom), (tl, tr, tt, tb) = p.edges, t.edges
    iw, ih = min(right, tr) - max(left, tl), min(bottom, tb) - max(top, tt)
    cw, ch = hull(p, t)
    inter = iw * ih
    union = p.w * p.h + t.w * t.h - inter
    apart = iw <= 0 or ih <= 0
    push = {}
    for edge, area, cut, grow in (
        ("t", -p.w, -iw * (top > tt), -cw * (top < tt)),
        ("b", p.w, iw * (bottom < tb), cw * (bottom > tb)),
        ("l", -p.h, -ih * (left > tl), -ch * (left < tl)),
        ("r", p.h, ih * (right < tr), ch * (right > tr)),
    ):
        rest = area - cut
        push[edge] = (union * cut - inter * rest) / union**2 if union > 0 else 0.0
        if kind == "giou" and cw * ch > 0:
            extra = (cw * ch * rest - union * grow) / (cw * ch) ** 2
            push[edge] = extra if apart else push[edge] + extra
    result = [push["l"] + push["r"], push["t"] + push["b"], push["r"] - push["l"], push["b"] - push["t"]]
    if kind in ("diou", "ciou"):
        extra = _distance(p, t, cw, ch, inter / union if union else math.nan, kind)
        if cw * cw + ch * ch > 0:
            result = extra if apart else [a + b for a, b in zip(result, extra, strict=True)]
    return result


def _distance(p: Box, t: Box, cw: float, ch: float, overlap: float, kind: str) -> list[float]:
    (left, right, top, bottom), (tl, tr, tt, tb) = p.edges, t.edges
    square, diagonal = (t.x - p.x) ** 2 + (t.y - p.y) ** 2, cw * cw + ch * ch
    out = [
        (2 * (t.x - p.x) * diagonal - 2 * cw * ((right > tr) - (left < tl)) * square) / diagonal**2,
        (2 * (t.y - p.y) * diagonal - 2 * ch * ((bottom > tb) - (top < tt)) * square) / diagonal**2,
        cw * ((right > tr) + (left < tl)) * square / diagonal**2,
        ch * ((bottom > tb) + (top < tt)) * square / diagonal**2,
    ]
    if kind == "ciou":
        turn = math.atan2(t.w, t.h) - math.atan2(p.w, p.h)
        v = 4 / math.pi**2 * turn**2
        alpha = v / (1 - overlap + v + 1e-6)
        out[2] += alpha * 8 / math.pi**2 * turn * p.h
        out[3] -= alpha * 8 / math.pi**2 * turn * p.w
    return out


# ------------------------------------------------------------------------------------------------------------- heads


class Reference:
    """Delta of one mini-batch, written the slow way. `counts`: what the printed line sums up.

    Args:
        head: the layer (options, anchors, mask, class_map are read).
        output: (B, n, entries, H, W) float64, activated; truth: (B, M, 6).
    """

    def __init__(self, head, output, truth, net_w: int, net_h: int, adversarial: bool = False):
        self.head, self.o, self.out, self.truth = head, head.options, output, truth
        self.net, self.adversarial = (net_w, net_h), adversarial
        self.gauss = head.type == "Gaussian_yolo"
        self.at = 8 if self.gauss else 4
        self.b, self.n, _, self.h, self.w = output.shape
        self.delta = np.zeros_like(output)
        self.labels = -np.ones((self.b, self.n, self.h, self.w))
        self.classes = -np.ones_like(self.labels)
        self.counts: Counter = Counter()
        for b in range(self.b):
            self._image(b)

    def _truths(self, b: int):
        for row in self.truth[b]:
            if row[0] == 0:
                return
            if 0 <= int(row[4]) < self.head.classes:
                source = int(row[4])
                yield (
                    Box(*row[:4].tolist()),
                    source if self.head.class_map is None else self.head.class_map[source],
                    row[5],
                )

    def _anchor(self, k: int):
        return self.head.anchors[2 * k], self.head.anchors[2 * k + 1]

    def _box(self, b, k, j, i) -> Box:
        v, (aw, ah), (net_w, net_h) = self.out[b, k, :, j, i].tolist(), self._anchor(self.head.mask[k]), self.net
        vx, vy, tw, th = v[0:8:2] if self.gauss else v[:4]
        if getattr(self.o, "new_coords", 0):
            w, h = 4 * tw * tw * aw / net_w, 4 * th * th * ah / net_h
        else:
            w, h = math.exp(tw) * aw / net_w, math.exp(th) * ah / net_h
        side = {"left_top": 0.5, "right_bottom": -0.5}.get(getattr(self.head, "point", "center"), 0.0)
        return Box((i + vx) / self.w + side * w, (j + vy) / self.h + side * h, w, h)

    def _factor(self, c: int) -> float:
        counters = self.o.counters_per_class
        if counters is None:
            return 1.0
        return min(max(max(1, n) for n in counters) / max(1, counters[c]), self.o.max_delta)

    def _image(self, b: int) -> None:
        truths = list(self._truths(b))
        for j in range(self.h):
            for i in range(self.w):
                for k in range(self.n):
                    self._prediction(b, k, j, i, truths)
        for truth in truths:
            self._assign(b, truth)
        if self.gauss or self.o.iou_thresh < 1:
            self._average(b)

    def _prediction(self, b, k, j, i, truths) -> None:
        o, at, v, d = self.o, self.at, self.out[b, k, :, j, i], self.delta[b, k, :, j, i]
        box, obj, probs = self._box(b, k, j, i), self.out[b, k, self.at, j, i], self.out[b, k, self.at + 1 :, j, i]
        best, which = 0.0, None
        for truth in truths:
            if iou(box, truth[0]) > best:
                best, which = iou(box, truth[0]), truth
        match = best if (probs > 0.25).any() else 0.0
        d[at] = -o.obj_normalizer * obj
        if match > o.ignore_thresh:
            if not o.objectness_smooth:
                d[at] = 0.0
            elif self.gauss:
                d[at] = o.obj_normalizer * (match**2 - obj)
                self._class(v, d, which[1])
            else:
                d[at] = max(d[at], o.obj_normalizer * (match - obj))
        elif self.adversarial:
            self._hide(v, d, box)
        if best > o.truth_thresh:
            truth, c, _ = which
            d[at] = o.obj_normalizer * ((best**2 if o.objectness_smooth else 1) - obj)
            self._class(v, d, c)
            if o.objectness_smooth:
                d[at + 1 + c] = self._factor(c) * (best**2 - probs[c])
            self._pull_box(b, k, j, i, truth, c)

    def _hide(self, v, d, box: Box) -> None:
        at, scale = self.at, math.sqrt(box.w * box.h)
        d[at] *= scale
        seen = v[at + 1 :] * v[at]
        for c, p in enumerate(v[at + 1 :]):
            if seen[c] > 0.25:
                d[at + 1 + c] = -scale * p
            elif seen[c] < 0.25 and (seen > 0.25).any() and not self.gauss:
                d[at + 1 + c] = scale * (1 - p)
        if (seen > 0.25).any() and not self.gauss:
            d[:4] -= scale * v[:4]

    def _class(self, v, d, c: int) -> None:
        o, start = self.o, self.at + 1
        probs, rates = v[start:], d[start:]
        right, wrong = 1 - o.label_smooth_eps / 2, o.label_smooth_eps / 2
        counted = o.counters_per_class is not None
        if rates[0 if self.gauss else c] != 0:
            rates[c] = (right - probs[c]) * (self._factor(c) if counted else 1)
            return
        for k, p in enumerate(probs):
            if getattr(o, "focal_loss", 0):
                pt = probs[c] + 1e-15
                rates[k] = -0.5 * (1 - pt) * (2 * pt * math.log(pt) + pt - 1) * ((k == c) - p)
            else:
                rates[k] = (right if k == c else wrong) - p
                if counted and k == c:
                    rates[k] *= self._factor(c) * o.cls_normalizer

    def _assign(self, b: int, truth) -> None:
        t, o = truth[0], self.o
        x, y = t.x, t.y
        side = {"left_top": -0.5, "right_bottom": 0.5}.get(getattr(self.head, "point", "center"))
        if side:
            x, y = x + side * t.w, y + side * t.h
        i, j = (min(size - 1, max(0, int(at * size))) for at, size in ((x, self.w), (y, self.h)))
        shape = Box(0, 0, t.w, t.h)
        anchors = [Box(0, 0, aw / self.net[0], ah / self.net[1]) for aw, ah in map(self._anchor, range(o.num))]
        best = max(range(o.num), key=lambda k: (iou(anchors[k], shape), -k))
        if best in self.head.mask:
            k = self.head.mask.index(best)
            self._pull(b, k, j, i, truth)
            self.labels[b, k, j, i], self.classes[b, k, j, i] = int(truth[2]), truth[1]
        if o.iou_thresh < 1:
            for number in range(o.num):
                fits = KINDS.get(o.iou_thresh_kind, iou)(anchors[number], shape) > o.iou_thresh
                if number in self.head.mask and number != best and fits:
                    self._pull(b, self.head.mask.index(number), j, i, truth)

    def _pull(self, b, k, j, i, truth) -> None:
        o, at, (t, c, _) = self.o, self.at, truth
        v, d, box = self.out[b, k, :, j, i], self.delta[b, k, :, j, i], self._box(b, k, j, i)
        self._pull_box(b, k, j, i, t, c)
        self.counts["count"] += 1
        self.counts["iou"] += giou(box, t) if self.gauss and o.iou_loss != "mse" else iou(box, t)
        self.counts["distance"] += 1 - (giou if o.iou_loss == "giou" else iou)(box, t)
        if self.gauss or not o.objectness_smooth or d[at] == 0:
            d[at] = self._factor(c) * o.obj_normalizer * (1 - v[at])
        self._class(v, d, c)

    def _pull_box(self, b, k, j, i, t: Box, c: int) -> None:
        d = self.delta[b, k, : self.at, j, i]
        self.counts["rewritten"] += bool(d.any())
        self.counts["boxes"] += 1
        push = (self._gauss_push if self.gauss else self._push)(b, k, j, i, t, c)
        d += [p if math.isfinite(p) else 0.0 for p in push]

    def _clip(self, value: float) -> float:
        return max(-self.o.max_delta, min(self.o.max_delta, value if math.isfinite(value) else 0.0))

    def _wanted(self, k, j, i, t: Box) -> list[float]:
        (aw, ah), (net_w, net_h) = self._anchor(self.head.mask[k]), self.net
        side = {"left_top": -0.5, "right_bottom": 0.5}.get(getattr(self.head, "point", "center"), 0.0)
        x, y = t.x + side * t.w, t.y + side * t.h
        ratio = t.w * net_w / aw, t.h * net_h / ah
        size = [math.sqrt(r / 4) if getattr(self.o, "new_coords", 0) else math.log(r) for r in ratio]
        return [x * self.w - i, y * self.h - j, *size]

    def _push(self, b, k, j, i, t: Box, c: int) -> list[float]:
        o, v = self.o, self.out[b, k, :, j, i]
        norm = o.iou_normalizer * self._factor(c)
        if o.iou_loss == "mse":
            wanted = self._wanted(k, j, i, t)
            return [(2 - t.w * t.h) * norm * (a - m) for a, m in zip(wanted, v[:4], strict=True)]
        push = box_gradient(self._box(b, k, j, i), t, o.iou_loss)
        if not o.new_coords:
            push[2], push[3] = push[2] * math.exp(v[2]), push[3] * math.exp(v[3])
        return [self._clip(p * norm) for p in push]

    def _gauss_push(self, b, k, j, i, t: Box, c: int) -> list[float]:
        o, v = self.o, self.out[b, k, :, j, i]
        norm, point = o.iou_normalizer * self._factor(c), self.head.point
        means = None
        if o.iou_loss != "mse":
            means = box_gradient(self._box(b, k, j, i), t, o.iou_loss)
            sign = {"left_top": -1, "right_bottom": 1}.get(point, 0)
            means[0], means[1] = means[0] + sign * means[2] / 2, means[1] + sign * means[3] / 2
            means[2], means[3] = means[2] * math.exp(v[4]), means[3] * math.exp(v[6])
        push = []
        for number, wanted in enumerate(self._wanted(k, j, i, t)):
            mean, sigma = v[2 * number], v[2 * number + 1]
            z = (wanted - mean) / sigma
            density = math.exp(-z * z / 2) / (math.sqrt(2 * math.pi) * (sigma + 0.3))
            weight = 0.5 * density / (density + 1e-9) * (2 - t.w * t.h)
            push.append(self._clip((means[number] if means else weight * z / sigma) * norm))
            push.append(self._clip(weight * (z * z / sigma - 1 / (sigma + 0.3)) * o.uc_normalizer))
        return push

    def _average(self, b: int) -> None:
        for k, j, i in np.ndindex(self.n, self.h, self.w):
            d = self.delta[b, k, :, j, i]
            positive = int((d[self.at + 1 :] > 0).sum())
            if positive and (self.gauss or d[self.at] != 0):
                d[: self.at] /= positive
