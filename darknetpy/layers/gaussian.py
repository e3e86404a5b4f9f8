"""[Gaussian_yolo]: a yolo head that also predicts how sure each coordinate is."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.detections import Detections
from darknetpy.layers.registry import register
from darknetpy.layers.yolo import NMS_KINDS, AnchorHead, AnchorOptions, in_cell_order, iou_name
from darknetpy.lazy import torch

POINTS = {"center": 1, "left_top": 2, "right_bottom": 4}
"""What x and y mean, with Darknet's numbers."""


@register("Gaussian_yolo")
class GaussianYolo(AnchorHead):
    """Entries of an anchor: x, sigma x, y, sigma y, w, sigma w, h, sigma h, objectness, classes
    (Darknet: `forward_gaussian_yolo_layer`)."""

    per_anchor_extra = 9
    nms_kinds = ("default", "greedynms", "diounms", "cornersnms")

    @dataclass
    class Options(AnchorOptions):
        uc_normalizer: float = key(1.0, "factor on the deltas of the uncertainties")
        yolo_point: str = key("center", "what x and y mean: center, left_top or right_bottom")

    def build(self, options, context) -> None:
        super().build(options, context)
        self.point = options.yolo_point if options.yolo_point in POINTS else "center"

    def forward(self, x, context):
        with torch.no_grad():
            b, _, h, w = x.shape
            y = x.detach().view(b, self.n, -1, h, w)
            raw, some = y[:, :, :8], torch.sigmoid(y)
            cx, ux, cy, uy = some[:, :, :4].split(1, 2)
            scale = self.options.scale_x_y
            if scale != 1.0:
                cx, cy = (c * scale - 0.5 * (scale - 1) for c in (cx, cy))
            sizes = raw[:, :, 4:5], some[:, :, 5:6], raw[:, :, 6:7]
            return torch.cat((cx, ux, cy, uy, *sizes, some[:, :, 7:]), 2).view(b, -1, h, w)

    def decode_maps(self, output, net_w: int, net_h: int):
        maps, columns, rows, anchors = self._grid(output)
        h, w = output.shape[2:]
        bw = torch.exp(maps[:, :, 4]) * anchors[:, 0].view(1, -1, 1, 1) / net_w
        bh = torch.exp(maps[:, :, 6]) * anchors[:, 1].view(1, -1, 1, 1) / net_h
        x, y = (columns + maps[:, :, 0]) / w, (rows + maps[:, :, 2]) / h
        if self.point != "center":
            sign = 0.5 if self.point == "left_top" else -0.5
            x, y = x + sign * bw, y + sign * bh
        return torch.stack([x, y, bw, bh], -1)

    def decode_scores(self, output, net_w: int, net_h: int):
        """Boxes (B, H W n, 4) and scores (B, H W n, classes) of all cells, without a threshold."""
        maps = output.view(output.shape[0], self.n, -1, *output.shape[2:])
        certain = 1 - maps[:, :, 1:8:2].mean(2, keepdim=True)
        scores = maps[:, :, 9:] * maps[:, :, 8:9] * certain
        return in_cell_order(self.decode_maps(output, net_w, net_h), scores)

    def decode(self, output, thresh: float, net_w: int, net_h: int) -> list[Detections]:
        """Candidates with objectness above `thresh`; the class confidence is lowered by the mean uncertainty."""
        maps = output.view(output.shape[0], self.n, -1, *output.shape[2:])
        boxes = self.decode_maps(output, net_w, net_h)
        picked = torch.nonzero((maps[:, :, 8] > thresh).permute(0, 2, 3, 1))
        image, row, column, anchor = picked.unbind(1)
        values = maps[image, anchor, :, row, column]
        uncertainty = values[:, 1:8:2]
        probs = values[:, 8:9] * values[:, 9:] * (1 - uncertainty.mean(1, keepdim=True))
        probs = torch.where(probs > thresh, probs, 0.0)
        counts = torch.bincount(image, minlength=output.shape[0]).tolist()
        parts = zip(
            boxes[image, anchor, row, column].split(counts),
            values[:, 8].split(counts),
            probs.split(counts),
            uncertainty.split(counts),
            strict=True,
        )
        return [Detections(box, o, p, uncertainty=u) for box, o, p, u in parts]

    def row(self) -> str:
        o = self.options
        lines = [
            f"[Gaussian_yolo] iou loss: {iou_name(o.iou_loss)}, iou_norm: {o.iou_normalizer:.2f}, "
            f"obj_norm: {o.obj_normalizer:.2f}, cls_norm: {o.cls_normalizer:.2f}, "
            f"delta_norm: {o.delta_normalizer:.2f}, scale: {o.scale_x_y:.2f}, point: {POINTS[self.point]}"
        ]
        if self.names_nms:
            kind = o.nms_kind if o.nms_kind in self.nms_kinds else "default"
            lines.append(f"nms_kind: {kind} ({NMS_KINDS[kind]}), beta = {o.beta_nms:f} ")
        return "\n".join(lines)
