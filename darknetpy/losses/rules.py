"""Rules that the yolo and the Gaussian yolo head have in common: class deltas, and pulling predictions up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from darknetpy.layers.constants import constant
from darknetpy.layers.yolo import AnchorHead
from darknetpy.losses.anchors import Assignment, Delta, Places, best_overlap, finite, usable
from darknetpy.losses.base import LossContext, mapped

MATCH_PROBABILITY = 0.25
"""A prediction counts as matching a truth only if some class of it is likelier than this."""


@dataclass
class Scene:
    """What a loss looks at.

    Attributes:
        maps: (B, n, entries, H, W) activated output; boxes: (B, n, H, W, 4), relative to the network's input.
        truth: (B, M, 6); ok: (B, M) truths to use; delta: the deltas so far.
        objectness: number of the objectness entry; box entries come before it, classes after it.
        box_delta: (scene, truth boxes (P, 4), classes (P,), places) to (P, objectness), the push on the box entries.
    """

    head: AnchorHead
    maps: Tensor
    boxes: Tensor
    truth: Tensor
    ok: Tensor
    delta: Delta
    context: LossContext
    objectness: int
    box_delta: Callable[[Scene, Tensor, Tensor, Places], Tensor]

    @classmethod
    def of(
        cls, head: AnchorHead, output: Tensor, truth: Tensor, context: LossContext, objectness: int, box_delta: Callable
    ) -> Scene:
        """That of an activated output (B, n (objectness + 1 + classes), H, W), with no delta yet."""
        maps = output.view(len(output), head.n, -1, *output.shape[2:])
        boxes = head.decode_maps(output, context.net_w, context.net_h)
        delta = Delta(output, head.n, objectness + 1 + head.classes)
        return cls(head, maps, boxes, truth, usable(truth, head.classes), delta, context, objectness, box_delta)

    @property
    def confidence(self) -> Tensor:
        """(B, n, H, W) objectness; what isn't finite reads 0, as Darknet sets it."""
        return finite(self.maps[:, :, self.objectness])

    @property
    def classes(self) -> Tensor:
        """(B, n, classes, H, W) class probabilities."""
        return self.maps[:, :, self.objectness + 1 :]

    def factor(self, target: Tensor) -> Tensor | float:
        """Factor of each class from `counters_per_class`: the largest count over its own, at most max_delta."""
        counters = self.head.options.counters_per_class
        if counters is None:
            return 1.0
        counts = constant([float(max(1, count)) for count in counters], self.maps)
        return (counts.max() / counts).clamp(max=self.head.options.max_delta)[target]

    @property
    def aims(self) -> tuple[float, float]:
        """What the right and the wrong classes aim at, with label smoothing."""
        eps = self.head.options.label_smooth_eps
        return 1 - eps + 0.5 * eps, 0.5 * eps


@dataclass
class Overlaps:
    """Of each prediction, (B, n, H, W): its highest IoU with a truth, that truth's number, the IoU if it matches."""

    best: Tensor
    which: Tensor
    match: Tensor


def overlaps(s: Scene) -> Overlaps:
    """IoU of all predictions with all truths; a prediction without a likely class matches none."""
    shape = s.boxes.shape[:4]
    best, which = best_overlap(s.boxes.reshape(shape[0], -1, 4), s.truth, s.ok)
    best, which = best.view(shape), which.view(shape)
    likely = (s.classes > MATCH_PROBABILITY).any(2)
    return Overlaps(best, which, torch.where(likely, best, 0.0))


