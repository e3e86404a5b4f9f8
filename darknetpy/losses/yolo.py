"""Loss of the [yolo] head, as deltas (Darknet: `process_batch`, `forward_yolo_layer`).

Two steps: every prediction is pushed towards "no object" unless it overlaps a truth well enough; then every truth
pulls the predictions assigned to it. Several truths on one prediction add up in the box, the last one sets the
objectness, and each keeps its class.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from darknetpy.boxes import giou, iou
from darknetpy.layers.yolo import Yolo
from darknetpy.losses.anchors import (
    MATCH_PROBABILITY,
    Assignment,
    Delta,
    assign,
    best_overlap,
    class_multipliers,
    finite,
    rewritten,
    usable,
)
from darknetpy.losses.base import HeadLoss, LossContext, mapped
from darknetpy.losses.box import iou_gradient
from darknetpy.losses.rejection import reject


@dataclass
class _Scene:
    """What the two steps look at: the head, its activated output and decoded boxes, the truths, the deltas so far."""

    head: Yolo
    maps: Tensor
    boxes: Tensor
    truth: Tensor
    ok: Tensor
    delta: Delta
    multipliers: Tensor | None
    context: LossContext


def yolo_loss(head: Yolo, output: Tensor, truth: Tensor, context: LossContext) -> HeadLoss:
    """Delta and cost of a mini-batch.

    Args:
        output: (B, n (5 + classes), H, W), activated.
        truth: (B, M, 6) rows x, y, w, h, class, track.
    """
    h, w = output.shape[2:]
    delta = Delta(output, head.n, 5 + head.classes)
    maps = output.view(len(output), head.n, -1, h, w)
    boxes = head.decode_maps(output, context.net_w, context.net_h)
    ok = usable(truth, head.classes)
    scene = _Scene(head, maps, boxes, truth, ok, delta, class_multipliers(head, output), context)
    preset = _background(scene)
    pairs = assign(head, truth, ok, (w, h), context)
    measured = _objects(scene, pairs, preset)
    if head.options.iou_thresh < 1.0:
        _share_boxes(delta.maps, 4)
    if not context.adversarial:
        reject(delta.flat[:-1], head.classes, context)
    loss = _cost(head, delta.maps, measured, context)
    loss.delta = delta.maps.reshape(output.shape)
    if head.index is not None:
        loss.labels, loss.classes = _labels(scene, pairs)
    return loss


def _background(s: _Scene) -> Tensor | None:
    """Step A. Returns a mask (B, n, H, W) of predictions that were pulled up already, where that can happen."""
    o, (b, n, _, h, w) = s.head.options, s.maps.shape
    overlap, which = best_overlap(s.boxes.reshape(b, -1, 4), s.truth, s.ok)
    overlap, which = overlap.view(b, n, h, w), which.view(b, n, h, w)
    objectness = torch.nan_to_num(s.maps[:, :, 4], nan=0.0)
    likely = (s.maps[:, :, 5:] > MATCH_PROBABILITY).any(2)
    match = torch.where(likely, overlap, 0.0)
    push = -o.obj_normalizer * objectness
    ignored = match > o.ignore_thresh
    if o.objectness_smooth:
        push = torch.where(ignored, torch.maximum(push, o.obj_normalizer * (match - objectness)), push)
    else:
        push = torch.where(ignored, 0.0, push)
    if s.context.adversarial:
        push = _adversarial(s, push, ignored)
    s.delta.maps[:, :, 4] = push
    if o.truth_thresh >= 1.0:
        return None
    high = overlap > o.truth_thresh
    _pull_high(s, high, overlap, which, objectness)
    return high


def _adversarial(s: _Scene, push: Tensor, ignored: Tensor) -> Tensor:
    """Hide what is seen: objectness goes down with the box's size, likely classes and their boxes are disturbed."""
    o, maps, deltas = s.head.options, s.maps, s.delta.maps
    scale = torch.sqrt(s.boxes[..., 2] * s.boxes[..., 3])
    probs = maps[:, :, 5:] * maps[:, :, 4:5]
    likely = (probs > MATCH_PROBABILITY) & ~ignored[:, :, None]
    found = likely.any(2, keepdim=True)
    deltas[:, :, 5:] = torch.where(likely, -scale[:, :, None] * maps[:, :, 5:], 0.0)
    others = found & ~likely & (probs < MATCH_PROBABILITY)
    deltas[:, :, 5:] += torch.where(others, scale[:, :, None] * (1 - maps[:, :, 5:]), 0.0)
    deltas[:, :, :4] -= torch.where(found, scale[:, :, None] * maps[:, :, :4], 0.0)
    return torch.where(ignored, push, scale * -o.obj_normalizer * maps[:, :, 4])


