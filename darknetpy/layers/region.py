"""[region]: the head of YOLOv2."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.detections import Detections
from darknetpy.layers.base import MAX_ANCHORS, Layer, LayerOptions
from darknetpy.layers.constants import constant
from darknetpy.layers.registry import register
from darknetpy.layers.tree import read_tree
from darknetpy.layers.yolo import read_map
from darknetpy.lazy import torch

MAPPED_CLASSES = 200
"""With `map=`, boxes carry this many classes, taken through the map."""
TREE_CONFIDENCE = 0.5


@register("region")
class Region(Layer):
    """Boxes on a grid with anchors in cells (Darknet: `forward_region_layer`, `get_region_boxes`).

    The output is laid out as Darknet's CPU build does: (B, H, W, n, coords + 1 + classes), flattened.
    """

    is_head = True
    has_cost = True
    notes_after_row = frozenset({"mask_scale", "log", "sqrt", "coord_scale", "object_scale", "noobject_scale",
                                 "class_scale", "thresh", "classfix", "absolute", "jitter"})  # fmt: skip

    @dataclass
    class Options(LayerOptions):
        coords: int = key(4, "numbers of a box", loud=True)
        classes: int = key(20, "number of classes", loud=True)
        num: int = key(1, "anchors", loud=True)
        max: int = key(200, "truth boxes of one image")
        log: int = key(0, "accepted, without effect")
        sqrt: int = key(0, "accepted, without effect")
        softmax: int = key(0, "softmax over the classes", loud=True)
        focal_loss: int = key(0, "focal loss of the classes")
        rescore: int = key(0, "objectness aims at the IoU")
        thresh: float = key(0.5, "predictions above this overlap are not pushed down", loud=True)
        classfix: int = key(0, "class-only rules")
        absolute: int = key(0, "accepted, without effect")
        random: float = key(0.0, "random network sizes: 1, or the range's factor")
        coord_scale: float = key(1.0, "factor on box deltas", loud=True)
        object_scale: float = key(1.0, "factor on objectness of objects", loud=True)
        noobject_scale: float = key(1.0, "factor on objectness of background", loud=True)
        mask_scale: float = key(1.0, "accepted, without effect", loud=True)
        class_scale: float = key(1.0, "factor on class deltas", loud=True)
        bias_match: int = key(0, "best anchor by the anchors' own sizes", loud=True)
        jitter: float = key(0.2, "augmentation: crop jitter", loud=True)
        resize: float = key(1.0, "augmentation: scale range")
        tree: str | None = key(None, "class tree file")
        map: str | None = key(None, "file that maps class numbers")
        anchors: list[float] | None = key(None, "widths and heights in cells")

    def build(self, options, context) -> None:
        self.n, self.classes, self.coords = options.num, options.classes, options.coords
        self.entries = self.coords + 1 + self.classes
        if min(self.n, self.classes) < 1 or self.coords != 4:
            raise context.error(f"num={self.n}, classes={self.classes} and coords={self.coords} (4) do not fit")
        if self.n > MAX_ANCHORS:
            raise context.error(f"num={self.n} anchors are more than any head has")
        if self.w * self.h * self.n * self.entries != self.inputs:
            raise context.error(
                f"filters={self.c}, needs {self.n * self.entries} = ({self.classes}+{self.coords}+1)*{self.n}",
                "change filters= of the [convolutional] before",
            )
        self.tree = read_tree(options.tree, context) if options.tree else None
        if self.tree is not None and self.tree.size != self.classes:
            raise context.error(f"the tree has {self.tree.size} classes, classes={self.classes}")
        self.class_map = read_map(options.map, context) if options.map else None
        given = options.anchors or []
        if given and len(given) < 2 * self.n:
            context.defer(context.error(f"anchors= has {len(given)} numbers, num={self.n} needs {2 * self.n}"))
        self.anchors = (given + [0.5] * (2 * self.n))[: 2 * self.n]
        self.image_size(self.w, self.h, self.n * self.entries)

    def forward(self, x, context):
        with torch.no_grad():
            b, _, h, w = x.shape
            y = x.detach().view(b, self.n, self.entries, h, w).permute(0, 3, 4, 1, 2).contiguous()
            k = self.coords
            box, objectness, classes = y[..., :k], torch.sigmoid(y[..., k : k + 1]), y[..., k + 1 :]
            if self.tree is not None:
                classes = self.tree.softmax(classes)
            elif self.options.softmax:
                classes = torch.softmax(classes, -1)
            return torch.cat((box, objectness, classes), -1).view(b, -1, h, w)

    def cells(self, output):
        """The output as (B, H, W, n, entries)."""
        b, _, h, w = output.shape
        return output.view(b, h, w, self.n, self.entries)

    def to_input(self, delta):
        """A delta in the layout of the output, (B, H, W, n, entries) flattened, in that of the input."""
        return self.cells(delta).permute(0, 3, 4, 1, 2)

    def decode_maps(self, output):
        """Boxes (B, H, W, n, 4), relative to the picture."""
        y = self.cells(output)
        h, w = y.shape[1:3]
        anchors = constant(self.anchors, y).view(-1, 2)
        columns = torch.arange(w, device=y.device, dtype=y.dtype).view(1, 1, w, 1)
        rows = torch.arange(h, device=y.device, dtype=y.dtype).view(1, h, 1, 1)
        return torch.stack(
            [
                (columns + torch.sigmoid(y[..., 0])) / w,
                (rows + torch.sigmoid(y[..., 1])) / h,
                torch.exp(y[..., 2]) * anchors[:, 0] / w,
                torch.exp(y[..., 3]) * anchors[:, 1] / h,
            ],
            -1,
        )

    def decode_scores(self, output, net_w: int, net_h: int):
        """Boxes (B, H W n, 4) and scores (B, H W n, classes) of all cells, without a threshold."""
        y = self.cells(output)
        scores = y[..., self.coords + 1 :] * y[..., self.coords : self.coords + 1]
        b = y.shape[0]
        return self.decode_maps(output).reshape(b, -1, 4), scores.reshape(b, -1, self.classes)

    def decode(self, output, thresh: float, net_w: int, net_h: int, hier: float = TREE_CONFIDENCE) -> list[Detections]:
        """Every cell and anchor of each picture, in Darknet's order; objectness reads 1, as Darknet leaves it.

        `hier`: how likely a class of the tree must be to be shown; Darknet's own command always has 0.5.
        """
        y = self.cells(output)
        boxes = self.decode_maps(output)
        confidence = y[..., self.coords]
        if self.options.classfix == -1:
            confidence = torch.where(confidence < 0.5, 0.0, confidence)
        classes = y[..., self.coords + 1 :]
        if self.tree is not None:
            probs = self._tree_probs(classes, confidence, thresh, hier)
        else:
            probs = classes * confidence[..., None]
            probs = torch.where(probs > thresh, probs, 0.0)
        b = y.shape[0]
        boxes, probs = boxes.view(b, -1, 4), probs.reshape(b, boxes[0].numel() // 4, -1)
        return [Detections(boxes[i], torch.ones_like(boxes[i, :, 0]), probs[i]) for i in range(b)]

    def _tree_probs(self, classes, confidence, thresh, hier):
        """The deepest class of the tree that is likelier than `hier`; with `map`, the mapped classes.

        At .5 and above there is one such class in each generation. Below, the likeliest of each is followed.
        """
        chained = self.tree.probabilities(classes)
        if self.class_map is not None:
            probs = chained[..., self.class_map[:MAPPED_CLASSES]] * confidence[..., None]
            return torch.where(probs > thresh, probs, 0.0)
        likely = chained > hier
        if hier < TREE_CONFIDENCE:
            likely &= self.tree.preferred(classes)
        order = torch.arange(self.classes, device=classes.device)
        last = torch.where(likely, order, -1).amax(-1, keepdim=True)
        shown = (order == last) & (confidence > thresh)[..., None]
        return torch.where(shown, chained, 0.0)

    def row(self) -> str:
        return "detection"
