"""[yolo]: the head of YOLOv3, v4 and v7."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.config.numbers import FLT_MAX, atoi
from darknetpy.detections import Detections
from darknetpy.errors import ConfigError, at
from darknetpy.layers.base import MAX_ANCHORS, BuildContext, Layer, LayerOptions
from darknetpy.layers.constants import constant
from darknetpy.layers.registry import register
from darknetpy.lazy import torch

IOU_LOSSES = {"iou": 0, "giou": 1, "mse": 2, "diou": 3, "ciou": 4}
"""Darknet's numbers of box losses, which the load table shows."""
NMS_KINDS = {"default": 0, "greedynms": 1, "diounms": 2, "cornersnms": 3}


@dataclass
class AnchorOptions(LayerOptions):
    """Keys that [yolo] and [Gaussian_yolo] have in common."""

    classes: int = key(20, "number of classes", loud=True)
    num: int = key(1, "anchors in the list", loud=True)
    mask: list[int] | None = key(None, "anchors of this head; all where missing", stop_at_hash=True)
    max: int = key(200, "truth boxes of one image")
    counters_per_class: list[int] | None = key(None, "objects of each class in the data set", stop_at_hash=True)
    label_smooth_eps: float = key(0.0, "label smoothing")
    scale_x_y: float = key(1.0, "stretches the range of x and y around the cell's middle")
    objectness_smooth: int = key(0, "objectness aims at the IoU")
    max_delta: float = key(FLT_MAX, "bound of box deltas and class multipliers")
    iou_normalizer: float = key(0.75, "factor on box deltas")
    obj_normalizer: float = key(1.0, "factor on objectness deltas")
    cls_normalizer: float = key(1.0, "factor on class deltas, with counters_per_class")
    delta_normalizer: float = key(1.0, "factor on what goes back into the network")
    iou_loss: str = key("mse", "box loss: mse, iou, giou, diou or ciou")
    iou_thresh_kind: str = key("iou", "overlap of iou_thresh: iou, giou, diou or ciou")
    beta_nms: float = key(0.6, "exponent of diounms")
    nms_kind: str = key("default", "suppression: default, greedynms or diounms")
    jitter: float = key(0.2, "augmentation: crop jitter", loud=True)
    resize: float = key(1.0, "augmentation: scale range")
    ignore_thresh: float = key(0.5, "predictions above this overlap are not pushed down", loud=True)
    truth_thresh: float = key(1.0, "predictions above this overlap are pulled up", loud=True)
    iou_thresh: float = key(1.0, "below 1: all anchors that fit so well are trained")
    random: float = key(0.0, "random network sizes: 1, or the range's factor")
    map: str | None = key(None, "file that maps class numbers")
    anchors: list[float] | None = key(None, "widths and heights in pixels of the network's input", stop_at_hash=True)