def _pull_high(s: _Scene, high: Tensor, overlap: Tensor, which: Tensor, objectness: Tensor) -> None:
    """Predictions that overlap a truth by more than truth_thresh are trained on it."""
    o, maps, deltas = s.head.options, s.maps, s.delta.maps
    b, n, _, h, w = maps.shape
    images = torch.arange(b, device=maps.device).view(b, 1, 1, 1)
    rows = s.truth[images, which]
    target = mapped(s.head.class_map, rows[..., 4].long()).clamp(0, s.head.classes - 1)
    aim = overlap * overlap if o.objectness_smooth else torch.ones_like(overlap)
    deltas[:, :, 4] = torch.where(high, o.obj_normalizer * (aim - objectness), deltas[:, :, 4])
    probs = maps[:, :, 5:].permute(0, 1, 3, 4, 2).reshape(-1, s.head.classes)
    rates = _first_class_delta(s, probs, target.reshape(-1))
    if o.objectness_smooth:
        index = target.reshape(-1, 1)
        factor = _factor(s, target.reshape(-1))
        value = factor * (aim.reshape(-1) - probs.gather(1, index)[:, 0])
        rates = rates.scatter(1, index, value[:, None])
    rates = rates.view(b, n, h, w, -1).permute(0, 1, 4, 2, 3)
    deltas[:, :, 5:] = torch.where(high[:, :, None], rates, 0.0)
    cells = torch.nonzero(torch.ones_like(high)).unbind(1)
    image, anchor, row, column = cells
    push = _box_delta(s, rows[..., :4].reshape(-1, 4), target.reshape(-1), image, anchor, row, column)
    push = push.view(b, n, h, w, 4).permute(0, 1, 4, 2, 3)
    deltas[:, :, :4] += torch.where(high[:, :, None], push, 0.0)


def _objects(s: _Scene, a: Assignment, preset: Tensor | None) -> dict[str, Tensor]:
    """Step B: every pair pulls its prediction; returns what the printed line and the cost need."""
    o, delta = s.head.options, s.delta
    values = s.maps[a.image, a.anchor, :, a.row, a.column]
    push = _box_delta(s, a.truth, a.source, a.image, a.anchor, a.row, a.column)
    entries = torch.arange(4, device=push.device)
    where = delta.place(_wide(a), entries, a.on[:, None])
    written = (push != 0).any(1)
    cells = s.maps[:, :, 0].numel()
    repeats = rewritten(a, written, cells)
    if preset is not None:
        repeats = repeats + (a.first & preset[a.image, a.anchor, a.row, a.column]).sum()
    delta.add(where, push)
    _pull_objectness(s, a, values)
    _pull_classes(s, a, values, preset)
    pred = s.boxes[a.image, a.anchor, a.row, a.column]
    overlap = torch.where(a.on, iou(pred, a.truth), 0.0)
    count = a.on.sum()
    pulled = 0 if preset is None else preset.sum()
    loss = 1 - (giou(pred, a.truth) if o.iou_loss == "giou" else iou(pred, a.truth))
    return {"count": count, "iou": overlap.sum(), "iou_loss": torch.where(a.on, loss, 0.0).sum(),
            "boxes": count + pulled, "rewritten": repeats}  # fmt: skip