def truth_of(s: Scene, which: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes (B n H W, 4) and trained classes (B n H W,) of the truths that `which` (B, n, H, W) names."""
    images = torch.arange(len(which), device=which.device).view(-1, 1, 1, 1)
    rows = s.truth[images, which].reshape(-1, s.truth.shape[-1])
    source = rows[:, 4].long().clamp(0, s.head.classes - 1)
    return rows[:, :4], mapped(s.head.class_map, source).clamp(0, s.head.classes - 1)


def first_class_delta(s: Scene, probs: Tensor, target: Tensor) -> Tensor:
    """(P, classes) delta of a prediction that no truth has touched (Darknet: `delta_yolo_class`)."""
    o = s.head.options
    hot = torch.arange(s.head.classes, device=probs.device) == target[:, None]
    if getattr(o, "focal_loss", 0):
        pt = probs.gather(1, target[:, None]) + 1e-15
        grad = -(1 - pt) * (2 * pt * torch.log(pt) + pt - 1)
        return finite(0.5 * grad * (hot.to(probs.dtype) - probs))
    right, wrong = s.aims
    result = torch.where(hot, right - probs, wrong - probs)
    if o.counters_per_class is not None:
        result = torch.where(hot, result * (s.factor(target[:, None]) * o.cls_normalizer), result)
    return finite(result)


def class_maps(s: Scene, target: Tensor) -> Tensor:
    """(B, n, classes, H, W) deltas if every prediction were trained on its `target` (B n H W,) first."""
    b, n, classes, h, w = s.classes.shape
    probs = s.classes.permute(0, 1, 3, 4, 2).reshape(-1, classes)
    return first_class_delta(s, probs, target).view(b, n, h, w, classes).permute(0, 1, 4, 2, 3)


def pull_high(s: Scene, high: Tensor, overlap: Overlaps) -> None:
    """Predictions that overlap a truth by more than truth_thresh (`high`, (B, n, H, W)) are trained on it."""
    o, deltas, at = s.head.options, s.delta.maps, s.objectness
    aim = overlap.best * overlap.best if o.objectness_smooth else torch.ones_like(overlap.best)
    deltas[:, :, at] = torch.where(high, o.obj_normalizer * (aim - s.confidence), deltas[:, :, at])
    truth, target = truth_of(s, overlap.which)
    rates = class_maps(s, target)
    if o.objectness_smooth:
        where = target.view_as(high)[:, :, None]
        value = s.factor(where) * (aim[:, :, None] - s.classes.gather(2, where))
        rates = rates.scatter(2, where, finite(value))
    deltas[:, :, at + 1 :] = torch.where(high[:, :, None], rates, deltas[:, :, at + 1 :])
    b, n, h, w = high.shape
    grids = torch.meshgrid([torch.arange(size, device=high.device) for size in (b, n, h, w)], indexing="ij")
    push = s.box_delta(s, truth, target, Places(*(grid.reshape(-1) for grid in grids)))
    push = push.view(b, n, h, w, at).permute(0, 1, 4, 2, 3)
    deltas[:, :, :at] += torch.where(high[:, :, None], push, 0.0)


def pull_boxes(s: Scene, a: Assignment) -> Tensor:
    """Add every pair's push to its box; returns the pushes (P, box entries)."""
    push = s.box_delta(s, a.truth, a.target, a.places)
    entries = torch.arange(s.objectness, device=push.device)[None]
    s.delta.add(s.delta.index(a.places, entries, a.on), push)
    return push


def pull_classes(s: Scene, a: Assignment, preset: Tensor | None) -> None:
    """The first truth of a prediction sets all classes; further ones only their own.

    `preset` (B, n, H, W) marks predictions whose classes were set before. (Darknet takes a class delta of exactly 0 for
    "not set": a second truth on a class whose probability is exactly 0 sets all anew there.)
    """
    delta, probs = s.delta, a.places.values(s.classes)
    fresh = a.first if preset is None else a.first & ~a.places.of(preset)
    start = s.objectness + 1
    entries = start + torch.arange(s.head.classes, device=probs.device)[None]
    delta.put(delta.index(a.places, entries, fresh), first_class_delta(s, probs, a.target))
    own = probs.gather(1, a.target[:, None])[:, 0]
    again = (s.aims[0] - own) * s.factor(a.target)
    delta.put(delta.index(a.places, start + a.target, a.on & ~fresh), finite(again))


def share_boxes(s: Scene, seen: Tensor | None) -> None:
    """Divide box deltas by the number of classes that are pulled up (Darknet: `averages_yolo_deltas`), everywhere or
    where `seen` (B, n, H, W)."""
    maps, at = s.delta.maps, s.objectness
    positive = (maps[:, :, at + 1 :] > 0).sum(2)
    divide = positive > 0 if seen is None else (positive > 0) & seen
    maps[:, :, :at] /= torch.where(divide, positive, 1)[:, :, None]
