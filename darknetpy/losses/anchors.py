"""What the anchor heads share: which truth trains which cell and anchor, and deltas in the output's layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from darknetpy.boxes import IOU_KINDS, iou
from darknetpy.layers.constants import constant, whole
from darknetpy.layers.yolo import AnchorHead
from darknetpy.losses.base import LossContext, mapped, valid_rows

SLAB = 40_000_000
"""Overlaps computed at once, so that large batches stay within memory."""


class Places(NamedTuple):
    """Positions in maps (B, n, entries, H, W), (P,) each."""

    image: Tensor
    anchor: Tensor
    row: Tensor
    column: Tensor

    def values(self, maps: Tensor) -> Tensor:
        """(P, entries) of (B, n, entries, H, W)."""
        return maps[self.image, self.anchor, :, self.row, self.column]

    def of(self, cells: Tensor) -> Tensor:
        """(P, ...) of (B, n, H, W, ...)."""
        return cells[self.image, self.anchor, self.row, self.column]


@dataclass
class Assignment:
    """All (truth, anchor) pairs of a mini-batch, P = B * M * n of them, in Darknet's order; `on` marks the real ones.

    Attributes:
        on: (P,) mask; best: (P,) mask of pairs whose anchor fits its truth best of all.
        places: where the pair lies; arbitrary but valid for pairs that are off.
        cell: (P,) number of the (image, anchor, row, column), or the number of cells where off.
        truth: (P, 4) box; target: (P,) class that is trained; track: (P,) track id.
        first, last: (P,) masks: the pair is the first or last of its cell.
    """

    on: Tensor
    best: Tensor
    places: Places
    cell: Tensor
    truth: Tensor
    target: Tensor
    track: Tensor
    first: Tensor
    last: Tensor


def usable(truth: Tensor, classes: int) -> Tensor:
    """(B, M) truths before the end of the list with a class of the head."""
    ids = truth[..., 4]
    return valid_rows(truth) & (ids > -1) & (ids < classes)


def best_overlap(boxes: Tensor, truth: Tensor, ok: Tensor) -> tuple[Tensor, Tensor]:
    """Highest IoU of each prediction over the truths and its index, (B, N) each; 0 where there is no truth."""
    b, n = boxes.shape[:2]
    rows = max(1, SLAB // max(1, n * truth.shape[1]))
    parts = []
    for low in range(0, b, rows):
        part = slice(low, low + rows)
        overlap = torch.where(ok[part, None], iou(boxes[part, :, None], truth[part, None, :, :4]), 0.0)
        parts.append(overlap.max(-1))
    return torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])


def shape_overlap(shapes: Tensor, truth: Tensor, kind: str = "iou") -> Tensor:
    """(..., n) overlap of shapes (..., n, 2) and truths (..., 6), all moved to one centre."""
    want = truth[..., None, 2:4]
    if kind not in ("giou", "diou", "ciou"):
        inter = torch.minimum(shapes, want).clamp(min=0).prod(-1)
        return torch.where(inter > 0, inter / (shapes.prod(-1) + want.prod(-1) - inter), 0.0)
    shapes, want = torch.broadcast_tensors(shapes, want)
    zeros = torch.zeros_like(shapes)
    return IOU_KINDS[kind](torch.cat([zeros, shapes], -1), torch.cat([zeros, want], -1))


def assign(head: AnchorHead, truth: Tensor, ok: Tensor, grid: tuple[int, int], context: LossContext) -> Assignment:
    """Truths to cells and anchors, whole numbers only.

    Each truth goes to the cell of its centre and to the anchor, of all `num`, whose shape fits best, if that anchor is
    this head's; with iou_thresh < 1 also to the head's other anchors that fit better than that.
    """
    (w, h), (b, m), n = grid, ok.shape, head.n
    anchors = constant(head.anchors, truth).view(-1, 2) / constant((context.net_w, context.net_h), truth)
    best = shape_overlap(anchors, truth).argmax(-1)
    mask = whole([number if number not in head.mask[:k] else -1 for k, number in enumerate(head.mask)], truth)
    fits_best = best[..., None] == mask
    chosen = fits_best
    if head.options.iou_thresh < 1.0:
        own = anchors[mask.clamp(0, len(anchors) - 1)]
        fit = shape_overlap(own, truth, head.options.iou_thresh_kind)
        chosen = chosen | ((fit > head.options.iou_thresh) & (mask >= 0))

    def spread(values: Tensor) -> Tensor:
        return values[:, :, None].expand(b, m, n, *values.shape[2:]).reshape(b * m * n, *values.shape[2:])

    on = (chosen & ok[..., None]).reshape(-1)
    x, y = _cell_point(head, truth)
    device = truth.device
    places = Places(
        spread(torch.arange(b, device=device)[:, None].expand(b, m)),
        torch.arange(n, device=device).expand(b, m, n).reshape(-1),
        spread((y * h).long().clamp(0, h - 1)),
        spread((x * w).long().clamp(0, w - 1)),
    )
    cells = b * n * h * w
    cell = torch.where(on, ((places.image * n + places.anchor) * h + places.row) * w + places.column, cells)
    target = mapped(head.class_map, truth[..., 4].long().clamp(0, head.classes - 1)).clamp(0, head.classes - 1)
    track = truth[..., 5] if truth.shape[-1] > 5 else torch.zeros_like(truth[..., 4])
    first, last = ends(cell, cells, on)
    return Assignment(
        on, on & fits_best.reshape(-1), places, cell, spread(truth[..., :4]), spread(target), spread(track), first, last
    )


def _cell_point(head: AnchorHead, truth: Tensor) -> tuple[Tensor, Tensor]:
    """The point whose cell a truth belongs to: its centre, or a corner where the head predicts that."""
    x, y = truth[..., 0], truth[..., 1]
    point = getattr(head, "point", "center")
    if point != "center":
        sign = -0.5 if point == "left_top" else 0.5
        x, y = (x + sign * truth[..., 2]).clamp(0, 1), (y + sign * truth[..., 3]).clamp(0, 1)
    return x, y


def ends(cell: Tensor, cells: int, on: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of the first and the last pair of each cell, among the pairs that are `on`."""
    order = torch.arange(len(cell), device=cell.device)
    cell = torch.where(on, cell, cells)
    first = torch.full((cells + 1,), len(cell), device=cell.device).scatter_reduce(0, cell, order, "amin")
    last = torch.full((cells + 1,), -1, device=cell.device).scatter_reduce(0, cell, order, "amax")
    return on & (first[cell] == order), on & (last[cell] == order)


