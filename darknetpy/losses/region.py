"""Loss of the [region] head, as deltas (Darknet: `forward_region_layer`). All arrays are (B, H, W, n, entries)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from darknetpy.boxes import iou
from darknetpy.layers.constants import constant
from darknetpy.layers.region import Region
from darknetpy.losses.anchors import best_overlap, ends, finite, shape_overlap, usable
from darknetpy.losses.base import HeadLoss, LossContext, mapped, mean

WARM_UP = 12800
"""Images during which every cell is pulled to its anchor."""
WARM_UP_SCALE = 0.01
CLASS_ONLY = 100_000
"""Centres beyond this mark a truth that has a class but no box."""


def region_loss(head: Region, output: Tensor, truth: Tensor, context: LossContext) -> HeadLoss:
    """Delta and cost of a mini-batch; the delta has the layout of the output, cell by cell.

    Args:
        output: (B, n (5 + classes), H, W), activated; its memory is (B, H, W, n, 5 + classes).
        truth: (B, M, 6) rows x, y, w, h, class, track.
    """
    y, o = head.cells(output), head.options
    s = _Scene(head, y, head.decode_maps(output), truth, usable(truth, head.classes), torch.zeros_like(y))
    only = s.ok & (truth[..., :2] > CLASS_ONLY).all(-1)
    s.ok = s.ok & ~only.any(1, keepdim=True)  # an image with a class-only truth is trained on nothing else
    overlap, which = best_overlap(s.boxes.view(len(y), -1, 4), truth, s.ok)
    overlap, which = overlap.view(y.shape[:4]), which.view(y.shape[:4])
    objectness = y[..., 4]
    slope = objectness * (1 - objectness)
    if o.classfix == -1:
        s.delta[..., 4] = o.noobject_scale * (overlap - objectness) * slope
    else:
        high = overlap > o.thresh
        s.delta[..., 4] = torch.where(high, 0.0, -o.noobject_scale * objectness * slope)
        if o.classfix > 0:
            _classes_of_high(s, high, which)
    if context.seen < WARM_UP:
        s.delta[..., :4] += _to_anchors(y)
    stats = _objects(s, context)
    if head.tree is not None:
        _class_only(s, only)
    stats["no_obj"] = torch.where(only.any(1).view(-1, 1, 1, 1), 0.0, objectness).mean()
    stats["class"] = mean(s.likelihood, s.class_count)
    return HeadLoss(s.delta.reshape(output.shape), (s.delta * s.delta).sum(), stats)


@dataclass
class _Scene:
    """Head, output and delta (B, H, W, n, entries), boxes (B, H, W, n, 4), truths, which of them to use, and the sum
    and number of class probabilities looked at, for the printed line."""

    head: Region
    y: Tensor
    boxes: Tensor
    truth: Tensor
    ok: Tensor
    delta: Tensor
    likelihood: Tensor | float = 0.0
    class_count: Tensor | int = 0

    def count_classes(self, probs: Tensor, target: Tensor, on: Tensor) -> None:
        likely = _path_probability(self.head, probs, target)
        self.likelihood = self.likelihood + torch.where(on, likely, 0.0).sum()
        self.class_count = self.class_count + on.sum()


def _to_anchors(y: Tensor) -> Tensor:
    """Pull towards the anchor in the middle of the cell."""
    sx, sy = torch.sigmoid(y[..., 0]), torch.sigmoid(y[..., 1])
    parts = [(0.5 - sx) * sx * (1 - sx), (0.5 - sy) * sy * (1 - sy), -y[..., 2], -y[..., 3]]
    return WARM_UP_SCALE * torch.stack(parts, -1)


def _class_delta(head: Region, probs: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
    """(P, classes): one-hot minus probabilities, times class_scale; and which of them are written (None: all).

    In a tree the groups on the path from the class to the root are written, others stay.
    """
    o = head.options
    if head.tree is not None:
        paths, groups = head.tree.tables(probs.device)
        hot = torch.zeros_like(torch.cat([probs, probs[:, :1]], 1)).scatter_(1, paths[target], 1.0)[:, :-1]
        groups = groups.expand(len(target), -1)
        touched = probs.new_zeros(len(target), len(head.tree.sizes)).scatter_reduce(1, groups, hot, "amax")
        return o.class_scale * (hot - probs), touched.gather(1, groups) > 0
    hot = (torch.arange(head.classes, device=probs.device) == target[:, None]).to(probs.dtype)
    if o.focal_loss:
        pt = probs.gather(1, target[:, None]) + 1e-15
        grad = -(1 - pt) * (2 * pt * torch.log(pt) + pt - 1)
        return finite(o.class_scale * 0.5 * grad * (hot - probs)), None
    return o.class_scale * (hot - probs), None


def _path_probability(head: Region, probs: Tensor, target: Tensor) -> Tensor:
    """Probability of the class, in a tree the product up to the root."""
    if head.tree is None:
        return probs.gather(1, target[:, None])[:, 0]
    paths, _ = head.tree.tables(probs.device)
    padded = torch.cat([probs, torch.ones_like(probs[:, :1])], 1)
    return padded.gather(1, paths[target]).prod(1)


def _classes_of_high(s: _Scene, high: Tensor, which: Tensor) -> None:
    """classfix: predictions that overlap a truth learn its class, too (not through `map`, as Darknet)."""
    head, objectness = s.head, s.y[..., 4]
    images = torch.arange(len(s.y), device=s.y.device).view(-1, 1, 1, 1)
    target = s.truth[images, which][..., 4].long().clamp(0, head.classes - 1).reshape(-1)
    probs = s.y[..., 5:].reshape(-1, head.classes)
    rates, touched = _class_delta(head, probs, target)
    rates = rates.view_as(s.y[..., 5:])
    if head.options.classfix == 2:
        rates = rates * objectness[..., None]
    on = high[..., None] if touched is None else high[..., None] & touched.view_as(rates)
    s.delta[..., 5:] = torch.where(on, rates, s.delta[..., 5:])
    s.count_classes(probs, target, high.reshape(-1))


def _objects(s: _Scene, context: LossContext) -> dict[str, Tensor]:
    """Every truth trains the best anchor of its cell; a later truth on the same one overwrites."""
    head, o, (b, h, w, n, entries) = s.head, s.head.options, s.y.shape
    m = s.truth.shape[1]
    image = torch.arange(b, device=s.y.device).view(b, 1).expand(b, m)
    column = (s.truth[..., 0] * w).long().clamp(0, w - 1)
    row = (s.truth[..., 1] * h).long().clamp(0, h - 1)
    anchors = constant(head.anchors, s.y).view(-1, 2) / constant((w, h), s.y)
    fit = shape_overlap(anchors if o.bias_match else s.boxes[image, row, column][..., 2:4], s.truth)
    best = fit.argmax(-1)
    cell = (((image * h + row) * w + column) * n + best).reshape(-1)
    if context.strict:  # where no anchor overlaps, Darknet trains the first of the batch
        cell = torch.where(fit.amax(-1).reshape(-1) > 0, cell, 0)
    on, truth = s.ok.reshape(-1), s.truth.reshape(-1, s.truth.shape[-1])

    values = s.y.reshape(-1, entries)[cell]
    overlap = iou(s.boxes.reshape(-1, 4)[cell], truth[:, :4])
    objectness, probs = values[:, 4], values[:, 5:]
    aim = overlap if o.rescore else torch.ones_like(overlap)
    pull = o.object_scale * (aim - objectness) * objectness * (1 - objectness)
    push = _box_delta(values, truth, column.reshape(-1), row.reshape(-1), anchors[best.reshape(-1)], w, h)
    source = truth[:, 4].long().clamp(0, head.classes - 1)
    target = mapped(head.class_map, source).clamp(0, head.classes - 1)
    _, last = ends(cell, b * h * w * n, on)
    _write(s, slice(0, 5), cell, last, torch.cat([o.coord_scale * push, pull[:, None]], 1))
    rates, touched = _class_delta(head, probs, target)
    if touched is None:
        _write(s, slice(5, None), cell, last, rates)
    else:
        _write_last(s, cell, on[:, None] & touched, rates)
    s.count_classes(probs, target, on)
    count = on.sum()
    return {
        "avg_iou": mean(torch.where(on, overlap, 0.0).sum(), count),
        "obj": mean(torch.where(on, objectness, 0.0).sum(), count),
        "recall": mean((on & (overlap > 0.5)).sum(), count),
        "count": count,
    }


def _write(s: _Scene, entries: slice, cell: Tensor, on: Tensor, values: Tensor) -> None:
    """Put rows of `values` into entries of their cells, where `on`; no two rows that are on share a cell."""
    flat = s.delta.view(-1, s.delta.shape[-1])
    part = flat[:, entries]
    spare = torch.cat([part, part[:1]])
    spare[torch.where(on, cell, len(part))] = values
    flat[:, entries] = spare[:-1]


def _write_last(s: _Scene, cell: Tensor, on: Tensor, values: Tensor) -> None:
    """Put class deltas (P, classes) where `on` (P, classes); of several on one number the last one stays."""
    flat = s.delta.view(-1, s.delta.shape[-1])
    order = torch.where(on, torch.arange(len(cell), device=cell.device)[:, None], -1)
    last = torch.full((len(flat), order.shape[1]), -1, device=cell.device)
    last = last.scatter_reduce(0, cell[:, None].expand_as(order), order, "amax")
    flat[:, 5:] = torch.where(last >= 0, values.gather(0, last.clamp(min=0)), flat[:, 5:])


def _box_delta(values, truth, column, row, anchors, w: int, h: int) -> Tensor:
    """(P, 4): with the slope of the logistic on x and y (Darknet: `delta_region_box`)."""
    sx, sy = torch.sigmoid(values[:, 0]), torch.sigmoid(values[:, 1])
    size = torch.log(truth[:, 2:4] / anchors)
    return torch.stack(
        [
            (truth[:, 0] * w - column - sx) * sx * (1 - sx),
            (truth[:, 1] * h - row - sy) * sy * (1 - sy),
            size[:, 0] - values[:, 2],
            size[:, 1] - values[:, 3],
        ],
        1,
    )


def _class_only(s: _Scene, only: Tensor) -> None:
    """An image with a class but no box trains the cell that already believes in it most, and nothing else."""
    head, has = s.head, only.any(1)
    images = torch.arange(len(s.y), device=s.y.device)
    first = only.to(torch.uint8).argmax(1)
    target = s.truth[images, first][:, 4].long().clamp(0, head.classes - 1)
    cells = s.y.view(len(s.y), -1, s.y.shape[-1])
    per_cell = target[:, None].expand(cells.shape[:2]).reshape(-1)
    likely = _path_probability(head, cells[..., 5:].reshape(-1, head.classes), per_cell).view(cells.shape[:2])
    best = (likely * cells[..., 4]).argmax(1)
    probs = cells[images, best][:, 5:]
    rates, touched = _class_delta(head, probs, target)
    alone = torch.zeros_like(cells)
    alone[images, best, 5:] = torch.where(touched, rates, 0.0)
    s.delta = torch.where(has.view(-1, 1, 1, 1, 1), alone.view_as(s.delta), s.delta)
    s.count_classes(probs, target, has)


def printed(head: Region, loss: HeadLoss) -> list[str]:
    """Darknet's line of this head."""
    s = loss.numbers()
    return [
        f"Region Avg IOU: {s['avg_iou']:f}, Class: {s['class']:f}, Obj: {s['obj']:f}, No Obj: {s['no_obj']:f}, "
        f"Avg Recall: {s['recall']:f},  count: {s['count']:.0f}"
    ]