class AnchorHead(Layer):
    """What the anchor heads share: masks, anchors, checks and the table's lines."""

    is_head = True
    has_cost = True
    per_anchor_extra = 5
    nms_kinds: tuple[str, ...] = ("default", "greedynms", "diounms")
    section = "yolo"

    def build(self, options, context: BuildContext) -> None:
        self.classes = options.classes
        if self.classes < 1 or options.num < 1:
            raise context.error(f"classes={self.classes} and num={options.num} must be at least 1")
        if options.num > MAX_ANCHORS:
            raise context.error(f"num={options.num} anchors are more than any head has")
        self.mask = list(range(options.num)) if options.mask is None else options.mask
        self._check_mask(options, context)
        self.anchors = self._anchors(options, context)
        self.n = len(self.mask)
        wanted = self.n * (self.classes + self.per_anchor_extra)
        if self.inputs != self.w * self.h * wanted:
            raise self._filters_mismatch(wanted, context)
        if self.c != wanted:
            context.defer(self._filters_mismatch(wanted, context))
        self.c = wanted
        if options.counters_per_class is not None and len(options.counters_per_class) != self.classes:
            raise context.error(
                f"counters_per_class= has {len(options.counters_per_class)} numbers for classes={self.classes}"
            )
        self._embedding(options, context)
        self.class_map = read_map(options.map, context) if options.map else None
        self.image_size(self.w, self.h, wanted)
        self.names_nms = self.section_has(context, "nms_kind")

    @staticmethod
    def section_has(context: BuildContext, name: str) -> bool:
        return context.section is not None and context.section.find(name) is not None

    def _embedding(self, options, context) -> None:
        self.embedding_layer: int | None = None

    def _check_mask(self, options, context) -> None:
        bad = [number for number in self.mask if not 0 <= number < options.num]
        if bad:
            remedy = f"use 0 to {options.num - 1}"
            context.defer(context.error(f"mask={bad[0]} is outside num={options.num} anchors", remedy))

    def _anchors(self, options, context) -> list[float]:
        """All `num` pairs; missing numbers are .5."""
        given = options.anchors or []
        if given and len(given) < 2 * options.num:
            what = f"anchors= has {len(given)} numbers, num={options.num} needs {2 * options.num}"
            context.defer(context.error(what, "give num= pairs of anchors"))
        return (given + [0.5] * (2 * options.num))[: 2 * options.num]

    def _filters_mismatch(self, wanted: int, context: BuildContext) -> ConfigError:
        before = context.layers[-1] if context.layers else None
        if before is None or before.section is None:
            return context.error(f"the head needs {wanted} channels, the input has {self.c}")
        line = before.section.find("filters")
        place = f"layer {before.index}, {at(line.line if line else before.section.line)}"
        what = f"filters={self.c}"
        if before.type != "convolutional":
            what = f"[{before.section.type}] gives {self.c} channels"
        return ConfigError(
            f"{place}: {what}, needs {wanted} = ({self.classes}+{self.per_anchor_extra})*{self.n}",
            file=context.path,
            remedy=f"filters= in the [convolutional]-layer must correspond to classes= and mask= of layer {self.index}",
        )

    def decode_maps(self, output, net_w: int, net_h: int):
        """Boxes (B, n, H, W, 4), relative to the network's input, of an activated output."""
        raise NotImplementedError

    def _grid(self, output):
        """Views and constants that decoding needs: (B, n, entries, H, W), columns, rows, anchors (n, 2)."""
        b, _, h, w = output.shape
        maps = output.view(b, self.n, -1, h, w)
        columns = torch.arange(w, device=output.device, dtype=output.dtype)
        rows = torch.arange(h, device=output.device, dtype=output.dtype)[:, None]
        last = len(self.anchors) // 2 - 1
        own = [self.anchors[2 * k : 2 * k + 2] for k in (min(max(number, 0), last) for number in self.mask)]
        return maps, columns, rows, constant([side for pair in own for side in pair], output).view(-1, 2)


def in_cell_order(boxes, scores):
    """Boxes (B, n, H, W, 4) and scores (B, n, classes, H, W) as lists over rows, columns, anchors."""
    b, classes = boxes.shape[0], scores.shape[2]
    return boxes.permute(0, 2, 3, 1, 4).reshape(b, -1, 4), scores.permute(0, 3, 4, 1, 2).reshape(b, -1, classes)


def read_map(path: str, context: BuildContext) -> list[int]:
    """A class map: one number a line (Darknet: `read_map`)."""
    return [atoi(line) for line in context.read_lines(path, "map")]


