"""The one container where decoding, NMS, metrics, drawing and writers meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from darknetpy import boxes as box_math
from darknetpy.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

HIDDEN = "dont_show"
"""Classes whose name begins so are neither printed nor drawn nor written."""


@dataclass(frozen=True)
class Detection:
    """One box with its best class. `box` is x, y, w, h (centre form), in the units of its `Detections`."""

    box: tuple[float, float, float, float]
    class_id: int
    name: str
    confidence: float
    objectness: float


@dataclass
class Detections:
    """Boxes found in one picture, in Darknet's order.

    Attributes:
        boxes: (N, 4) x, y, w, h: centre form, relative to the picture (or in pixels where `relative` is False).
        objectness: (N,).
        probs: (N, classes), objectness times class probability; 0 where under the threshold or suppressed.
        names: class names; missing ones show as `class_N`.
        image_size: (width, height) of the picture, pixels.
        relative: units of `boxes`.
        uncertainty: (N, 4), Gaussian heads only.
    """

    boxes: Tensor
    objectness: Tensor
    probs: Tensor
    names: Sequence[str] = field(default_factory=list)
    image_size: tuple[int, int] | None = None
    relative: bool = True
    uncertainty: Tensor | None = None

    def __len__(self) -> int:
        """All boxes; iteration leaves out those whose classes are all under the threshold, suppressed or hidden."""
        return len(self.boxes)

    def __iter__(self) -> Iterator[Detection]:
        """Boxes that have a class, strongest first."""
        best, ids = self.best()
        order = torch.argsort(best, descending=True, stable=True)
        rows = zip(order.tolist(), best[order].tolist(), ids[order].tolist(), strict=True)
        for i, confidence, class_id in rows:
            if confidence > 0:
                x, y, w, h = self.boxes[i].tolist()
                yield Detection((x, y, w, h), class_id, self.name(class_id), confidence, float(self.objectness[i]))

    def __repr__(self) -> str:
        shown = [f"{d.name} {d.confidence:.2f}" for d in self]
        return f"Detections({len(shown)}: {', '.join(shown[:12])}{', ...' if len(shown) > 12 else ''})"

    @classmethod
    def empty(cls, classes: int) -> Detections:
        return cls(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, classes))

    @classmethod
    def cat(cls, parts: Sequence[Detections]) -> Detections:
        """Several heads' detections one after another; classes are padded to the longest."""
        if len(parts) == 1:
            return parts[0]
        classes = max(part.probs.shape[1] for part in parts)
        probs = [torch.nn.functional.pad(part.probs, (0, classes - part.probs.shape[1])) for part in parts]
        uncertain = [part.uncertainty for part in parts]
        return replace(
            parts[0],
            boxes=torch.cat([part.boxes for part in parts]),
            objectness=torch.cat([part.objectness for part in parts]),
            probs=torch.cat(probs),
            uncertainty=torch.cat(uncertain) if all(u is not None for u in uncertain) else None,
        )

    def name(self, class_id: int) -> str:
        return self.names[class_id] if class_id < len(self.names) else f"class_{class_id}"

    def hidden(self, class_id: int) -> bool:
        return self.name(class_id).startswith(HIDDEN)

    def best(self) -> tuple[Tensor, Tensor]:
        """Best confidence and class of each box (N,), hidden classes left out; (0, 0) where there is none."""
        if not self.probs.shape[1]:
            return self.probs.new_zeros(len(self)), torch.zeros(len(self), dtype=torch.long)
        probs = self.probs
        shown = [i for i, name in enumerate(self.names[: probs.shape[1]]) if name.startswith(HIDDEN)]
        if shown:
            probs = probs.clone()
            probs[:, shown] = 0
        return probs.max(1)

    def select(self, index: Tensor) -> Detections:
        """The rows that an index or a mask picks."""
        uncertainty = None if self.uncertainty is None else self.uncertainty[index]
        return replace(
            self,
            boxes=self.boxes[index],
            objectness=self.objectness[index],
            probs=self.probs[index],
            uncertainty=uncertainty,
        )

    def cpu(self) -> Detections:
        """The same on the CPU."""
        if self.boxes.device.type == "cpu":
            return self
        moved = {name: getattr(self, name).cpu() for name in ("boxes", "objectness", "probs")}
        return replace(self, **moved, uncertainty=None if self.uncertainty is None else self.uncertainty.cpu())

    def above(self, thresh: float) -> Detections:
        """Boxes with any class over a confidence."""
        return self.select((self.probs > thresh).any(1))

    def to_pixels(self) -> Detections:
        """Boxes in pixels of the picture."""
        if not self.relative or self.image_size is None:
            return self
        return replace(self, boxes=self.boxes * self.boxes.new_tensor(self.image_size * 2), relative=False)

    def correct(
        self, image_size: tuple[int, int], net_size: tuple[int, int], letter_box: bool, relative: bool = True
    ) -> Detections:
        """From coordinates of the network's input to those of the picture (Darknet: `correct_yolo_boxes`)."""
        (w, h), (net_w, net_h) = image_size, net_size
        new_w, new_h = net_w, net_h
        if letter_box and net_w / w < net_h / h:
            new_h = (h * net_w) // w
        elif letter_box:
            new_w = (w * net_h) // h
        shift = self.boxes.new_tensor([(net_w - new_w) / 2.0 / net_w, (net_h - new_h) / 2.0 / net_h, 0.0, 0.0])
        ratio = self.boxes.new_tensor([new_w / net_w, new_h / net_h])
        boxes = (self.boxes - shift) / torch.cat([ratio, ratio])
        if not relative:
            boxes = boxes * boxes.new_tensor([w, h, w, h])
        return replace(self, boxes=boxes, image_size=(w, h), relative=relative)

    def nms(self, kind: str = "default", thresh: float = 0.45, beta: float = 0.6) -> Detections:
        """Class-wise suppression; order as Darknet leaves it (`do_nms_sort`, `diounms_sort`).

        Boxes without objectness go (each swapped with the last one); then every class in turn sorts all boxes by its
        probability, stably, and zeroes the class in weaker boxes that overlap a stronger one.
        """
        kept = self.select(_without_empty(self.objectness))
        boxes, probs = kept.boxes.cpu(), kept.probs.cpu().clone()
        order, counts = torch.arange(len(kept)), (probs > 0).sum(0).tolist()
        for class_id, count in enumerate(counts):
            if count:
                order = order[torch.argsort(probs[order, class_id], descending=True, stable=True)]
            if count > 1:
                rows = order[:count]
                alive = box_math.greedy_nms(boxes[rows], thresh, kind, beta)
                probs[rows[~alive], class_id] = 0
        result = kept.select(order.to(kept.boxes.device))
        return replace(result, probs=probs[order].to(kept.probs.device))

    def nms_objectness(self, thresh: float = 0.45) -> Detections:
        """Suppression by objectness, across classes: all probabilities of a weaker box go (Darknet: `do_nms_obj`)."""
        kept = self.select(_without_empty(self.objectness))
        order = torch.argsort(kept.objectness, descending=True, stable=True)
        kept = kept.select(order)
        alive = box_math.greedy_nms(kept.boxes, thresh)
        return replace(kept, probs=kept.probs * alive[:, None], objectness=torch.where(alive, kept.objectness, 0.0))


def _without_empty(objectness: Tensor) -> Tensor:
    """Indices of boxes with objectness, in the order that swapping each empty one with the last leaves."""
    values = objectness.tolist()
    index, last, i = list(range(len(values))), len(values) - 1, 0
    while i <= last:
        if values[index[i]] == 0:
            index[i], index[last] = index[last], index[i]
            last -= 1
        else:
            i += 1
    return torch.tensor(index[: last + 1], dtype=torch.long, device=objectness.device)
