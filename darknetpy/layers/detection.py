"""[detection]: the head of YOLOv1."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.detections import Detections
from darknetpy.layers.base import Layer, LayerOptions
from darknetpy.layers.registry import register
from darknetpy.lazy import torch


@register("detection")
class DetectionHead(Layer):
    """side x side cells: all class scores, then all objectness, then all boxes (Darknet: `forward_detection_layer`)."""

    is_head = True
    has_cost = True

    @dataclass
    class Options(LayerOptions):
        coords: int = key(1, "numbers of a box", loud=True)
        classes: int = key(1, "number of classes", loud=True)
        rescore: int = key(0, "objectness aims at the IoU", loud=True)
        num: int = key(1, "boxes of a cell", loud=True)
        side: int = key(7, "cells of a side", loud=True)
        softmax: int = key(0, "softmax over the classes in training", loud=True)
        sqrt: int = key(0, "sizes are square roots", loud=True)
        max: int = key(200, "truth boxes of one image")
        coord_scale: float = key(1.0, "factor on box deltas", loud=True)
        forced: int = key(0, "choose the responsible box by the truth's size", loud=True)
        object_scale: float = key(1.0, "factor on objectness of objects", loud=True)
        noobject_scale: float = key(1.0, "factor on objectness of background", loud=True)
        class_scale: float = key(1.0, "factor on class deltas", loud=True)
        jitter: float = key(0.2, "augmentation: crop jitter", loud=True)
        resize: float = key(1.0, "augmentation: scale range")
        random: float = key(0.0, "accepted, without effect")
        reorg: int = key(0, "accepted, without effect")

    def build(self, options, context) -> None:
        o = options
        self.side, self.n, self.classes, self.coords = o.side, o.num, o.classes, o.coords
        wanted = o.side**2 * ((1 + o.coords) * o.num + o.classes)
        if wanted != self.inputs:
            raise context.error(
                f"{self.inputs} inputs, needs {wanted} = side*side*((1+coords)*num+classes)",
                "change output= of the layer before, or side=, num=, classes=",
            )
        self.outputs = self.inputs
        self.w = self.h = self.side
        self.c = 0

    def split(self, output):
        """Class scores (B, cells, classes), objectness (B, cells, num), boxes (B, cells, num, coords)."""
        flat, cells = output.reshape(output.shape[0], -1), self.side**2
        classes, objectness, boxes = flat.split([cells * self.classes, cells * self.n, cells * self.n * self.coords], 1)
        b = flat.shape[0]
        return (
            classes.view(b, cells, self.classes),
            objectness.view(b, cells, self.n),
            boxes.view(b, cells, self.n, self.coords),
        )

    def forward(self, x, context):
        if not (context.training and self.options.softmax):
            return x.detach()
        flat = x.detach().reshape(x.shape[0], -1).clone()
        classes, _, _ = self.split(flat)
        flat[:, : classes[0].numel()] = torch.softmax(classes, -1).view(x.shape[0], -1)
        return flat

    def decode(self, output, thresh: float, net_w: int, net_h: int) -> list[Detections]:
        """All boxes of each picture, relative to it."""
        classes, objectness, boxes = self.split(output)
        cell = torch.arange(self.side**2, device=output.device)
        place = torch.stack([cell % self.side, cell // self.side], -1)[None, :, None]
        centre = (boxes[..., :2] + place) / self.side
        size = boxes[..., 2:4] ** 2 if self.options.sqrt else boxes[..., 2:4]
        probs = classes[:, :, None] * objectness[..., None]
        probs = torch.where(probs > thresh, probs, 0.0)
        b = output.shape[0]
        joined = torch.cat([centre, size], -1).view(b, -1, 4)
        objectness, probs = objectness.reshape(b, -1), probs.view(b, joined.shape[1], -1)
        return [Detections(joined[i], objectness[i], probs[i]) for i in range(b)]

    def row(self) -> str:
        return "Detection Layer"
