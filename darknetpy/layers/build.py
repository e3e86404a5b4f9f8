"""From sections to a checked list of layers, without torch (Darknet: `parse_network_cfg_custom`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from darknetpy.config import Cfg, NetOptions, Notes, Section, read_cfg, read_options
from darknetpy.config.cfg import MAX_REMARKS
from darknetpy.config.numbers import to_float32
from darknetpy.errors import ConfigError, at, warn
from darknetpy.layers import registry
from darknetpy.layers.base import MAX_ELEMENTS, BuildContext, Layer, LayerOptions

MAX_LAYERS = 10_000
"""The largest network known has 500."""


class UnknownLayer(Layer):
    """What Darknet makes of an unknown section: an all-zero layer (only with `strict`; it cannot run)."""

    type = "convolutional"
    Options = LayerOptions

    def build(self, options, context) -> None:
        self.w = self.h = self.c = 0

    def forward(self, x, context):
        raise ConfigError(f"layer {self.index}: section {self.section.header} is unknown and cannot run")


@dataclass
class Structure:
    """A network laid out: its options, its layers, what reading it had to say."""

    cfg: Cfg
    net: NetOptions
    layers: list[Layer]
    batch: int
    time_steps: int
    strict: bool = False
    net_notes: Notes = field(default_factory=Notes)
    training: bool = False
    problems: list[ConfigError] = field(default_factory=list)
    remarks: int = 0
    said: set[str] = field(default_factory=set)

    def check(self) -> Structure:
        """Raise the first problem that laying out put off."""
        if self.problems:
            raise self.problems[0]
        return self

    @property
    def total_bflops(self) -> float:
        total = 0.0
        for layer in self.layers:  # in float32, as Darknet sums
            total = to_float32(total + to_float32(layer.bflops))
        return total

    @property
    def average_outputs(self) -> int:
        """Mean outputs of layers whose input is wider and higher than 1 (0 where Darknet divides by zero)."""
        counts = [_host_outputs(layer) for layer in self.layers if layer.w > 1 and layer.h > 1]
        return sum(counts) // len(counts) if counts else 0

    @property
    def parameters_stored(self) -> int:
        return sum(layer.parameters_stored for layer in self.layers)

    @property
    def heads(self) -> list[Layer]:
        return [layer for layer in self.layers if layer.is_head]

    @property
    def detectors(self) -> list[Layer]:
        """The heads that give boxes."""
        return [head for head in self.heads if hasattr(head, "decode")]

    @property
    def leading_head(self) -> Layer:
        """The head whose options rule a training: the last one with boxes, or else the last one."""
        return (self.detectors or self.heads)[-1]


def _host_outputs(layer: Layer) -> int:
    """Outputs before an antialiasing blur, which is what Darknet counts."""
    w, h = getattr(layer, "host_size", (layer.out_w, layer.out_h))
    return w * h * layer.out_c if getattr(layer, "blur", 0) else layer.outputs


def read_structure(
    path: str | os.PathLike | Cfg,
    strict: bool = False,
    overrides: Iterable[str] = (),
    batch: int | None = None,
    time_steps: int | None = None,
) -> Structure:
    """Read and lay out a network.

    Args:
        path: a cfg file, or one parsed already.
        strict: exactly what Darknet accepts, unknown sections and shapes included.
        overrides: `section[#n].key=value` words.
        batch: rows of a forward pass (inference); None: the file's mini-batch (training).
        time_steps: length of sequences; None: the file's (training), 1 where `batch` is given.
    """
    cfg = path if isinstance(path, Cfg) else read_cfg(path, strict, overrides, registry.canonical)
    notes = Notes()
    net = read_options(NetOptions, cfg.net, notes)
    training = batch is None
    steps = max(1, time_steps or (net.time_steps if training else 1))
    rows = net.mini_batch if training else batch
    structure = Structure(cfg, net, [], rows, steps, strict, notes, training)
    _remark(structure, "net", notes)
    _check_net(cfg, net, rows)
    _add_layers(structure)
    if not structure.layers:
        raise ConfigError("has only [net] and no layer", file=cfg.path)
    return structure


def _check_net(cfg: Cfg, net: NetOptions, rows: int) -> None:
    if len(cfg.layers) > MAX_LAYERS:
        raise ConfigError(f"{len(cfg.layers)} layers are more than any network has", file=cfg.path)
    if net.inputs <= 0 and not (net.width > 0 and net.height > 0 and net.channels > 0):
        sizes = f"width={net.width}, height={net.height}, channels={net.channels}"
        raise ConfigError(
            f"No input parameters supplied: {sizes}", file=cfg.path, line=cfg.net.line, remedy="set all three in [net]"
        )
    if min(net.width, net.height, net.channels) < 0 or net.width * net.height * net.channels > MAX_ELEMENTS:
        raise ConfigError(
            f"the input of {net.width} x {net.height} x {net.channels} is impossible", file=cfg.path, line=cfg.net.line
        )
    if rows * net.inputs > MAX_ELEMENTS:
        raise ConfigError(
            f"a mini-batch of {rows} inputs is impossible",
            file=cfg.path,
            line=cfg.net.line,
            remedy="check batch=, subdivisions= and time_steps=",
        )
    if net.policy == "steps" and (net.steps is None or net.scales is None):
        raise ConfigError("STEPS policy must have steps and scales in cfg file", file=cfg.path, line=cfg.net.line)
    if net.steps is not None and net.scales is not None and len(net.scales) < len(net.steps):
        raise ConfigError(
            f"steps= has {len(net.steps)} entries but scales= only {len(net.scales)}", file=cfg.path, line=cfg.net.line
        )


def _add_layers(structure: Structure) -> None:
    net, cfg = structure.net, structure.cfg
    w, h, c, inputs = net.width, net.height, net.channels, net.inputs
    for index, section in enumerate(cfg.layers):
        context = BuildContext(
            index, net, structure.layers, w, h, c, inputs, structure.batch, structure.time_steps,
            structure.strict, structure.training, cfg.path, section, problems=structure.problems, said=structure.said,
        )  # fmt: skip
        try:
            layer = _build(section, context)
        except ConfigError:
            structure.check()  # what was put off before is the cause
            raise
        sizes = layer.out_w, layer.out_h, layer.out_c, layer.outputs
        if max(*sizes, layer.parameters_stored) > MAX_ELEMENTS or min(sizes) < 0:
            raise context.error(
                f"[{section.type}] would hold {max(*sizes, layer.parameters_stored)} numbers",
                "check filters=, size= and the network's width= and height=",
            )
        structure.layers.append(layer)
        _remark(structure, section.type, context.notes)
        w, h, c, inputs = layer.out_w, layer.out_h, layer.out_c, layer.outputs


def _build(section: Section, context: BuildContext) -> Layer:
    cls = registry.find(section.type) if section.header.endswith("]") else None
    if cls is not None:
        return cls(context)
    if context.strict:
        context.notes.say(f"Type not recognized: {section.header}")
        return UnknownLayer(context)
    guess = registry.nearest(section.type)
    raise ConfigError(
        f"layer {context.index}: unknown section {section.header[:60]}",
        file=context.path,
        line=section.line,
        remedy=f"did you mean [{guess}]?" if guess else "no layer type looks like it",
    )


def _remark(structure: Structure, section: str, notes: Notes) -> None:
    """Once for each line that is not used or holds no number: where it stands, and the nearest known key.

    Strict: unused ones in the table, as Darknet.
    """
    if structure.strict:
        return
    cfg = structure.cfg
    for name, value, line in notes.not_numbers:
        _once(structure, f"{cfg.path}, {at(line)}: {name[:60]}={value[:60]} holds no number and counts as 0")
    for name, value, line in notes.unused:
        if structure.remarks > MAX_REMARKS:
            return
        text = name[:60] if value is None else f"{name[:60]}={value[:60]}"
        guess = notes.nearest(name)
        hint = f"; did you mean {guess}=?" if guess else ""
        _once(structure, f"{cfg.path}, {at(line)}: {text} is not used by [{section}]{hint}")


def _once(structure: Structure, text: str) -> None:
    """`-set` reaches several sections, which then all have the same to remark. There is an end to remarks."""
    if text in structure.said or structure.remarks > MAX_REMARKS:
        return
    structure.said.add(text)
    structure.remarks += 1
    warn(text if structure.remarks <= MAX_REMARKS else f"{structure.cfg.path}: there would be more remarks like these")
