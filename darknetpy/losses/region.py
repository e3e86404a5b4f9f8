"""Loss of the [region] head, as deltas (Darknet: `forward_region_layer`). All arrays are (B, H, W, n, entries)."""

from __future__ import annotations

import torch
from torch import Tensor

from darknetpy.boxes import iou
from darknetpy.layers.region import Region
from darknetpy.losses.anchors import SLAB
from darknetpy.losses.base import HeadLoss, LossContext, mapped, valid_rows

WARM_UP = 12800
"""Images during which every cell is pulled to its anchor."""
WARM_UP_SCALE = 0.01
CLASS_ONLY = 100_000
"""Centres beyond this mark a truth that has a class but no box."""


def region_loss(head: Region, output: Tensor, truth: Tensor, context: LossContext) -> HeadLoss:
    """Delta and cost of a mini-batch; the delta has the layout of the output, cell by cell."""
    y = head.cells(output)
    boxes = head.decode_maps(output)
    o = head.options
    ok = valid_rows(truth) & (truth[..., 4] >= 0) & (truth[..., 4] < head.classes)
    boxed = ok & (truth[..., 0] <= CLASS_ONLY)
    delta = torch.zeros_like(y)
    objectness = y[..., 4]
    slope = objectness * (1 - objectness)
    overlap, which = _overlaps(boxes, truth, boxed)
    aim = overlap if o.classfix == -1 else torch.zeros_like(overlap)
    push = o.noobject_scale * (aim - objectness) * slope
    if o.classfix != -1:
        high = overlap > o.thresh
        push = torch.where(high, 0.0, push)
        if o.classfix > 0:
            _classes_of_high(head, y, delta, truth, high, which, objectness)
    delta[..., 4] = push
    if context.seen < WARM_UP:
        delta[..., :4] += _to_anchors(head, y)
    stats = _objects(head, y, boxes, truth, boxed, delta, context)
    if head.tree is not None:
        _class_only(head, y, truth, ok & ~boxed, delta, stats)
    cost = (delta * delta).sum()
    stats["no_obj"] = objectness.mean()
    return HeadLoss(delta.reshape(output.shape), cost, stats)


