"""[route]: channels of earlier layers one after another, or one group of them."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config import key
from darknetpy.errors import ConfigError
from darknetpy.layers.base import Layer, LayerOptions
from darknetpy.layers.registry import register
from darknetpy.lazy import torch


@register("route")
class Route(Layer):
    """Concatenation, each source contributing its `group_id`-th of `groups` parts (Darknet: `forward_route_layer`)."""

    @dataclass
    class Options(LayerOptions):
        layers: list[int] | None = key(None, "layers to take, negative counts back from here")
        groups: int = key(1, "parts of the channels")
        group_id: int = key(0, "the part to take, from 0")
        stream: int = key(-1, "accepted, without effect")
        wait_stream: int = key(-1, "accepted, without effect")

    def build(self, options, context) -> None:
        if options.layers is None:
            raise context.error("Route Layer must specify input layers", "add layers=")
        if options.groups < 1:
            raise context.error(f"groups={options.groups} must be at least 1")
        if not 0 <= options.group_id < options.groups:
            raise context.error(f"group_id={options.group_id} must be from 0 to groups-1={options.groups - 1}")
        self.groups, self.group_id = options.groups, options.group_id
        self.mismatch = False
        self.too_late = next((number for number in options.layers if number >= context.index), None)
        if self.too_late is not None:
            self._too_late(context)
            return
        self.layers = [context.source(number, "layers") for number in options.layers]
        sources = [context.layers[i] for i in self.layers]
        self.outputs = sum(layer.outputs for layer in sources) // self.groups
        first = sources[0]
        self.mismatch = any((s.out_w, s.out_h) != (first.out_w, first.out_h) for s in sources)
        if self.mismatch:
            self._mismatch(context, sources)
            return
        self.out_w, self.out_h = first.out_w, first.out_h
        self.out_c = sum(s.out_c for s in sources) // self.groups
        self.w, self.h, self.c = first.w, first.h, self.out_c

    def _too_late(self, context) -> None:
        """Darknet lays out a layer that isn't there yet as zeros; running it is an error here."""
        self.layers = self.options.layers
        self.w = self.h = self.c = 0
        context.defer(context.out_of_range(self.too_late, "layers"))

    def _mismatch(self, context, sources) -> None:
        """Darknet goes on with a 0 x 0 x 0 output; the default doesn't run it."""
        sizes = ", ".join(dict.fromkeys(f"layer {s.index} is {s.out_w} x {s.out_h}" for s in sources))
        context.defer(
            context.error(
                f"The width and height of the input layers are different: {sizes}",
                "bring them to one size with stride= or [upsample]",
            )
        )
        context.notes.say(" The width and height of the input layers are different. ")

    def sources(self) -> list[int]:
        return [] if self.too_late is not None else self.layers

    def forward(self, x, context):
        if self.too_late is not None:
            raise ConfigError(f"layer {self.index}: layers={self.too_late} names a layer that does not come before it")
        parts = [context.outputs[i] for i in self.layers]
        if self.groups > 1:
            parts = [self._part(part) for part in parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _part(self, x):
        size = x.shape[1] // self.groups
        return x[:, size * self.group_id : size * (self.group_id + 1)]

    def row(self) -> str:
        names = "".join(f" {i}" for i in self.layers)
        count = len(self.layers)
        pad = " \t\t            " if count == 1 else " \t            " if count <= 3 else " \t    "
        group = f"{self.group_id}/{self.groups}" if self.groups > 1 else "   "
        warning = "\n The width and height of the input layers are different. " if self.mismatch else ""
        size = f"{self.out_w:4d} x{self.out_h:4d} x{self.out_c:4d} "
        return f"route {names}{pad}           {group} -> {size}{warning}"
