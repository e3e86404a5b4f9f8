"""Loss of the [yolo] head, as deltas (Darknet: `process_batch`, `forward_yolo_layer`).

Two steps: every prediction is pushed towards "no object" unless it overlaps a truth well enough; then every truth
pulls the predictions assigned to it. Several truths on one prediction add up in the box, the last one sets the
objectness, and each keeps its class.
"""

from __future__ import annotations

import torch
from torch import Tensor

from darknetpy.boxes import giou, iou
from darknetpy.layers.constants import constant, whole
from darknetpy.layers.yolo import Yolo
from darknetpy.losses.anchors import Assignment, Places, assign, ends, finite, rewritten
from darknetpy.losses.base import HeadLoss, LossContext, counted, mean
from darknetpy.losses.box import iou_gradient
from darknetpy.losses.rejection import printed_rejection, reject
from darknetpy.losses.rules import (
    MATCH_PROBABILITY,
    Scene,
    overlaps,
    pull_boxes,
    pull_classes,
    pull_high,
    share_boxes,
)

OBJECTNESS = 4
"""Entry of objectness, after x, y, w and h."""


def yolo_loss(head: Yolo, output: Tensor, truth: Tensor, context: LossContext) -> HeadLoss:
    """Delta and cost of a mini-batch.

    Args:
        output: (B, n (5 + classes), H, W), activated.
        truth: (B, M, 6) rows x, y, w, h, class, track.
    """
    h, w = output.shape[2:]
    s = Scene.of(head, output, truth, context, OBJECTNESS, yolo_box_delta)
    preset = _background(s)
    pairs = assign(head, truth, s.ok, (w, h), context)
    measured = _objects(s, pairs, preset)
    if head.options.iou_thresh < 1.0:
        share_boxes(s, s.delta.maps[:, :, OBJECTNESS] != 0)
    rejection = reject(s.delta.flat[:-1], head.classes, context)
    loss = _cost(head, s.delta.maps, measured, context)
    loss.stats.update(rejection)
    loss.delta = s.delta.maps.reshape(output.shape)
    if head.embedding_layer is not None:
        loss.labels, loss.classes = _labels(s, pairs)
    return loss


def _background(s: Scene) -> Tensor | None:
    """Step A. Returns a mask (B, n, H, W) of predictions that were pulled up already, where that can happen."""
    o, objectness, overlap = s.head.options, s.confidence, overlaps(s)
    push = -o.obj_normalizer * objectness
    ignored = overlap.match > o.ignore_thresh
    if o.objectness_smooth:
        push = torch.where(ignored, torch.maximum(push, o.obj_normalizer * (overlap.match - objectness)), push)
    else:
        push = torch.where(ignored, 0.0, push)
    if s.context.adversarial:
        push = _adversarial(s, push, ignored)
    s.delta.maps[:, :, OBJECTNESS] = push
    if o.truth_thresh >= 1.0:
        return None
    high = overlap.best > o.truth_thresh
    pull_high(s, high, overlap)
    return high


def _adversarial(s: Scene, push: Tensor, ignored: Tensor) -> Tensor:
    """Hide what is seen: objectness goes down with the box's size, likely classes and their boxes are disturbed."""
    deltas, probs = s.delta.maps, s.classes
    scale = torch.sqrt(s.boxes[..., 2] * s.boxes[..., 3])
    wide = scale[:, :, None]
    likelihood = probs * s.confidence[:, :, None]
    likely = (likelihood > MATCH_PROBABILITY) & ~ignored[:, :, None]
    found = likely.any(2, keepdim=True)
    others = found & (likelihood < MATCH_PROBABILITY)
    deltas[:, :, 5:] = torch.where(likely, -wide * probs, torch.where(others, wide * (1 - probs), 0.0))
    deltas[:, :, :4] -= torch.where(found, wide * s.maps[:, :, :4], 0.0)
    return torch.where(ignored, push, scale * push)


def _objects(s: Scene, a: Assignment, preset: Tensor | None) -> dict[str, Tensor]:
    """Step B: every pair pulls its prediction; returns what the printed line and the cost need."""
    push = pull_boxes(s, a)
    _pull_objectness(s, a)
    pull_classes(s, a, preset)
    count, pulled = a.on.sum(), 0
    repeats = rewritten(a, (push != 0).any(1), s.boxes[..., 0].numel())
    if preset is not None:
        pulled = preset.sum()
        repeats = repeats + (a.first & a.places.of(preset)).sum()
    boxes = a.places.of(s.boxes)
    overlap = iou(boxes, a.truth)
    distance = 1 - (giou(boxes, a.truth) if s.head.options.iou_loss == "giou" else overlap)
    return {
        "count": count,
        "iou": torch.where(a.on, overlap, 0.0).sum(),
        "distance": torch.where(a.on, distance, 0.0).sum(),
        "boxes": count + pulled,
        "rewritten": repeats,
    }


