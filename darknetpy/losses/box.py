"""Deltas of predicted boxes. These are Darknet's formulas, not gradients of a loss: do not differentiate instead.

Where they differ from the true gradient of 1 - IoU: width and height count twice; the enclosing-box term of diou and
ciou has the opposite sign; the aspect term lacks 1 / (w^2 + h^2) (Darknet: `dx_box_iou`, `delta_yolo_box`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def iou_gradient(pred: Tensor, truth: Tensor, kind: str) -> Tensor:
    """(..., 4) push on x, y, w, h of `pred` towards `truth`, both (..., 4) in centre form (Darknet: `dx_box_iou`)."""
    pred = torch.cat([pred[..., :2], torch.where(pred[..., 2:] == 0, 1.0, pred[..., 2:])], -1)
    p, t = _Edges(pred), _Edges(truth)
    inter_h = torch.minimum(p.bottom, t.bottom) - torch.maximum(p.top, t.top)
    inter_w = torch.minimum(p.right, t.right) - torch.maximum(p.left, t.left)
    area_p, area_t = (p.bottom - p.top) * (p.right - p.left), (t.bottom - t.top) * (t.right - t.left)
    inter = inter_w * inter_h  # not clamped at zero, as Darknet
    union = area_p + area_t - inter
    # derivatives with respect to top, bottom, left, right
    width, height = p.right - p.left, p.bottom - p.top
    d_area = torch.stack([-width, width, -height, height], -1)
    d_inter = torch.stack(
        [-inter_w * (p.top > t.top), inter_w * (p.bottom < t.bottom),
         -inter_h * (p.left > t.left), inter_h * (p.right < t.right)], -1,
    )  # fmt: skip
    d_union = d_area - d_inter
    safe = torch.where(union > 0, union, 1.0)[..., None]
    edges = torch.where(
        (union > 0)[..., None], (union[..., None] * d_inter - inter[..., None] * d_union) / (safe * safe), 0.0
    )
    apart = (inter_w <= 0) | (inter_h <= 0)
    if kind == "giou":
        edges = _giou_edges(edges, p, t, union, d_union, apart)
    top, bottom, left, right = edges.unbind(-1)
    push = torch.stack([left + right, top + bottom, right - left, bottom - top], -1)
    if kind in ("diou", "ciou"):
        push = _distance_push(push, pred, truth, p, t, inter, union, apart, kind)
    return push


class _Edges:
    """Top, bottom, left and right of boxes in centre form."""

    def __init__(self, boxes: Tensor):
        x, y, w, h = boxes.unbind(-1)
        self.top, self.bottom, self.left, self.right = y - h / 2, y + h / 2, x - w / 2, x + w / 2
        self.top, self.bottom = torch.minimum(self.top, self.bottom), torch.maximum(self.top, self.bottom)
        self.left, self.right = torch.minimum(self.left, self.right), torch.maximum(self.left, self.right)


def _enclosing(p: _Edges, t: _Edges) -> tuple[Tensor, Tensor]:
    width = torch.maximum(p.right, t.right) - torch.minimum(p.left, t.left)
    return width, torch.maximum(p.bottom, t.bottom) - torch.minimum(p.top, t.top)


def _giou_edges(edges, p: _Edges, t: _Edges, union, d_union, apart):
    width, height = _enclosing(p, t)
    area = width * height
    d_area = torch.stack(
        [-width * (p.top < t.top), width * (p.bottom > t.bottom),
         -height * (p.left < t.left), height * (p.right > t.right)], -1,
    )  # fmt: skip
    safe = torch.where(area > 0, area, 1.0)[..., None]
    extra = (area[..., None] * d_union - union[..., None] * d_area) / (safe * safe)
    extra = torch.where((area > 0)[..., None], extra, 0.0)
    return torch.where((apart & (area > 0))[..., None], extra, edges + extra)


def _distance_push(push, pred, truth, p: _Edges, t: _Edges, inter, union, apart, kind: str):
    width, height = _enclosing(p, t)
    diagonal = width * width + height * height
    dx, dy = truth[..., 0] - pred[..., 0], truth[..., 1] - pred[..., 1]
    distance = dx * dx + dy * dy
    right, left = (p.right > t.right).to(push.dtype), (p.left < t.left).to(push.dtype)
    low, high = (p.bottom > t.bottom).to(push.dtype), (p.top < t.top).to(push.dtype)
    d_width_x, d_width_w = right - left, 0.5 * (right + left)
    d_height_y, d_height_h = low - high, 0.5 * (low + high)
    safe = torch.where(diagonal > 0, diagonal * diagonal, 1.0)
    extra = [
        (2 * dx * diagonal - 2 * width * d_width_x * distance) / safe,
        (2 * dy * diagonal - 2 * height * d_height_y * distance) / safe,
        2 * width * d_width_w * distance / safe,
        2 * height * d_height_h * distance / safe,
    ]
    if kind == "ciou":
        aspect_w, aspect_h = _aspect_push(pred, truth, inter, union)
        extra[2], extra[3] = extra[2] + aspect_w, extra[3] + aspect_h
    added = torch.where((diagonal > 0)[..., None], torch.stack(extra, -1), 0.0)
    return torch.where((apart & (diagonal > 0))[..., None], added, push + added)


def _aspect_push(pred, truth, inter, union):
    angle = torch.atan2(truth[..., 2], truth[..., 3]) - torch.atan2(pred[..., 2], pred[..., 3])
    aspect = 4 / math.pi**2 * angle * angle
    alpha = aspect / (1 - inter / union + aspect + 1e-6)
    factor = alpha * (8 / math.pi**2) * angle
    return factor * pred[..., 3], -factor * pred[..., 2]