@register("yolo")
class Yolo(AnchorHead):
    """Boxes on a grid with anchors (Darknet: `make_yolo_layer`, `forward_yolo_layer_gpu`, `get_yolo_detections`)."""

    @dataclass
    class Options(AnchorOptions):
        show_details: int = key(1, "print box and class losses apart (changes the reported loss)")
        focal_loss: int = key(0, "focal loss of the classes")
        new_coords: int = key(0, "sizes as squares; the convolution before has activation=logistic")
        embedding_layer: int = key(999999, "layer whose channels are track embeddings")
        track_history_size: int = key(5, "frames that tracking remembers")
        sim_thresh: float = key(0.8, "similarity that joins two tracks")
        dets_for_track: int = key(1, "hits before an id is given")
        dets_for_show: int = key(1, "hits before a track is shown")
        track_ciou_norm: float = key(0.01, "share of the overlap in track similarity")

    def _embedding(self, options, context) -> None:
        self.embedding_layer, self.embedding_size = None, 0
        if options.embedding_layer == 999999:
            return
        self.embedding_layer = context.source(options.embedding_layer, "embedding_layer")
        self.embedding_size = context.layers[self.embedding_layer].out_c // max(1, len(self.mask))

    def sources(self) -> list[int]:
        return [] if self.embedding_layer is None else [self.embedding_layer]

    def forward(self, x, context):
        if self.options.new_coords and self.options.scale_x_y == 1.0:
            return x
        with torch.no_grad():
            b, _, h, w = x.shape
            y = x.detach().view(b, self.n, -1, h, w)
            centre, size, rest = y[:, :, :2], y[:, :, 2:4], y[:, :, 4:]
            if not self.options.new_coords:
                centre, rest = torch.sigmoid(centre), torch.sigmoid(rest)
            scale = self.options.scale_x_y
            if scale != 1.0:
                centre = centre * scale - 0.5 * (scale - 1)
            return torch.cat((centre, size, rest), 2).view(b, -1, h, w)

    def decode_maps(self, output, net_w: int, net_h: int):
        maps, columns, rows, anchors = self._grid(output)
        h, w = output.shape[2:]
        x, y, tw, th = maps[:, :, 0], maps[:, :, 1], maps[:, :, 2], maps[:, :, 3]
        aw, ah = anchors[:, 0].view(1, -1, 1, 1), anchors[:, 1].view(1, -1, 1, 1)
        if self.options.new_coords:
            bw, bh = tw * tw * 4 * aw / net_w, th * th * 4 * ah / net_h
        else:
            bw, bh = torch.exp(tw) * aw / net_w, torch.exp(th) * ah / net_h
        return torch.stack([(columns + x) / w, (rows + y) / h, bw, bh], -1)

    def decode_scores(self, output, net_w: int, net_h: int):
        """Boxes (B, H W n, 4) and scores (B, H W n, classes) of all cells, without a threshold."""
        maps = output.view(output.shape[0], self.n, -1, *output.shape[2:])
        scores = maps[:, :, 5:] * maps[:, :, 4:5]
        return in_cell_order(self.decode_maps(output, net_w, net_h), scores)

    def decode(self, output, thresh: float, net_w: int, net_h: int) -> list[Detections]:
        """Candidates of each picture with objectness above `thresh`: cells row by row, anchors inside a cell.

        Boxes are relative to the network's input. Only the survivors of the threshold are decoded.
        """
        maps, _, _, anchors = self._grid(output)
        b, _, _, h, w = maps.shape
        picked = torch.nonzero((maps[:, :, 4] > thresh).permute(0, 2, 3, 1))
        image, row, column, anchor = picked.unbind(1)
        values = maps[image, anchor, :, row, column]
        size = values[:, 2:4]
        scale = anchors[anchor] / constant((net_w, net_h), values)
        size = size * size * 4 * scale if self.options.new_coords else torch.exp(size) * scale
        centre = (values[:, :2] + torch.stack([column, row], 1)) / constant((w, h), values)
        probs = values[:, 5:] * values[:, 4:5]
        probs = torch.where(probs > thresh, probs, 0.0)
        boxes, counts = torch.cat([centre, size], 1), torch.bincount(image, minlength=b).tolist()
        parts = zip(boxes.split(counts), values[:, 4].split(counts), probs.split(counts), strict=True)
        return [Detections(box, objectness, prob) for box, objectness, prob in parts]

    def row(self) -> str:
        o = self.options
        lines = [
            "yolo",
            f"[yolo] params: iou loss: {iou_name(o.iou_loss)}, iou_norm: {o.iou_normalizer:.2f}, "
            f"obj_norm: {o.obj_normalizer:.2f}, cls_norm: {o.cls_normalizer:.2f}, "
            f"delta_norm: {o.delta_normalizer:.2f}, scale_x_y: {o.scale_x_y:.2f}",
        ]
        if self.names_nms:
            kind = o.nms_kind if o.nms_kind in self.nms_kinds else "default"
            lines.append(f"nms_kind: {kind} ({NMS_KINDS[kind]}), beta = {o.beta_nms:f} ")
        if self.embedding_layer is not None:
            lines.append(f" embedding_layer_id = {self.embedding_layer},  embedding_size = {self.embedding_size} ")
        return "\n".join(lines)


def iou_name(text: str) -> str:
    """`ciou (4)`; an unknown loss is plain IoU."""
    name = text if text in IOU_LOSSES else "iou"
    return f"{name} ({IOU_LOSSES[name]})"
