"""Loss of the [Gaussian_yolo] head, as deltas (Darknet: `forward_gaussian_yolo_layer`).

Each coordinate is a mean and a sigma. The steps are those of [yolo]; what differs is named at each rule.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from darknetpy.boxes import giou, iou
from darknetpy.layers.constants import constant, whole
from darknetpy.layers.gaussian import GaussianYolo
from darknetpy.losses.anchors import Assignment, Places, assign, finite
from darknetpy.losses.base import HeadLoss, LossContext, mean
from darknetpy.losses.box import iou_gradient
from darknetpy.losses.rules import (
    MATCH_PROBABILITY,
    Scene,
    class_maps,
    overlaps,
    pull_boxes,
    pull_classes,
    pull_high,
    share_boxes,
    truth_of,
)

OBJECTNESS = 8
"""Entry of objectness, after mean and sigma of x, y, w and h."""
SIGMA_FLOOR = 0.3
DENSITY_FLOOR = 1e-9


def gaussian_loss(head: GaussianYolo, output: Tensor, truth: Tensor, context: LossContext) -> HeadLoss:
    """Delta and cost of a mini-batch.

    Args:
        output: (B, n (9 + classes), H, W), activated.
        truth: (B, M, 6) rows x, y, w, h, class, track.
    """
    h, w = output.shape[2:]
    s = Scene.of(head, output, truth, context, OBJECTNESS, gaussian_box_delta)
    preset = _background(s)
    pairs = assign(head, truth, s.ok, (w, h), context)
    pull_boxes(s, pairs)
    pull = s.factor(pairs.target) * head.options.obj_normalizer * (1 - pairs.places.of(s.confidence))
    s.delta.put(s.delta.index(pairs.places, OBJECTNESS, pairs.last), pull)
    pull_classes(s, pairs, preset)
    share_boxes(s, None)  # always, and wherever a class is pulled up
    maps = s.delta.maps
    return HeadLoss(maps.reshape(output.shape), (maps * maps).sum(), _stats(s, pairs))


def _background(s: Scene) -> Tensor | None:
    """Every prediction goes down unless it overlaps a truth. With objectness_smooth such a prediction aims at the
    squared overlap and learns the truth's class. Returns a mask of predictions whose classes are set."""
    o, objectness, overlap = s.head.options, s.confidence, overlaps(s)
    deltas, preset = s.delta.maps, None
    push = -o.obj_normalizer * objectness
    ignored = overlap.match > o.ignore_thresh
    if s.context.adversarial:
        push = _adversarial(s, push, ignored)
    if o.objectness_smooth:
        push = torch.where(ignored, o.obj_normalizer * (overlap.match * overlap.match - objectness), push)
        rates = class_maps(s, truth_of(s, overlap.which)[1])
        deltas[:, :, 9:] = torch.where(ignored[:, :, None], rates, deltas[:, :, 9:])
        preset = ignored
    else:
        push = torch.where(ignored, 0.0, push)
    deltas[:, :, OBJECTNESS] = push
    if o.truth_thresh < 1.0:
        high = overlap.best > o.truth_thresh
        pull_high(s, high, overlap)
        preset = high if preset is None else preset | high
    return preset


def _adversarial(s: Scene, push: Tensor, ignored: Tensor) -> Tensor:
    """Hide what is seen: objectness and likely classes go down with the box's size."""
    scale = torch.sqrt(s.boxes[..., 2] * s.boxes[..., 3])
    likely = (s.classes * s.confidence[:, :, None] > MATCH_PROBABILITY) & ~ignored[:, :, None]
    s.delta.maps[:, :, 9:] = torch.where(likely, -scale[:, :, None] * s.classes, 0.0)
    return scale * push


