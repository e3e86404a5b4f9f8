"""Loss of the [detection] head of YOLOv1, as deltas (Darknet: `forward_detection_layer`).

The truth has one object a cell: is there one, one-hot class, x and y inside the cell, w and h relative to the picture.
"""

from __future__ import annotations

import torch
from torch import Tensor

from darknetpy.boxes import iou
from darknetpy.layers.detection import DetectionHead
from darknetpy.losses.base import HeadLoss, LossContext, mean

WARM_UP = 64_000
"""Images during which `random=1` chooses the responsible box by chance."""
SMALL = 0.1
"""With `forced=1`, truths of less area belong to the second box of a cell."""


def detection_loss(head: DetectionHead, output: Tensor, truth: Tensor, context: LossContext) -> HeadLoss:
    """Delta and cost of a mini-batch.

    Args:
        output: (B, cells (classes + n + n coords)).
        truth: (B, cells (1 + classes + coords)).
    """
    o, b, cells = head.options, len(output), head.side**2
    classes, objectness, boxes = head.split(output)
    target = truth.reshape(b, cells, -1)[..., : 1 + head.classes + 4].to(output.dtype)
    there, wanted, box = target[..., 0].trunc() != 0, target[..., 1 : 1 + head.classes], target[..., 1 + head.classes :]
    overlap, distance = _compare(head, boxes, box)
    chosen = _responsible(head, overlap, distance, box, context)
    mine = (torch.arange(head.n, device=output.device) == chosen[..., None]) & there[..., None]

    delta_class = torch.where(there[..., None], o.class_scale * (wanted - classes), 0.0)
    aim = overlap if o.rescore else torch.ones_like(overlap)
    delta_obj = torch.where(mine, o.object_scale * (aim - objectness), -o.noobject_scale * objectness)
    goal = torch.cat([box[..., :2], torch.sqrt(box[..., 2:])], -1) if o.sqrt else box
    delta_box = torch.zeros_like(boxes)
    delta_box[..., :4] = torch.where(mine[..., None], o.coord_scale * (goal[:, :, None] - boxes[..., :4]), 0.0)
    delta = torch.cat([part.reshape(b, -1) for part in (delta_class, delta_obj, delta_box)], 1)

    count = there.sum()
    stats = {
        "avg_iou": mean(torch.where(mine, overlap, 0.0).sum(), count),
        "pos_cat": mean(torch.where(there[..., None] & (wanted != 0), classes, 0.0).sum(), count),
        "all_cat": mean(torch.where(there[..., None], classes, 0.0).sum(), count * head.classes),
        "pos_obj": mean(torch.where(mine, objectness, 0.0).sum(), count),
        "any_obj": objectness.mean(),
        "count": count,
    }
    return HeadLoss(delta.view(output.shape), (delta * delta).sum(), stats)


def _compare(head: DetectionHead, boxes: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and root of the squared differences of each box (B, cells, n) with its cell's truth."""
    size = boxes[..., 2:4] ** 2 if head.options.sqrt else boxes[..., 2:4]
    mine = torch.cat([boxes[..., :2] / head.side, size], -1)
    truth = torch.cat([truth[..., :2] / head.side, truth[..., 2:]], -1)[:, :, None]
    return iou(mine, truth), (mine - truth).square().sum(-1).sqrt()


def _responsible(head, overlap: Tensor, distance: Tensor, truth: Tensor, context: LossContext) -> Tensor:
    """(B, cells) number of the box that learns the truth: best overlap, or nearest where none overlaps."""
    o = head.options
    chosen = torch.where((overlap > 0).any(-1), overlap.argmax(-1), distance.argmin(-1))
    if o.forced:
        small = truth[..., 2] * truth[..., 3] < SMALL
        chosen = torch.where(small, min(1, head.n - 1), 0)
    if o.random and context.seen < WARM_UP:
        chosen = torch.randint_like(chosen, head.n)
    return chosen


def printed(head: DetectionHead, loss: HeadLoss) -> list[str]:
    """Darknet's line of this head."""
    s = loss.numbers()
    return [
        f"Detection Avg IOU: {s['avg_iou']:f}, Pos Cat: {s['pos_cat']:f}, All Cat: {s['all_cat']:f}, "
        f"Pos Obj: {s['pos_obj']:f}, Any Obj: {s['any_obj']:f}, count: {s['count']:.0f}"
    ]
