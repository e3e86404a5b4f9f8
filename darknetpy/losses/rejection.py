"""Late in training: deltas that look like wrong labels are dropped, and small ones evened out (Darknet: `forward_yolo_layer`).

All statistics stay on the device; each head keeps its rolling averages in its state.
"""

from __future__ import annotations

import torch
from torch import Tensor

from darknetpy.losses.base import LossContext

KEEP, TAKE = 0.99, 0.01
LATE = 3 / 4
THRESHOLD_STEP = 0.01


def reject(delta: Tensor, classes: int, context: LossContext) -> None:
    """Zero outliers (and, with equidistant_point, small values) of a flat delta in place."""
    net, it = context.net, context.iteration
    start = int(context.max_batches * LATE)
    late = it > start and (net.num_sigmas_reject_badlabels or net.badlabels_rejection_percentage)
    even = net.equidistant_point and it > net.equidistant_point
    if not late and not even:
        return
    state = context.state
    size, used = delta.abs(), delta != 0
    count = used.sum().clamp(min=1)
    largest, mean = size.max(), size.sum() / count
    before = state.get("avg", torch.zeros_like(mean))
    state["max"] = state["max"] * KEEP + largest * TAKE if "max" in state else largest
    state["avg"] = state["avg"] * KEEP + mean * TAKE if "avg" in state else mean * TAKE
    final = None
    if net.num_sigmas_reject_badlabels:
        deviation = torch.sqrt((torch.where(used, delta - state["avg"], 0.0) ** 2).sum() / count)
        old = state.get("std", torch.zeros_like(mean))
        state["std"] = old * KEEP + deviation * TAKE
        final = state["avg"] + old * net.num_sigmas_reject_badlabels
        if late:
            progress = (it - start) / max(start, 1)
            bound = torch.maximum(final, state["max"] - progress * (state["max"] - final).abs())
            delta.masked_fill_(size > bound, 0.0)
    if late and net.badlabels_rejection_percentage:
        _reject_share(delta, size, used, count, classes, context)
    if even:
        progress = (it - net.equidistant_point) / max(1, context.max_batches - net.equidistant_point)
        bound = before * progress * 1.4 if final is None else torch.minimum(final, state["avg"]) * progress
        delta.masked_fill_(delta.abs() < bound, 0.0)


def _reject_share(delta, size, used, count, classes: int, context: LossContext) -> None:
    """A threshold that walks until the wanted percentage lies above it."""
    state = context.state
    bound = state.get("bound", state["max"])
    above = used & (size > bound)
    delta.masked_fill_(above, 0.0)
    percentage = 100.0 * above.sum() * (classes + 5) / count
    up = percentage > context.net.badlabels_rejection_percentage
    lower = torch.where(bound >= THRESHOLD_STEP, bound - THRESHOLD_STEP, bound)
    state["bound"] = torch.where(up, bound + THRESHOLD_STEP, lower)