def _overlaps(boxes: Tensor, truth: Tensor, ok: Tensor) -> tuple[Tensor, Tensor]:
    b = len(boxes)
    flat = boxes.view(b, -1, 4)
    rows = max(1, SLAB // max(1, flat.shape[1] * truth.shape[1]))
    parts = []
    for low in range(0, b, rows):
        part = slice(low, low + rows)
        parts.append((iou(flat[part, :, None], truth[part, None, :, :4]) * ok[part, None]).max(-1))
    shape = boxes.shape[:-1]
    return torch.cat([p.values for p in parts]).view(shape), torch.cat([p.indices for p in parts]).view(shape)


def _to_anchors(head: Region, y: Tensor) -> Tensor:
    """Pull towards the anchor in the middle of the cell."""
    sx, sy = torch.sigmoid(y[..., 0]), torch.sigmoid(y[..., 1])
    parts = [(0.5 - sx) * sx * (1 - sx), (0.5 - sy) * sy * (1 - sy), -y[..., 2], -y[..., 3]]
    return WARM_UP_SCALE * torch.stack(parts, -1)


def _class_delta(head: Region, probs: Tensor, target: Tensor, scale: float) -> Tensor:
    """(P, classes): one-hot minus probabilities; in a tree, for every group on the path from the class to the root."""
    o = head.options
    if head.tree is not None:
        return scale * _tree_delta(head, probs, target)
    hot = torch.nn.functional.one_hot(target, head.classes).to(probs.dtype)
    if o.focal_loss:
        pt = probs.gather(1, target[:, None]) + 1e-15
        grad = -(1 - pt) * (2 * pt * torch.log(pt) + pt - 1)
        return scale * 0.5 * grad * (hot - probs)
    return scale * (hot - probs)


def _tree_delta(head: Region, probs: Tensor, target: Tensor) -> Tensor:
    tree = head.tree
    paths, groups = _tree_tables(tree, probs.device)
    hot = torch.zeros(len(target), tree.size + 1, device=probs.device)
    hot.scatter_(1, paths[target], 1.0)
    hot = hot[:, :-1]
    touched = torch.zeros(len(target), len(tree.sizes), device=probs.device).scatter_reduce(
        1, groups.expand(len(target), -1), hot, "amax"
    )
    return (hot - probs) * touched.gather(1, groups.expand(len(target), -1))


def _tree_tables(tree, device):
    """Paths of all classes padded with the spare number, and the group of each class (kept with the tree)."""
    cache = tree.__dict__.setdefault("tables", {})
    if device not in cache:
        paths = tree.paths()
        depth = max(len(path) for path in paths)
        padded = [path + [tree.size] * (depth - len(path)) for path in paths]
        cache[device] = torch.tensor(padded, device=device), torch.tensor(tree.groups, device=device)
    return cache[device]


def _path_probability(head: Region, probs: Tensor, target: Tensor) -> Tensor:
    """Probability of the class, in a tree the product up to the root."""
    if head.tree is None:
        return probs.gather(1, target[:, None])[:, 0]
    paths, _ = _tree_tables(head.tree, probs.device)
    padded = torch.cat([probs, torch.ones_like(probs[:, :1])], 1)
    return padded.gather(1, paths[target]).prod(1)


def _classes_of_high(head: Region, y, delta, truth, high, which, objectness) -> None:
    """classfix: predictions that overlap a truth learn its class, too."""
    images = torch.arange(len(y), device=y.device).view(-1, 1, 1, 1)
    ids = truth[images, which][..., 4].long().clamp(0, head.classes - 1)
    target = mapped(head.class_map, ids).reshape(-1)
    scale = head.options.class_scale
    rates = _class_delta(head, y[..., 5:].reshape(-1, head.classes), target, scale).view_as(y[..., 5:])
    if head.options.classfix == 2:
        rates = rates * objectness[..., None]
    delta[..., 5:] = torch.where(high[..., None], rates, delta[..., 5:])


def _objects(head: Region, y, boxes, truth, ok, delta, context: LossContext) -> dict[str, Tensor]:
    """Every truth trains the best anchor of its cell; a later truth on the same one overwrites."""
    o, (b, h, w, n, entries) = head.options, y.shape
    m = truth.shape[1]
    image = torch.arange(b, device=y.device).view(b, 1).expand(b, m)
    column, row = (truth[..., 0] * w).long().clamp(0, w - 1), (truth[..., 1] * h).long().clamp(0, h - 1)
    anchors = y.new_tensor(head.anchors).view(-1, 2) / y.new_tensor([w, h])
    shapes = anchors.expand(b, m, n, 2) if o.bias_match else boxes[image, row, column][..., 2:4]
    zeros = torch.zeros_like(shapes)
    want = truth[..., None, 2:4]
    fit = iou(torch.cat([zeros, shapes], -1), torch.cat([torch.zeros_like(want), want], -1))
    best = fit.argmax(-1)
    cell = ((image * h + row) * w + column) * n + best
    cells = b * h * w * n
    cell = torch.where(ok, cell, cells).reshape(-1)
    order = torch.arange(cell.numel(), device=y.device)
    last = torch.full((cells + 1,), -1, device=y.device).scatter_reduce(0, cell, order, "amax")
    final = (last[cell] == order) & ok.reshape(-1)

    index = cell.clamp(max=cells - 1)
    values, flat_truth = y.view(-1, entries)[index], truth.reshape(-1, truth.shape[-1])
    pred = boxes.view(-1, 4)[index]
    overlap = iou(pred, flat_truth[:, :4])
    objectness = values[:, 4]
    aim = overlap if o.rescore else torch.ones_like(overlap)
    pull = o.object_scale * (aim - objectness) * objectness * (1 - objectness)
    if o.classfix == -1:
        pull = o.object_scale * (1 - objectness) * objectness * (1 - objectness)
    push = o.coord_scale * _box_delta(values, flat_truth, column.reshape(-1), row.reshape(-1), anchors[best.reshape(-1)], w, h)
    source = flat_truth[:, 4].long().clamp(0, head.classes - 1)
    target = mapped(head.class_map, source).clamp(0, head.classes - 1)
    rates = _class_delta(head, values[:, 5:], target, o.class_scale)
    where = torch.where(final, cell, cells)
    spare = torch.cat([delta.view(-1, entries), delta.new_zeros(1, entries)])
    spare[where] = torch.cat([push, pull[:, None], rates], 1)
    delta.copy_(spare[:-1].view_as(delta))
    on = ok.reshape(-1)
    count = on.sum().clamp(min=1)
    return {
        "avg_iou": torch.where(on, overlap, 0.0).sum() / count,
        "class": torch.where(on, _path_probability(head, values[:, 5:], target), 0.0).sum() / count,
        "obj": torch.where(on, objectness, 0.0).sum() / count,
        "recall": (on & (overlap > 0.5)).sum() / count,
        "count": on.sum(),
    }


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


def _class_only(head: Region, y, truth, only, delta, stats) -> None:
    """An image with a class but no box trains the cell that already believes in it most, and nothing else."""
    has = only.any(1)
    first = only.float().argmax(1)
    images = torch.arange(len(y), device=y.device)
    ids = truth[images, first][:, 4].long().clamp(0, head.classes - 1)
    target = mapped(head.class_map, ids).clamp(0, head.classes - 1)
    cells = y.view(len(y), -1, y.shape[-1])
    per_cell = target[:, None].expand(-1, cells.shape[1]).reshape(-1)
    belief = _path_probability(head, cells[..., 5:].reshape(-1, head.classes), per_cell).view(len(y), -1) * cells[..., 4]
    best = belief.argmax(1)
    rates = _class_delta(head, cells[images, best][:, 5:], target, head.options.class_scale)
    alone = torch.zeros_like(cells)
    alone[images, best, 5:] = rates
    delta.copy_(torch.where(has.view(-1, 1, 1, 1, 1), alone.view_as(delta), delta))


def printed(head: Region, loss: HeadLoss) -> str:
    """Darknet's line of this head."""
    s = {name: float(value) for name, value in loss.stats.items()}
    return (
        f"Region Avg IOU: {s['avg_iou']:f}, Class: {s['class']:f}, Obj: {s['obj']:f}, No Obj: {s['no_obj']:f}, "
        f"Avg Recall: {s['recall']:f},  count: {s['count']:.0f}"
    )
