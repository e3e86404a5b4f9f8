"""Losses of [softmax] and [cost] (Darknet: `forward_softmax_layer`, `forward_cost_layer`)."""

from __future__ import annotations

import torch
from torch import Tensor

from darknetpy.layers.softmax import Cost, Softmax
from darknetpy.layers.tree import IGNORED
from darknetpy.losses.base import HeadLoss, LossContext


def softmax_loss(head: Softmax, output: Tensor, truth: Tensor, context: LossContext) -> HeadLoss:
    """delta = truth - p; cost = sum of -ln p over the entries whose truth isn't zero, whatever its weight."""
    flat = output.reshape(len(output), -1)
    if head.options.noloss:
        return HeadLoss(torch.zeros_like(flat), flat.new_zeros(()))
    target = truth.reshape(len(truth), -1)[:, : flat.shape[1]].to(flat.dtype)
    used = target != IGNORED
    delta = torch.where(used, target - flat, 0.0)
    log = -torch.log(flat.clamp(min=torch.finfo(flat.dtype).tiny))
    return HeadLoss(delta, torch.where(used & (target != 0), log, 0.0).sum())


def cost_loss(head: Cost, output: Tensor, truth: Tensor, context: LossContext) -> HeadLoss:
    """delta = truth - x (sse), or its sign beyond 1 (smooth); `masked` leaves entries with truth -1234 out."""
    x = context.input.reshape(len(output), -1)
    target = truth.reshape(len(truth), -1)[:, : x.shape[1]].to(x.dtype)
    if head.kind == "masked":
        target = torch.where(target == IGNORED, x, target)
    difference = target - x
    if head.kind != "smooth":
        return HeadLoss(difference, (difference * difference).sum())
    size = difference.abs()
    error = torch.where(size < 1, difference * difference, 2 * size - 1)
    return HeadLoss(torch.where(size < 1, difference, difference.sign()), error.sum())
