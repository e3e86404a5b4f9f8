"""Assisted excitation: in training, truth boxes lift activations (Darknet: `assisted_excitation_forward_gpu`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from darknetpy.layers.gradients import replace_gradient
from darknetpy.lazy import torch

if TYPE_CHECKING:
    from darknetpy.layers.base import ForwardContext

WRONG_STRIDE = 5
"""Darknet reads rows of six numbers as if they had five."""

OUTPUT_SLOPES = {
    "leaky": lambda y: torch.where(y > 0, 1.0, 0.1),
    "relu": lambda y: (y > 0).to(y.dtype),
    "logistic": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
}


def strength(option: float, context: ForwardContext) -> float:
    """Factor at this iteration: a cosine that falls to zero; 0 outside the schedule."""
    it = context.iteration
    if option == 1:
        return (
            0.5 * (1 + math.cos(math.pi * it / max(1, context.max_batches))) if it <= context.max_batches / 2 else 0.0
        )
    if not context.burn_in <= it <= option:
        return 0.0
    return 0.5 * (1 + math.cos(math.pi * it / (context.burn_in + option)))


def excite(x, y, activation: str, option: float, context: ForwardContext):
    """y + strength * (inside a truth box) * (mean over channels), where y = activation(x).

    The gradient passes as if nothing was added; only, strictly, an activation whose slope Darknet reads off its output
    reads it off the lifted one.
    """
    alpha = strength(option, context)
    truth = context.truth
    if not alpha or y.dim() != 4 or truth is None or truth.dim() != 3:
        return y
    if context.strict:
        if not context.num_boxes:
            return y
        truth = _misread(truth[:, : context.num_boxes])
    inside = _inside(truth, y.shape[3], y.shape[2], context.strict).to(y.dtype)
    lifted = y + (alpha * inside[:, None] * y.detach().mean(1, keepdim=True))
    if not (context.strict and activation in OUTPUT_SLOPES):
        return lifted
    slope = OUTPUT_SLOPES[activation]
    return replace_gradient(x, lifted, lambda gradient, out: gradient * slope(out), lifted)


def _misread(truth):
    """The truth as Darknet's kernel sees it: five numbers a row, images max*5 numbers apart."""
    b, rows = truth.shape[:2]
    return truth.reshape(-1)[: b * rows * WRONG_STRIDE].view(b, rows, WRONG_STRIDE)


def _inside(truth, w: int, h: int, spill: bool):
    """(B, h, w) mask of cells inside any truth box; the list ends at x = 0.

    With `spill` the right edge counts as inside, and one beyond the map marks the start of the next row, as in Darknet.
    """
    x, y, bw, bh = truth[..., :4].unbind(-1)
    valid = (x != 0).int().cumprod(1).bool()
    left, right = torch.floor((x - bw / 2) * w).clamp(min=0), torch.ceil((x + bw / 2) * w).clamp(max=w)
    top, bottom = torch.floor((y - bh / 2) * h).clamp(min=0), torch.ceil((y + bh / 2) * h).clamp(max=h)
    columns = torch.arange(w + 1, device=truth.device)
    rows = torch.arange(h, device=truth.device)
    last = right[..., None] + int(spill)
    across = (columns >= left[..., None]) & (columns < last) & valid[..., None]
    down = (rows >= top[..., None]) & (rows < bottom[..., None])
    marked = (across[:, :, None] & down[..., None]).any(1)
    inside = marked[..., :w]
    if spill:
        beyond = marked[..., w].reshape(-1)
        starts = torch.cat([torch.zeros_like(beyond[:1]), beyond[:-1]]).view(-1, h)
        inside = torch.cat([inside[..., :1] | starts[..., None], inside[..., 1:]], -1)
    return inside
