"""[dropout]: dropout and DropBlock, over the previous layer's output in place."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.config.numbers import atoi
from darknetpy.layers.base import Layer, LayerOptions
from darknetpy.layers.registry import register
from darknetpy.lazy import torch

DEFAULT_BLOCK = 7
FULL_STRENGTH = 0.85
"""DropBlock grows to its full probability and size over this part of the training."""


@register("dropout")
class Dropout(Layer):
    """Identity at inference. In training later readers of the previous layer see the dropped values too
    (Darknet: `forward_dropout_layer_gpu`)."""

    reuses_input = True

    @dataclass
    class Options(LayerOptions):
        probability: float = key(0.2, "share of values to drop", loud=True)
        dropblock: int = key(0, "1: drop one block a channel")
        dropblock_size_rel: float = key(0.0, "side of a block, relative to the map")
        dropblock_size_abs: float = key(0.0, "side of a block, cells")

    def build(self, options, context) -> None:
        self.probability, self.dropblock = options.probability, options.dropblock
        if not 0 <= self.probability < 1:
            raise context.error(f"probability={self.probability:g} must be from 0 to below 1")
        self.block_rel, self.block_abs = options.dropblock_size_rel, atoi(f"{options.dropblock_size_abs:f}")
        if self.dropblock:
            self._block_size(context)
        self.same_size()
        if not self.dropblock:
            self.w = self.h = self.c = 0  # Darknet leaves them unset, which its `avg_outputs` shows

    def _block_size(self, context) -> None:
        if self.block_abs > min(self.w, self.h):
            context.notes.say(
                f" [dropout] - dropblock_size_abs = {self.block_abs} "
                f"that is bigger than layer size {self.w} x {self.h} "
            )
            self.block_abs = min(self.w, self.h)
        if not self.block_rel and not self.block_abs:
            context.notes.say(
                " [dropout] - None of the parameters (dropblock_size_rel or dropblock_size_abs) are set, "
                f"will be used: dropblock_size_abs = {DEFAULT_BLOCK} "
            )
            self.block_abs = DEFAULT_BLOCK
        elif self.block_rel and self.block_abs:
            self.block_rel = 0.0

    def forward(self, x, context):
        if not context.training or not self.probability:
            return x
        if self.dropblock and x.dim() == 4:
            return self._drop_blocks(x, context)
        return torch.nn.functional.dropout(x, self.probability, True)

    def _drop_blocks(self, x, context):
        """At most one block a channel: where the smallest random number is below gamma. The sample is scaled up."""
        b, c, h, w = x.shape
        strength = min(1.0, context.iteration / max(1.0, context.max_batches * FULL_STRENGTH))
        wide, high = (self.block_abs, self.block_abs) if self.block_abs else (self.block_rel * w, self.block_rel * h)
        side = min(max(1, min(int(wide * strength), w)), max(1, min(int(high * strength), h)))
        gamma = self.probability * strength / side**2
        value, index = torch.rand(b, c, h * w, device=x.device).min(-1)
        column, line = index % w, index // w
        column = torch.where(column > w - side, column - (w - side), column).clamp(0, w - side)
        line = line.clamp(0, h - side)
        rows = torch.arange(h, device=x.device) - line[..., None]
        columns = torch.arange(w, device=x.device) - column[..., None]
        inside = ((rows >= 0) & (rows < side))[..., :, None] & ((columns >= 0) & (columns < side))[..., None, :]
        keep = ~(inside & (value < gamma)[..., None, None])
        return x * keep / keep.float().mean((1, 2, 3), keepdim=True).clamp(min=1e-6)

    def row(self) -> str:
        name = "dropblock" if self.dropblock else "dropout  "
        return f"{name}  p = {self.probability:.3f}        {self.inputs:4d}  ->   {self.inputs:4d}"