def _pull_objectness(s: Scene, a: Assignment) -> None:
    o, delta = s.head.options, s.delta
    pull = s.factor(a.target) * o.obj_normalizer * (1 - a.places.of(s.confidence))
    on = a.last
    if o.objectness_smooth:  # only where nothing was there; the first truth then fills it
        on = a.first & (a.places.of(delta.maps[:, :, OBJECTNESS]) == 0)
    delta.put(delta.index(a.places, OBJECTNESS, on), pull)


def yolo_box_delta(s: Scene, truth: Tensor, classes: Tensor, places: Places) -> Tensor:
    """(P, 4) deltas of x, y, w, h (Darknet: `delta_yolo_box`)."""
    o, values = s.head.options, places.values(s.maps[:, :, :4])
    normalizer = o.iou_normalizer * s.factor(classes[:, None])
    if o.iou_loss == "mse":
        scale = (2 - truth[:, 2:3] * truth[:, 3:4]) * normalizer
        return finite(scale * (_targets(s, truth, places) - values))
    kind = o.iou_loss if o.iou_loss in ("giou", "diou", "ciou") else "iou"
    push = iou_gradient(places.of(s.boxes), truth, kind)
    if not o.new_coords:
        push = torch.cat([push[:, :2], push[:, 2:] * torch.exp(values[:, 2:])], 1)
    return finite(push * normalizer).clamp(-o.max_delta, o.max_delta)


def _targets(s: Scene, truth: Tensor, places: Places) -> Tensor:
    """(P, 4): outputs that would decode to the truth."""
    h, w = s.maps.shape[3:]
    own = constant(s.head.anchors, truth).view(-1, 2)[whole(s.head.mask, truth).clamp(0, len(s.head.anchors) // 2 - 1)]
    size = truth[:, 2:4] * constant((s.context.net_w, s.context.net_h), truth) / own[places.anchor]
    size = torch.sqrt(size / 4) if s.head.options.new_coords else torch.log(size)
    return torch.cat([truth[:, :1] * w - places.column[:, None], truth[:, 1:2] * h - places.row[:, None], size], 1)


def _cost(head: Yolo, maps: Tensor, measured: dict[str, Tensor], context: LossContext) -> HeadLoss:
    """Cost and printed numbers. With IoU losses and show_details the cost is a mean plus a sum, as Darknet has it."""
    o = head.options
    total = (maps * maps).sum()
    class_loss = o.obj_normalizer * (maps[:, :, 4:] * maps[:, :, 4:]).sum()
    cost = total
    if o.iou_loss != "mse" and o.show_details:
        cost = o.iou_normalizer * mean(measured["distance"], measured["count"]) + class_loss
    stats = {
        "avg_iou": mean(measured["iou"], measured["count"]),
        "count": measured["count"].clamp(min=1),
        "class_loss": class_loss / context.batch,
        "iou_loss": (total - class_loss) / context.batch,
        "total_loss": total / context.batch,
        "total_bbox": counted(context.net_state, "total_bbox", measured["boxes"]),
        "rewritten_bbox": counted(context.net_state, "rewritten_bbox", measured["rewritten"]),
    }
    return HeadLoss(maps, cost, stats)


def _labels(s: Scene, a: Assignment) -> tuple[Tensor, Tensor]:
    """Track id and class of each cell and anchor, -1 where none: what [contrastive] learns from. Only best anchors."""
    shape = s.boxes.shape[:4]
    cells = s.boxes[..., 0].numel()
    where = torch.where(ends(a.cell, cells, a.best)[1], a.cell, cells)
    parts = []
    for values in (a.track.trunc(), a.target):
        part = s.maps.new_full((cells + 1,), -1.0)
        part[where] = values.to(part.dtype)
        parts.append(part[:-1].view(shape))
    return parts[0], parts[1]


def printed(head: Yolo, loss: HeadLoss) -> list[str]:
    """Darknet's lines of this head."""
    o, s = head.options, loss.numbers()
    kind = o.iou_loss if o.iou_loss in ("mse", "giou") else "iou"
    details = ""
    if o.show_details:
        details = f"class_loss = {s['class_loss']:f}, iou_loss = {s['iou_loss']:f}, "
    line = (
        f"v3 ({kind} loss, Normalizer: (iou: {o.iou_normalizer:.2f}, obj: {o.obj_normalizer:.2f}, "
        f"cls: {o.cls_normalizer:.2f}) Region {head.index} Avg (IOU: {s['avg_iou']:f}), count: {s['count']:.0f}, "
        f"{details}total_loss = {s['total_loss']:f} "
    )
    return [*printed_rejection(s), line]


def printed_boxes(loss: HeadLoss) -> str | None:
    """Darknet's count of trained boxes so far, over all heads; None before there is one."""
    s = loss.numbers()
    if not s["total_bbox"]:
        return None
    share = 100 * s["rewritten_bbox"] / s["total_bbox"]
    return f" total_bbox = {s['total_bbox']:.0f}, rewritten_bbox = {share:f} % "
