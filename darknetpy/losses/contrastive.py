"""Loss of [contrastive]: embeddings of one track attract, others repel (Darknet: `forward_contrastive_layer`)."""

from __future__ import annotations

import torch
from torch import Tensor

from darknetpy.layers.contrastive import Contrastive
from darknetpy.losses.anchors import finite
from darknetpy.losses.base import HeadLoss, LossContext

LARGEST = 0.9999
"""Stands in for probabilities that cannot be."""
FEW_PAIRS = 2
"""Up to so many ordered pairs Darknet's GPU build leaves all probabilities at 0."""


def contrastive_loss(head: Contrastive, output: Tensor, truth: Tensor, context: LossContext) -> HeadLoss:
    """Delta of the embeddings at positions that the referenced yolo head labelled in this forward pass.

    The number of labelled positions decides the size of the pair matrix, so it is read from the device.
    """
    x = context.input
    if head.yolo is None:
        return HeadLoss(torch.zeros_like(x), x.new_zeros(()))
    loss = context.losses[head.yolo]
    b, _, h, w = x.shape
    embeddings = x.view(b, head.n, -1, h, w).permute(0, 1, 3, 4, 2)
    # Darknet's order of positions: image, anchor, row, column
    where = torch.nonzero(loss.labels >= 0).unbind(1)
    step = where[0] // max(1, b // max(1, context.net.time_steps))
    points = _Points(embeddings[where], loss.labels[where], loss.classes[where], step)
    delta = torch.zeros_like(embeddings)
    delta[where] = _pushes(head, points)
    delta = delta.permute(0, 1, 4, 2, 3).reshape(x.shape)
    cost = (delta * delta).sum()
    return HeadLoss(delta, cost, {**points.accuracy(), "loss": cost})


class _Points:
    """Embeddings (N, E) with label, class and time step, and what each pair of them has in common, (N, N)."""

    def __init__(self, z: Tensor, label: Tensor, class_id: Tensor, step: Tensor):
        self.z, self.length = z, z.norm(dim=1)
        unit = z / torch.where(self.length > 0, self.length, 1.0)[:, None]
        self.cosine = unit @ unit.t()
        other = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
        self.same = other & (label[:, None] == label)
        self.different = label[:, None] != label
        self.class_alike = class_id[:, None] == class_id
        self.paired = other & self.class_alike & (step[:, None] == step)

    def accuracy(self) -> dict[str, Tensor]:
        """Positions whose nearest position of the same label is nearer than any of another label."""
        if not len(self.z):
            zero = self.z.new_zeros(())
            return {"accuracy": zero - 1, "all": zero, "good": zero}
        friend = torch.where(self.paired & self.same, self.cosine, -10.0).amax(1)
        enemy = torch.where(self.paired & self.different, self.cosine, -10.0).amax(1)
        judged = (friend >= -1) & (enemy >= -1)
        count, good = judged.sum(), (judged & (friend > enemy)).sum()
        percent = torch.div(100 * good, count.clamp(min=1), rounding_mode="floor")
        return {"accuracy": torch.where(count > 0, percent, -1), "all": count, "good": good}


def _pushes(head: Contrastive, p: _Points) -> Tensor:
    """(N, E) deltas."""
    o, likely = head.options, _probabilities(p, head.options.temperature)
    friends = p.same.sum(1)
    # attraction: sum over friends j of (s_ij z_i - z_j)(1 - P_ij); repulsion: over enemies k of (z_k - s_ik z_i) P_ik
    attract = torch.where(p.paired & p.same, 1 - likely, 0.0)
    repel = likely * _turns(p, o.contrastive_neg_max)
    push = (repel - attract) @ p.z - ((repel - attract) * p.cosine).sum(1, keepdim=True) * p.z
    scale = o.temperature * p.length * friends
    factor = torch.where(scale != 0, 1 / torch.where(scale != 0, scale, 1.0), 0.0)
    delta = finite(-factor[:, None] * push * o.cls_normalizer)
    return delta.clamp(-o.max_delta, o.max_delta)


def _probabilities(p: _Points, temperature: float) -> Tensor:
    """P_ij = e_ij / sum over k != i of e_kj, among pairs of one class and time step."""
    power = torch.where(p.paired, torch.exp(p.cosine / temperature), 0.0)
    total = power.sum(0, keepdim=True) - power
    alone = p.paired.sum(0, keepdim=True) - p.paired.long() == 0
    likely = torch.where(alone, LARGEST, power / torch.where(alone, 1.0, total))
    likely = torch.where(likely > 1, LARGEST, likely)
    return torch.where(p.paired & (p.paired.sum() > FEW_PAIRS), likely, 0.0)


def _turns(p: _Points, limit: int) -> Tensor:
    """(N, N): how often position i is pushed from enemy k.

    Darknet walks through the enemies once a friend and stops with the first push at or after the limit; enemies of
    other time steps take a place in this queue but don't push.
    """
    rounds = (p.same & p.class_alike).sum(1, keepdim=True)
    enemies = p.different & p.class_alike
    queue, rank = enemies.sum(1, keepdim=True).clamp(min=1), enemies.long().cumsum(1)
    pushing = enemies & p.paired
    before = torch.div(limit - rank + queue - 1, queue, rounding_mode="floor").clamp(min=0)  # rounds below the limit
    times = torch.minimum(before, rounds)
    # the first push that reaches the limit
    late = torch.where(pushing & (before < rounds), before * queue + rank, torch.iinfo(rank.dtype).max)
    if late.shape[1]:
        times = times + ((late == late.amin(1, keepdim=True)) & (before < rounds))
    return torch.where(pushing, times, 0).to(p.z.dtype)


def printed(head: Contrastive, loss: HeadLoss) -> list[str]:
    """Darknet's lines of this head."""
    s = loss.numbers()
    counts = f"all = {s['all']:.0f}, good = {s['good']:.0f}, same = {s['all']:.0f}, diff = {s['all']:.0f} "
    return [f" Contrast accuracy = {s['accuracy']:f} %, {counts}", f" contrastive loss = {s['loss']:f} ", ""]
