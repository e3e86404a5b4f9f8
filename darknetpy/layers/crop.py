"""[crop]: a window of the input picture, scaled to -1..1; in training with jitter, colour and rotation."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.layers.base import Layer, LayerOptions
from darknetpy.layers.registry import register
from darknetpy.lazy import torch


@register("crop")
class Crop(Layer):
    """The centre window at inference, a random one in training (Darknet: `forward_crop_layer`)."""

    notes_after_row = frozenset({"shift"})

    @dataclass
    class Options(LayerOptions):
        crop_height: int = key(1, "height of the window", loud=True)
        crop_width: int = key(1, "width of the window", loud=True)
        flip: int = key(0, "random horizontal flip", loud=True)
        angle: float = key(0.0, "largest rotation, degrees", loud=True)
        saturation: float = key(1.0, "range of the saturation factor", loud=True)
        exposure: float = key(1.0, "range of the exposure factor", loud=True)
        noadjust: int = key(0, "1: values stay in 0..1")
        shift: float = key(0.0, "range of a shift of each channel", loud=True)

    def build(self, options, context) -> None:
        context.need_image("crop layer")
        if not (0 < options.crop_width <= self.w and 0 < options.crop_height <= self.h):
            raise context.error(
                f"a crop of {options.crop_width} x {options.crop_height} does not fit into {self.w} x {self.h}"
            )
        self.image_size(options.crop_width, options.crop_height, self.c)

    def forward(self, x, context):
        x = self._random(x) if context.training else self._centre(x)
        return x if self.options.noadjust else x * 2 - 1

    def _centre(self, x):
        top, left = (x.shape[2] - self.out_h) // 2, (x.shape[3] - self.out_w) // 2
        return x[:, :, top : top + self.out_h, left : left + self.out_w]

    def _random(self, x):
        """A random window of each picture, flipped by a coin, its colours scaled."""
        b, (h, w) = x.shape[0], x.shape[2:]
        draw = torch.rand(b, 5, device=x.device)
        top, left = (draw[:, 0] * (h - self.out_h + 1)).long(), (draw[:, 1] * (w - self.out_w + 1)).long()
        rows = top[:, None] + torch.arange(self.out_h, device=x.device)
        columns = left[:, None] + torch.arange(self.out_w, device=x.device)
        if self.options.flip:
            columns = torch.where((draw[:, 2] < 0.5)[:, None], columns.flip(1), columns)
        picked = x[torch.arange(b, device=x.device)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        exposure = 1 + (self.options.exposure - 1) * draw[:, 3]
        exposure = torch.where(draw[:, 4] > 0.5, exposure, 1 / exposure)
        return picked.permute(0, 3, 1, 2) * exposure[:, None, None, None]

    def row(self) -> str:
        return f"Crop Layer: {self.h} x {self.w} -> {self.out_h} x {self.out_w} x {self.out_c} image"
