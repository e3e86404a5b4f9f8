"""Box arithmetic as pure tensor functions. A box is x, y, w, h: centre and size (Darknet: `box.c`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from darknetpy.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

DIOU_EXPONENT = 0.6
"""Darknet's `box_diou` raises the centre penalty to this power."""


def to_corners(boxes: Tensor) -> Tensor:
    """(..., 4) centre form to left, top, right, bottom."""
    centre, half = boxes[..., :2], boxes[..., 2:4] / 2
    return torch.cat([centre - half, centre + half], -1)


def from_corners(corners: Tensor) -> Tensor:
    """(..., 4) left, top, right, bottom to centre form."""
    low, high = corners[..., :2], corners[..., 2:4]
    return torch.cat([(low + high) / 2, high - low], -1)


def intersection_union(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Areas of intersection (0 where the boxes miss each other) and union; the shapes broadcast over (..., 4)."""
    overlap = torch.minimum(a[..., :2] + a[..., 2:4] / 2, b[..., :2] + b[..., 2:4] / 2) - torch.maximum(
        a[..., :2] - a[..., 2:4] / 2, b[..., :2] - b[..., 2:4] / 2
    )
    inter = overlap.clamp(min=0).prod(-1)
    return inter, a[..., 2] * a[..., 3] + b[..., 2] * b[..., 3] - inter


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union; 0 where either is 0 (Darknet: `box_iou`)."""
    inter, union = intersection_union(a, b)
    good = (inter != 0) & (union != 0)
    return torch.where(good, inter / torch.where(good, union, 1.0), 0.0)


def _enclosing(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    size = torch.maximum(a[..., :2] + a[..., 2:4] / 2, b[..., :2] + b[..., 2:4] / 2) - torch.minimum(
        a[..., :2] - a[..., 2:4] / 2, b[..., :2] - b[..., 2:4] / 2
    )
    return size[..., 0], size[..., 1]


def giou(a: Tensor, b: Tensor) -> Tensor:
    """Generalised IoU; plain IoU where the enclosing box has no area (Darknet: `box_giou`)."""
    w, h = _enclosing(a, b)
    _, union = intersection_union(a, b)
    area = w * h
    return iou(a, b) - torch.where(area != 0, (area - union) / torch.where(area != 0, area, 1.0), 0.0)


def centre_penalty(a: Tensor, b: Tensor) -> Tensor:
    """Squared centre distance over squared diagonal of the enclosing box; 0 where that is 0."""
    w, h = _enclosing(a, b)
    diagonal = w * w + h * h
    distance = (a[..., 0] - b[..., 0]) ** 2 + (a[..., 1] - b[..., 1]) ** 2
    return torch.where(diagonal != 0, distance / torch.where(diagonal != 0, diagonal, 1.0), 0.0)


def diou(a: Tensor, b: Tensor, exponent: float = DIOU_EXPONENT) -> Tensor:
    """IoU minus the centre penalty to a power (Darknet: `box_diou`; with beta: `box_diounms`)."""
    return iou(a, b) - centre_penalty(a, b) ** exponent


def ciou(a: Tensor, b: Tensor) -> Tensor:
    """IoU minus centre penalty and aspect term; `b` is the truth (Darknet: `box_ciou`)."""
    overlap = iou(a, b)
    aspect = (4 / math.pi**2) * (torch.atan2(b[..., 2], b[..., 3]) - torch.atan2(a[..., 2], a[..., 3])) ** 2
    alpha = aspect / (1 - overlap + aspect + 1e-6)
    w, h = _enclosing(a, b)
    return torch.where(w * w + h * h != 0, overlap - (centre_penalty(a, b) + alpha * aspect), overlap)


IOU_KINDS = {"iou": iou, "giou": giou, "diou": diou, "ciou": ciou}


def suppression_overlap(a: Tensor, b: Tensor, kind: str = "default", beta: float = 0.6) -> Tensor:
    """What NMS compares with its threshold.

    `greedynms` is DIoU despite its name (exponent 0.6), `diounms` the same with exponent beta, else plain IoU.
    """
    if kind == "greedynms":
        return diou(a, b)
    return diou(a, b, beta) if kind == "diounms" else iou(a, b)


def greedy_nms(boxes: Tensor, thresh: float, kind: str = "default", beta: float = 0.6) -> Tensor:
    """Which of `boxes` (N, 4), strongest first, survive: a boolean mask (N,).

    The overlap matrix is built in slabs; the sweep visits survivors only, since a suppressed box suppresses nobody.
    """
    n = len(boxes)
    alive = torch.ones(n, dtype=torch.bool, device=boxes.device)
    if n < 2:
        return alive
    slab = max(1, 2_000_000 // n)
    for start in range(0, n, slab):
        rows = torch.arange(start, min(start + slab, n), device=boxes.device)
        rows = rows[alive[rows]]
        if not len(rows):
            continue
        over = suppression_overlap(boxes[rows, None], boxes[None], kind, beta) > thresh
        over &= torch.arange(n, device=boxes.device)[None] > rows[:, None]
        alive = _sweep(alive, rows, over)
    return alive


def _sweep(alive: Tensor, rows: Tensor, over: Tensor) -> Tensor:
    mask, hits = alive.cpu().numpy(), over.cpu().numpy()
    for i, row in enumerate(rows.tolist()):
        if mask[row]:
            mask &= ~hits[i]
    return torch.from_numpy(mask).to(alive.device)
