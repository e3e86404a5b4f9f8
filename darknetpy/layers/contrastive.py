"""[contrastive]: pulls embeddings of one object together and those of others apart."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.config.numbers import FLT_MAX
from darknetpy.layers.base import Layer, LayerOptions
from darknetpy.layers.registry import register


@register("contrastive")
class Contrastive(Layer):
    """Contrastive loss over embeddings; with `yolo_layer` the labels are the track ids that this head assigned
    (Darknet: `forward_contrastive_layer`). At inference its output is zero."""

    is_head = True
    has_cost = True

    @dataclass
    class Options(LayerOptions):
        classes: int = key(1000, "number of classes", loud=True)
        yolo_layer: int = key(0, "the head whose boxes label the embeddings; 0: none")
        temperature: float = key(1.0, "divides similarities")
        cls_normalizer: float = key(1.0, "factor on the deltas")
        max_delta: float = key(FLT_MAX, "bound of the deltas")
        contrastive_neg_max: int = key(3, "negatives considered for one position")

    def build(self, options, context) -> None:
        self.yolo: int | None = None
        self.embedding_size = self.inputs
        self.n, self.classes = 1, options.classes
        if options.temperature == 0:
            raise context.error("temperature=0 cannot divide")
        if options.yolo_layer:
            self._attach(context.source(options.yolo_layer, "yolo_layer"), context)
        self.outputs = self.inputs

    def _attach(self, index: int, context) -> None:
        head = context.layers[index]
        if head.type != "yolo":
            raise context.error(f"yolo_layer={index} is a [{head.type}], not a [yolo] layer")
        self.yolo, self.n, self.classes = index, head.n, head.classes
        cells = head.n * head.out_w * head.out_h
        if self.inputs % cells:
            raise context.error(f"{self.inputs} inputs do not divide into {cells} embeddings of layer {index}")
        self.embedding_size = self.inputs // cells
        if self.embedding_size != head.embedding_size:
            raise context.error(
                f"embeddings have {self.embedding_size} numbers here and {head.embedding_size} in layer {index}",
                f"embedding_layer= of layer {index} must name the layer before this one",
            )

    def sources(self) -> list[int]:
        return [] if self.yolo is None else [self.yolo]

    def forward(self, x, context):
        return x.new_zeros(x.shape[0], self.outputs)

    def row(self) -> str:
        batch = self.batch
        size = f"{self.w:4d} x{self.h:4d} x{self.n:4d} x emb_size {self.embedding_size:4d}"
        step = self.w * self.h * self.n
        kind = "" if self.yolo is None else "\ndetection "
        return f"contrastive {size} x batch: {batch:4d}  classes = {self.classes:4d}, step = {step:4d} {kind}"
