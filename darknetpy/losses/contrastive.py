"""Loss of [contrastive]: embeddings of one track attract, those of others repel (Darknet: `forward_contrastive_layer`)."""

from __future__ import annotations

import torch
from torch import Tensor

from darknetpy.layers.contrastive import Contrastive
from darknetpy.losses.base import HeadLoss, LossContext

LARGEST = 0.9999
"""Stands in for probabilities that cannot be."""


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
    where = torch.nonzero(loss.labels >= 0)
    z = embeddings[tuple(where.unbind(1))]
    label, class_id = loss.labels[tuple(where.unbind(1))], loss.classes[tuple(where.unbind(1))]
    step = where[:, 0] * 0 if context.net.time_steps <= 1 else where[:, 0] // max(1, b // context.net.time_steps)
    pushes, accuracy = _pairs(head, z, label, class_id, step)
    delta = torch.zeros_like(embeddings)
    delta[tuple(where.unbind(1))] = pushes
    delta = delta.permute(0, 1, 4, 2, 3).reshape(x.shape)
    return HeadLoss(delta, (delta * delta).sum(), {"accuracy": accuracy})


def _pairs(head: Contrastive, z: Tensor, label: Tensor, class_id: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    o, count = head.options, len(z)
    norm = z.norm(dim=1).clamp(min=1e-12)
    unit = z / norm[:, None]
    cosine = unit @ unit.t()
    other = ~torch.eye(count, dtype=torch.bool, device=z.device)
    together = other & (class_id[:, None] == class_id[None]) & (step[:, None] == step[None])
    power = torch.where(together, torch.exp(cosine / o.temperature), 0.0)
    p = _probabilities(power)
    same = label[:, None] == label[None]
    friends = together & same
    amount = friends.sum(1)
    factor = 1.0 / (amount.clamp(min=1) * o.temperature * norm)
    attract = torch.where(friends, 1 - p, 0.0)
    # sum over friends j of (s_ij z_i - z_j)(1 - P_ij)
    pull = (attract * cosine).sum(1, keepdim=True) * z - attract @ z
    enemies = _first_enemies(together & ~same, friends, o.contrastive_neg_max)
    repel = torch.where(enemies > 0, p, 0.0) * enemies
    push = repel @ z - (repel * cosine).sum(1, keepdim=True) * z
    has = (amount > 0)[:, None]
    delta = torch.where(has, -factor[:, None] * (pull + push), 0.0) * o.cls_normalizer
    delta = torch.nan_to_num(delta, nan=0.0, posinf=0.0, neginf=0.0).clamp(-o.max_delta, o.max_delta)
    best_friend = torch.where(friends, cosine, -2.0).amax(1) if count else cosine.new_zeros(0)
    best_enemy = torch.where(together & ~same, cosine, -2.0).amax(1) if count else cosine.new_zeros(0)
    judged = (best_friend > -2) & (best_enemy > -2)
    return delta, 100.0 * (judged & (best_friend > best_enemy)).sum() / judged.sum().clamp(min=1)


def _probabilities(power: Tensor) -> Tensor:
    """P_ij = e_ij / sum over k != i of e_kj."""
    total = power.sum(0, keepdim=True) - power
    p = torch.where(total > 0, power / torch.where(total > 0, total, 1.0), LARGEST)
    return torch.where(p > 1, LARGEST, p)


def _first_enemies(enemies: Tensor, friends: Tensor, limit: int) -> Tensor:
    """How often each enemy counts: once a friend, at most `limit` of them in all for one position."""
    rounds = friends.sum(1, keepdim=True)
    rank = enemies.long().cumsum(1)
    total = enemies.sum(1, keepdim=True).clamp(min=1)
    full, rest = limit // total, limit % total
    times = torch.minimum(full, rounds) + ((rounds > full) & (rank <= rest)).long()
    return torch.where(enemies, times, 0).to(torch.float32)