def rewritten(a: Assignment, written: Tensor, cells: int) -> Tensor:
    """How many pairs met a cell whose box delta was written before (`written`: the pair's own delta is not zero)."""
    order = torch.argsort(a.cell, stable=True)
    cell, marks = a.cell[order], (written & a.on)[order].long()
    before = marks.cumsum(0) - marks
    start = torch.full((cells + 1,), len(cell), device=cell.device).scatter_reduce(
        0, cell, torch.arange(len(cell), device=cell.device), "amin"
    )
    return ((before > before[start[cell]]) & a.on[order]).sum()


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

    def index(self, places: Places, entry: Tensor | int, on: Tensor) -> Tensor:
        """Flat positions of one entry a place, or of several: (P, k) for entries (1, k). The spare one where off."""
        image, anchor, row, column = places
        if isinstance(entry, Tensor) and entry.dim() == 2:
            image, anchor, row, column, on = (part[:, None] for part in (image, anchor, row, column, on))
        position = ((image * self.n + anchor) * self.entries + entry) * self.h * self.w + row * self.w + column
        return torch.where(on, position, len(self.flat) - 1)

    def put(self, position: Tensor, values: Tensor) -> None:
        """Overwrite; equal positions must carry equal values."""
        self.flat[position.reshape(-1)] = values.reshape(-1).to(self.flat.dtype)

    def add(self, position: Tensor, values: Tensor) -> None:
        self.flat.index_put_((position.reshape(-1),), values.reshape(-1).to(self.flat.dtype), accumulate=True)


def finite(values: Tensor) -> Tensor:
    """NaN and infinities become 0."""
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