def _wide(a: Assignment) -> Assignment:
    """Indices with a trailing axis, to combine with entries."""
    return Assignment(**{name: value[:, None] if value.dim() == 1 else value for name, value in a.__dict__.items()})


def _factor(s: _Scene, classes: Tensor) -> Tensor:
    """Multiplier of each pair's class, 1 without counters."""
    if s.multipliers is None:
        return torch.ones_like(classes, dtype=s.maps.dtype)
    return s.multipliers[classes]


def _box_delta(s: _Scene, truth: Tensor, classes: Tensor, image, anchor, row, column) -> Tensor:
    """(P, 4) deltas of x, y, w, h (Darknet: `delta_yolo_box`)."""
    o, head = s.head.options, s.head
    h, w = s.maps.shape[3:]
    values = s.maps[image, anchor, :4, row, column]
    normalizer = (o.iou_normalizer * _factor(s, classes))[:, None]
    if o.iou_loss == "mse":
        anchors = values.new_tensor(head.anchors).view(-1, 2)
        index = torch.tensor([min(max(k, 0), len(anchors) - 1) for k in head.mask], device=values.device)
        size = truth[:, 2:4] * values.new_tensor([s.context.net_w, s.context.net_h]) / anchors[index][anchor]
        size = torch.sqrt(size / 4) if o.new_coords else torch.log(size)
        place = torch.stack([truth[:, 0] * w - column, truth[:, 1] * h - row], 1)
        scale = (2 - truth[:, 2] * truth[:, 3])[:, None]
        return finite(scale * (torch.cat([place, size], 1) - values) * normalizer)
    kind = o.iou_loss if o.iou_loss in ("giou", "diou", "ciou") else "iou"
    push = iou_gradient(s.boxes[image, anchor, row, column], truth, kind)
    if not o.new_coords:
        push = torch.cat([push[:, :2], push[:, 2:] * torch.exp(values[:, 2:4])], 1)
    push = finite(push * normalizer)
    return push.clamp(-o.max_delta, o.max_delta)


def _pull_objectness(s: _Scene, a: Assignment, values: Tensor) -> None:
    o, delta = s.head.options, s.delta
    pull = _factor(s, a.source) * o.obj_normalizer * (1 - torch.nan_to_num(values[:, 4], nan=0.0))
    if o.objectness_smooth:  # only where nothing was there; the first truth then fills it
        current = delta.maps[a.image, a.anchor, 4, a.row, a.column]
        delta.put(delta.place(a, 4, a.first & (current == 0)), pull)
    else:
        delta.put(delta.place(a, 4, a.last), pull)


def _pull_classes(s: _Scene, a: Assignment, values: Tensor, preset: Tensor | None) -> None:
    """The first truth of a prediction sets all classes; further ones only their own."""
    delta, probs = s.delta, values[:, 5:]
    fresh = a.first
    if preset is not None:
        fresh = fresh & ~preset[a.image, a.anchor, a.row, a.column]
    entries = 5 + torch.arange(s.head.classes, device=probs.device)
    full = _first_class_delta(s, probs, a.target)
    delta.put(delta.place(_wide(a), entries, fresh[:, None]), full)
    own = probs.gather(1, a.target[:, None])[:, 0]
    again = (_aims(s)[0] - own) * _factor(s, a.target)
    delta.put(delta.place(a, 5 + a.target, a.on & ~fresh), finite(again))


def _aims(s: _Scene) -> tuple[float, float]:
    """Targets of the right and the wrong classes, with label smoothing."""
    eps = s.head.options.label_smooth_eps
    return 1 - eps + 0.5 * eps, 0.5 * eps


