"""[softmax] and [cost]: the heads of classifiers."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.layers.base import Layer, LayerOptions
from darknetpy.layers.gradients import pass_through
from darknetpy.layers.registry import register
from darknetpy.layers.tree import read_tree
from darknetpy.lazy import torch


@register("softmax", "soft")
class Softmax(Layer):
    """Softmax of x / temperature over each group, or over each group of a class tree
    (Darknet: `forward_softmax_layer`). Backward its own delta and later ones pass through unchanged."""

    is_head = True
    has_cost = True

    @dataclass
    class Options(LayerOptions):
        groups: int = key(1, "groups of equal size")
        temperature: float = key(1.0, "divides the inputs")
        tree: str | None = key(None, "class tree file")
        spatial: int = key(0, "1: softmax over channels at each position")
        noloss: int = key(0, "1: no loss")

    def build(self, options, context) -> None:
        self.groups, self.temperature = options.groups, options.temperature
        if self.groups < 1 or self.inputs % self.groups:
            raise context.error(f"groups={self.groups} does not divide {self.inputs} inputs")
        if self.temperature == 0:
            raise context.error("temperature=0 cannot divide")
        self.tree = read_tree(options.tree, context) if options.tree else None
        if self.tree is not None and self.tree.size != self.inputs:
            raise context.error(f"the tree has {self.tree.size} classes, the layer {self.inputs} inputs")
        self.outputs = self.inputs
        self.spatial = bool(options.spatial) and not context.strict
        if self.spatial:
            self.same_size()

    def forward(self, x, context):
        if self.spatial and x.dim() == 4:
            y = torch.softmax(x, 1)
        else:
            flat = x.reshape(x.shape[0], -1) / self.temperature
            if self.tree is not None:
                y = self.tree.softmax(flat)
            else:
                y = torch.softmax(flat.view(x.shape[0], self.groups, -1), 2).view_as(flat)
        return pass_through(x, y).reshape(y.shape) if torch.is_grad_enabled() else y

    def row(self) -> str:
        return f"softmax                                        {self.inputs:4d}"


@register("cost")
class Cost(Layer):
    """Distance of the input to the truth (Darknet: `forward_cost_layer`). At inference its output is zero."""

    is_head = True
    has_cost = True

    @dataclass
    class Options(LayerOptions):
        type: str = key("sse", "sse, masked or smooth", loud=True)
        scale: float = key(1.0, "factor on what is passed back")
        ratio: float = key(0.0, "accepted, without effect")

    def build(self, options, context) -> None:
        self.kind = options.type if options.type in ("sse", "masked", "smooth") else "sse"
        if self.kind != options.type:
            context.notes.say(f"Couldn't find cost type {options.type}, going with SSE")
        self.outputs = self.inputs
        self.w = self.h = self.c = 0

    def forward(self, x, context):
        return x.new_zeros(x.shape[0], self.outputs)

    def row(self) -> str:
        return f"cost                                           {self.inputs:4d}"
