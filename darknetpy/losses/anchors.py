"""What the anchor heads share: which truth trains which cell and anchor, and writing deltas into the output's layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from darknetpy.boxes import IOU_KINDS, iou
from darknetpy.layers.yolo import AnchorHead
from darknetpy.losses.base import LossContext, mapped, valid_rows

MATCH_PROBABILITY = 0.25
"""A prediction counts as matching a truth only if some class of it is likelier than this."""
SLAB = 40_000_000
"""Overlaps computed at once, so that large batches stay within memory."""


@dataclass
class Assignment:
    """All (truth, anchor) pairs of a mini-batch, P = B * M * n of them, in Darknet's order; `on` marks the real ones.

    Attributes:
        on: (P,) mask.
        image, anchor, row, column: (P,) where the pair lies; cells of pairs that are off are arbitrary but valid.
        cell: (P,) number of the (image, anchor, row, column), or the number of cells where off.
        truth: (P, 4) box; target: (P,) class that is trained; source: (P,) class as labelled; track: (P,) track id.
        first, last: (P,) masks: the pair is the first or last of its cell.
    """

    on: Tensor
    image: Tensor
    anchor: Tensor
    row: Tensor
    column: Tensor
    cell: Tensor
    truth: Tensor
    target: Tensor
    source: Tensor
    track: Tensor
    first: Tensor
    last: Tensor


def usable(truth: Tensor, classes: int) -> Tensor:
    """(B, M) truths before the end of the list with a class of the head."""
    ids = truth[..., 4]
    return valid_rows(truth) & (ids >= 0) & (ids < classes)


def best_overlap(boxes: Tensor, truth: Tensor, ok: Tensor) -> tuple[Tensor, Tensor]:
    """Highest IoU of each prediction over the truths and its index, (B, N) each; 0 where there is no truth."""
    b, n = boxes.shape[:2]
    rows = max(1, SLAB // max(1, n * truth.shape[1]))
    parts = []
    for low in range(0, b, rows):
        part = slice(low, low + rows)
        overlap = iou(boxes[part, :, None], truth[part, None, :, :4]) * ok[part, None]
        parts.append(overlap.max(-1))
    return torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])


def assign(head: AnchorHead, truth: Tensor, ok: Tensor, grid: tuple[int, int], context: LossContext) -> Assignment:
    """Truths to cells and anchors, whole numbers only.

    Each truth goes to the cell of its centre and to the anchor, of all `num`, whose shape fits best, if that anchor is
    this head's; with iou_thresh < 1 also to the head's other anchors that fit better than that.
    """
    w, h = grid
    b, m = ok.shape
    anchors = truth.new_tensor(head.anchors).view(-1, 2) / truth.new_tensor([context.net_w, context.net_h])
    shape = truth[..., None, 2:4]
    zeros = torch.zeros_like(anchors)
    overlap = iou(torch.cat([zeros, anchors], -1), torch.cat([torch.zeros_like(shape), shape], -1))
    best = overlap.argmax(-1)
    mask = torch.tensor(head.mask, device=truth.device)
    chosen = best[..., None] == mask
    if head.options.iou_thresh < 1.0:
        kind = IOU_KINDS.get(head.options.iou_thresh_kind, iou)
        own = anchors[mask.clamp(0, len(anchors) - 1)]
        fit = kind(
            torch.cat([torch.zeros_like(own), own], -1).expand(b, m, -1, -1),
            torch.cat([torch.zeros_like(shape), shape], -1),
        )
        chosen |= fit > head.options.iou_thresh
    on = (chosen & ok[..., None]).reshape(-1)
    x, y = _cell_point(head, truth)
    column = (x * w).long().clamp(0, w - 1)[..., None].expand(b, m, head.n).reshape(-1)
    row = (y * h).long().clamp(0, h - 1)[..., None].expand(b, m, head.n).reshape(-1)
    image = torch.arange(b, device=truth.device).view(b, 1, 1).expand(b, m, head.n).reshape(-1)
    anchor = torch.arange(head.n, device=truth.device).expand(b, m, head.n).reshape(-1)
    cells = b * head.n * h * w
    cell = torch.where(on, ((image * head.n + anchor) * h + row) * w + column, cells)
    source = truth[..., 4].long().clamp(0, head.classes - 1)
    target = mapped(head.class_map, source).clamp(0, head.classes - 1)

    def spread(values: Tensor) -> Tensor:
        return values[:, :, None].expand(b, m, head.n, *values.shape[2:]).reshape(b * m * head.n, *values.shape[2:])

    first, last = _ends(cell, cells, on)
    return Assignment(
        on, image, anchor, row, column, cell, spread(truth[..., :4]), spread(target), spread(source),
        spread(truth[..., 5]) if truth.shape[-1] > 5 else spread(truth[..., 4] * 0), first, last,
    )  # fmt: skip


def _cell_point(head: AnchorHead, truth: Tensor) -> tuple[Tensor, Tensor]:
    """The point whose cell a truth belongs to: its centre, or a corner where the head predicts that."""
    x, y = truth[..., 0], truth[..., 1]
    point = getattr(head, "point", "center")
    if point != "center":
        sign = -0.5 if point == "left_top" else 0.5
        x, y = (x + sign * truth[..., 2]).clamp(0, 1), (y + sign * truth[..., 3]).clamp(0, 1)
    return x, y


def _ends(cell: Tensor, cells: int, on: Tensor) -> tuple[Tensor, Tensor]:
    order = torch.arange(len(cell), device=cell.device)
    first = torch.full((cells + 1,), len(cell), device=cell.device).scatter_reduce(0, cell, order, "amin")
    last = torch.full((cells + 1,), -1, device=cell.device).scatter_reduce(0, cell, order, "amax")
    return on & (first[cell] == order), on & (last[cell] == order)


def class_multipliers(head: AnchorHead, like: Tensor) -> Tensor | None:
    """Factor of each class from `counters_per_class`: the largest count over its own, at most max_delta."""
    counters = head.options.counters_per_class
    if counters is None:
        return None
    counts = like.new_tensor([max(1, count) for count in counters])
    return (counts.max() / counts).clamp(max=head.options.max_delta)


class Delta:
    """A delta in the making: (B, n, entries, H, W) with one spare number at the end for what is not to be written."""

    def __init__(self, output: Tensor, n: int, entries: int):
        self.b, self.n, self.entries = output.shape[0], n, entries
        self.h, self.w = output.shape[2:]
        self.flat = output.new_zeros(output.numel() + 1)

    @property
    def maps(self) -> Tensor:
        """View (B, n, entries, H, W)."""
        return self.flat[:-1].view(self.b, self.n, self.entries, self.h, self.w)

    def place(self, a: Assignment, entry: Tensor | int, on: Tensor) -> Tensor:
        """Flat positions of an entry of each pair; the spare one where `on` is off."""
        position = ((a.image * self.n + a.anchor) * self.entries + entry) * self.h * self.w + a.row * self.w + a.column
        return torch.where(on, position, len(self.flat) - 1)

    def put(self, position: Tensor, values: Tensor) -> None:
        """Overwrite; equal positions must carry equal values."""
        self.flat[position.reshape(-1)] = values.reshape(-1).to(self.flat.dtype)

    def add(self, position: Tensor, values: Tensor) -> None:
        self.flat.index_put_((position.reshape(-1),), values.reshape(-1).to(self.flat.dtype), accumulate=True)


def finite(values: Tensor) -> Tensor:
    """NaN and infinities become 0."""
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def rewritten(a: Assignment, boxes_on: Tensor, cells: int) -> Tensor:
    """How many pairs met a cell whose box delta was written before (`boxes_on`: the pair's own delta is not zero)."""
    order = torch.argsort(a.cell, stable=True)
    cell, written = a.cell[order], (boxes_on & a.on)[order].long()
    before = written.cumsum(0) - written
    start = torch.full((cells + 1,), len(cell), device=cell.device).scatter_reduce(
        0, cell, torch.arange(len(cell), device=cell.device), "amin"
    )
    seen = before - before[start[cell]]
    return ((seen > 0) & a.on[order]).sum()