def _first_class_delta(s: _Scene, probs: Tensor, target: Tensor) -> Tensor:
    """(P, classes) delta of a prediction that no truth has touched (Darknet: `delta_yolo_class`)."""
    o = s.head.options
    hot = torch.nn.functional.one_hot(target, s.head.classes).to(probs.dtype)
    own = probs.gather(1, target[:, None])
    if o.focal_loss:
        pt = own + 1e-15
        grad = -(1 - pt) * (2 * pt * torch.log(pt) + pt - 1)
        return finite(0.5 * grad * (hot - probs))
    right, wrong = _aims(s)
    result = hot * (right - wrong) + wrong - probs
    if s.multipliers is not None:
        result = torch.where(hot > 0, result * s.multipliers[target][:, None] * o.cls_normalizer, result)
    return finite(result)


def _share_boxes(maps: Tensor, entries: int) -> None:
    """With several anchors a truth, box deltas are divided by the number of classes pulled up (Darknet:
    `averages_yolo_deltas`). `entries` numbers before objectness belong to the box."""
    positive = (maps[:, :, entries + 1 :] > 0).sum(2)
    divide = (maps[:, :, entries] != 0) & (positive > 0)
    maps[:, :, :entries] /= torch.where(divide, positive, 1)[:, :, None]


def _cost(head: Yolo, maps: Tensor, measured: dict[str, Tensor], context: LossContext) -> HeadLoss:
    """Cost and printed numbers. With IoU losses and show_details the cost is a mean plus a sum, as Darknet has it."""
    o = head.options
    total = (maps * maps).sum()
    classes = (maps[:, :, 4:] * maps[:, :, 4:]).sum()
    count = measured["count"].clamp(min=1)
    if o.iou_loss == "mse" or not o.show_details:
        cost = total
    else:
        cost = o.iou_normalizer * measured["iou_loss"] / count + o.obj_normalizer * classes
    state = context.state
    for name, value in (("total_bbox", measured["boxes"]), ("rewritten_bbox", measured["rewritten"])):
        state[name] = state.get(name, 0) + value
    class_loss = o.obj_normalizer * classes
    stats = {
        "avg_iou": measured["iou"] / count,
        "count": count,
        "class_loss": class_loss / context.batch,
        "iou_loss": (total - class_loss) / context.batch,
        "total_loss": total / context.batch,
        "total_bbox": state["total_bbox"],
        "rewritten_bbox": state["rewritten_bbox"],
    }
    return HeadLoss(maps, cost, stats)


def _labels(s: _Scene, a: Assignment) -> tuple[Tensor, Tensor]:
    """Track id and class of each cell and anchor, -1 where none: what [contrastive] learns from. Only best anchors."""
    cells = s.maps[:, :, 0].numel()
    labels = s.maps.new_full((cells + 1,), -1.0)
    classes = s.maps.new_full((cells + 1,), -1.0)
    where = torch.where(a.last, a.cell, cells)
    labels[where], classes[where] = a.track.to(labels.dtype), a.target.to(classes.dtype)
    shape = s.maps[:, :, 0].shape
    return labels[:-1].view(shape), classes[:-1].view(shape)


def printed(head: Yolo, loss: HeadLoss) -> str:
    """Darknet's line of this head and the count of boxes, from a finished mini-batch."""
    o, s = head.options, {name: float(value) for name, value in loss.stats.items()}
    kind = {"mse": "mse", "giou": "giou"}.get(o.iou_loss, "iou")
    text = (
        f"v3 ({kind} loss, Normalizer: (iou: {o.iou_normalizer:.2f}, obj: {o.obj_normalizer:.2f}, "
        f"cls: {o.cls_normalizer:.2f}) Region {head.index} Avg (IOU: {s['avg_iou']:f}), count: {s['count']:.0f}, "
    )
    if o.show_details:
        text += f"class_loss = {s['class_loss']:f}, iou_loss = {s['iou_loss']:f}, "
    share = 100 * s["rewritten_bbox"] / s["total_bbox"] if s["total_bbox"] else 0.0
    boxes = f" total_bbox = {s['total_bbox']:.0f}, rewritten_bbox = {share:f} % "
    return f"{text}total_loss = {s['total_loss']:f} \n{boxes}"