def gaussian_box_delta(s: Scene, truth: Tensor, classes: Tensor, places: Places) -> Tensor:
    """(P, 8) deltas of mean and sigma of x, y, w, h (Darknet: `delta_gaussian_yolo_box`)."""
    o, values = s.head.options, places.values(s.maps[:, :, :OBJECTNESS])
    means, sigmas = values[:, 0::2], values[:, 1::2]
    z = (_targets(s, truth, places) - means) / sigmas
    wide = sigmas + SIGMA_FLOOR
    density = torch.exp(-0.5 * z * z) / (math.sqrt(2 * math.pi) * wide)
    weight = 0.5 * density / (density + DENSITY_FLOOR) * (2 - truth[:, 2:3] * truth[:, 3:4])
    of_mean = weight * z / sigmas
    of_sigma = weight * (z * z / sigmas - 1 / wide) * o.uc_normalizer
    if o.iou_loss != "mse":
        of_mean = _overlap_push(s, truth, places, means)
    of_mean = of_mean * (o.iou_normalizer * s.factor(classes[:, None]))
    push = torch.stack([of_mean, of_sigma], 2).view(-1, OBJECTNESS)
    return finite(push).clamp(-o.max_delta, o.max_delta)


def _overlap_push(s: Scene, truth: Tensor, places: Places, means: Tensor) -> Tensor:
    """(P, 4): the gradient of the overlap; a predicted corner takes half of the size's share."""
    kind = s.head.options.iou_loss
    push = iou_gradient(places.of(s.boxes), truth, kind if kind in ("giou", "diou", "ciou") else "iou")
    place, size = push[:, :2], push[:, 2:]
    if s.head.point != "center":
        place = place - size / 2 if s.head.point == "left_top" else place + size / 2
    return torch.cat([place, size * torch.exp(means[:, 2:])], 1)


def _targets(s: Scene, truth: Tensor, places: Places) -> Tensor:
    """(P, 4): means that would decode to the truth."""
    h, w = s.maps.shape[3:]
    own = constant(s.head.anchors, truth).view(-1, 2)[whole(s.head.mask, truth).clamp(0, len(s.head.anchors) // 2 - 1)]
    size = truth[:, 2:4] * constant((s.context.net_w, s.context.net_h), truth) / own[places.anchor]
    point = truth[:, :2]
    if s.head.point != "center":
        point = point - truth[:, 2:4] / 2 if s.head.point == "left_top" else point + truth[:, 2:4] / 2
    cell = torch.stack([places.column, places.row], 1)
    return torch.cat([point * constant((w, h), truth) - cell, torch.log(size)], 1)


def _stats(s: Scene, a: Assignment) -> dict[str, Tensor]:
    """Printed numbers. Darknet counts w and h with their sigmas as `uc_loss`, x and y with theirs as `iou_loss`."""
    squares = s.delta.maps * s.delta.maps
    kind = iou if s.head.options.iou_loss == "mse" else giou
    overlap = torch.where(a.on, kind(a.places.of(s.boxes), a.truth), 0.0)
    likely = a.places.values(s.classes).gather(1, a.target[:, None])[:, 0]
    count, batch = a.on.sum(), s.context.batch
    return {
        "avg_iou": mean(overlap.sum(), count),
        "class": mean(torch.where(a.on, likely, 0.0).sum(), count),
        "obj": mean(torch.where(a.on, a.places.of(s.confidence), 0.0).sum(), count),
        "no_obj": s.confidence.mean(),
        "recall50": mean((overlap > 0.5).sum(), count),
        "recall75": mean((overlap > 0.75).sum(), count),
        "count": count,
        "class_loss": squares[:, :, OBJECTNESS:].sum() / batch,
        "iou_loss": squares[:, :, :4].sum() / batch,
        "uc_loss": squares[:, :, 4:OBJECTNESS].sum() / batch,
        "total_loss": squares.sum() / batch,
    }


def printed(head: GaussianYolo, loss: HeadLoss) -> list[str]:
    """Darknet's line of this head."""
    s = loss.numbers()
    return [
        f"Region {head.index} Avg IOU: {s['avg_iou']:f}, Class: {s['class']:f}, Obj: {s['obj']:f}, "
        f"No Obj: {s['no_obj']:f}, .5R: {s['recall50']:f}, .75R: {s['recall75']:f},  count: {s['count']:.0f}, "
        f"class_loss = {s['class_loss']:.2f}, iou_loss = {s['iou_loss']:.2f}, uc_loss = {s['uc_loss']:.2f}, "
        f"total_loss = {s['total_loss']:.2f} "
    ]
