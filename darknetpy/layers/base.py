"""The contract between a layer type and the network.

A `Layer` is a description: options, sizes, which tensors it owns in which order of the file, and a `forward` that is a
pure function of its input and the context. It holds no tensor, so a network can be laid out, printed, checked and
counted before torch is imported or a byte is allocated; the same description runs with training weights, fused
weights or an averaged snapshot.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from darknetpy.assets import locate
from darknetpy.config import NetOptions, Notes, Option, Section, key, read_options
from darknetpy.errors import ConfigError, Line, at

if TYPE_CHECKING:
    from torch import Tensor

MAX_ELEMENTS = 1 << 40
"""A layer of more elements than this is a typing error, not a network."""
MAX_ANCHORS = 10_000
"""A head of more anchors than this is one, too."""
MAX_LINES = 4 << 20
"""Bytes of a file that a cfg names: a class tree, a class map."""


@dataclass
class LayerOptions:
    """Keys that every section takes."""

    clip: float = key(0.0, "clamp weights to [-clip, clip] after each update")
    dontload: int = key(0, "skip this layer when weights are read (the file must not contain it)")
    dontloadscales: int = key(0, "do not read scales and rolling statistics (the file must not contain them)")
    learning_rate: float = key(1.0, "factor on the learning rate")
    dont_update: int = key(0, "no update up to this iteration")
    burnin_update: int = key(0, "no update before burnin_update * burn_in iterations")
    stopbackward: int = key(0, "1: earlier layers are frozen; N: while iteration < N")
    train_only_bn: int = key(0, "no update of this and earlier layers; batch statistics still move")
    onlyforward: int = key(0, "skip this layer in the backward pass")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a layer, in `.weights` order.

    Attributes:
        name: attribute under which `forward` finds it; a dot separates a sub-layer's name.
        shape: sizes.
        role: `weight` (weight decay applies), `bias`, `scale`, `mean`, `variance` (the last two are not trained).
        init: `("constant", value)` or `("uniform", scale, mean)`: mean + scale * U(-1, 1).
        stored: whether the `.weights` file holds it.
    """

    name: str
    shape: tuple[int, ...]
    role: str = "weight"
    init: tuple = ("constant", 0.0)
    stored: bool = True

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def trained(self) -> bool:
        return self.role not in ("mean", "variance")


@dataclass
class BuildContext:
    """What a layer may know while it is laid out. `w h c inputs` describe the output of the previous layer."""

    index: int
    net: NetOptions
    layers: list[Layer]
    w: int
    h: int
    c: int
    inputs: int
    batch: int
    time_steps: int = 1
    strict: bool = False
    training: bool = False
    path: str = "cfg"
    section: Section | None = None
    notes: Notes = field(default_factory=Notes)
    is_part: bool = False
    problems: list[ConfigError] = field(default_factory=list)
    said: set[str] = field(default_factory=set)
    """Unknown words that were complained of already: a network repeats them in every layer."""

    def defer(self, error: ConfigError) -> None:
        """Note what makes the network useless though it can be laid out, as Darknet does; running it raises this."""
        if not self.strict:
            self.problems.append(error)

    def error(self, message: str, remedy: str | None = None) -> ConfigError:
        """A ConfigError that names layer and line."""
        line = self.section.line if self.section else None
        return ConfigError(f"layer {self.index}, {at(line)}: {message}", file=self.path, remedy=remedy)

    def line_of(self, name: str) -> Line | None:
        """The line on which a key of this section stands."""
        option = self.section.find(name) if self.section else None
        return option.line if option else None

    def source(self, number: int, what: str) -> int:
        """Absolute index of a layer named as `number` (negative: relative to this one). Raises ConfigError."""
        index = self.index + number if number < 0 else number
        if not 0 <= index < self.index:
            raise self.out_of_range(number, what)
        return index

    def out_of_range(self, number: int, what: str) -> ConfigError:
        """The error of a key that names a layer which does not come before this one."""
        index = self.index + number if number < 0 else number
        line = self.line_of(what) or (self.section.line if self.section else None)
        return ConfigError(
            f"layer {self.index}, {at(line)}: {what}={number} names layer {index}, which does not come before it",
            file=self.path,
            remedy=f"use 0 to {self.index - 1}, or -1 to -{self.index}" if self.index else None,
        )

    def part(self, w: int, h: int, c: int, options: dict[str, object]) -> BuildContext:
        """The context of a sub-layer with an input of w x h x c and these options."""
        line = self.section.line if self.section else 0
        lines = [Option(name, str(value), line) for name, value in options.items()]
        section = Section(self.section.header if self.section else "[part]", line, lines)
        return replace(self, w=w, h=h, c=c, inputs=w * h * c, section=section, notes=Notes(), is_part=True)

    def read_lines(self, name: str, what: str) -> list[str]:
        """Lines of a text file that key `what` names: as it is, beside the cfg, or packaged. Raises ConfigError."""
        beside = os.path.join(os.path.dirname(self.path), name)
        path = next((place for place in (name, beside) if os.path.exists(place)), None) or locate(name)
        if os.path.exists(path) and not os.path.isfile(path):
            raise self.error(f"{what}={name} is no ordinary file")
        try:
            with open(path, "rb") as stream:
                data = stream.read(MAX_LINES + 1)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or error
            raise self.error(f"{what}={name} cannot be read ({reason})", "the path is relative to the cfg") from error
        if len(data) > MAX_LINES:
            raise self.error(f"{what}={name} is longer than {MAX_LINES} bytes, which no such file is")
        return data.decode("utf-8", "replace").removesuffix("\n").split("\n")

    def need_image(self, name: str) -> None:
        """Raise unless the previous layer gives a picture-shaped output."""
        if not (self.w > 0 and self.h > 0 and self.c > 0):
            raise self.error(f"Layer before {name} must output image, not {self.w} x {self.h} x {self.c}")


@dataclass
class ForwardContext:
    """What a layer may read while it runs.

    Attributes:
        tensors: this layer's tensors, by attribute.
        state: this layer's memory between calls (recurrent types); starts empty.
        outputs: outputs of the layers so far (freed ones are None).
        training: batch statistics, dropout and the like are on; `frozen` layers see False.
        truth: (B, max, 6) truth rows or (B, n) targets, where training gives them.
        iteration, max_batches, burn_in, seen: counters of training.
        num_boxes: truth boxes an image that the training command announces; strict assisted excitation sees no others.
        net_w, net_h: size of the input picture, pixels.
        fused: batch normalisation is folded into `tensors`.
        sum_over_replicas: where replicas share their batch statistics, the sum of a tensor over all of them, with its
            gradient.
        probe: where training is observed, raw outputs of convolutions by layer, with their gradients retained.
        mixed: convolutions give half precision; heads are given float32.
        repeated: this pass was made before and is made again for its gradients: statistics stay as they are.
    """

    tensors: Any = None
    state: dict = field(default_factory=dict)
    outputs: list = field(default_factory=list)
    training: bool = False
    truth: Tensor | None = None
    iteration: int = 0
    max_batches: int = 0
    burn_in: int = 0
    seen: int = 0
    num_boxes: int = 0
    net_w: int = 0
    net_h: int = 0
    time_steps: int = 1
    strict: bool = False
    fused: bool = False
    adversarial: bool = False
    subdivision: int = 0
    sum_over_replicas: Callable[[Tensor], Tensor] | None = None
    probe: dict | None = None
    mixed: bool = False
    repeated: bool = False

    def observe(self, index: int, y: Tensor) -> Tensor:
        """Note a value whose gradient is asked for."""
        if y.requires_grad:
            y.retain_grad()
        self.probe[index] = y
        return y

    def sub(self, name: str) -> ForwardContext:
        """The context of a sub-layer: its own tensors and state, all else as here."""
        state = self.state.setdefault(name, {})
        return ForwardContext(
            **{
                **self.__dict__,
                "probe": None,
                "tensors": getattr(self.tensors, name) if self.tensors is not None else None,
                "state": state,
            }
        )


class Layer:
    """Base of all layer types. See the module's docstring; `docs/layers.md` shows how to write one."""

    type: str = ""
    Options: type[LayerOptions] = LayerOptions
    notes_after_row: frozenset[str] = frozenset()
    """Keys whose `Using default` line Darknet prints after the table row."""
    reuses_input = False
    """Darknet writes this layer's output over its input: later readers of the previous layer see it too."""
    is_head = False
    """A layer with a loss of its own."""
    is_dense = False
    """Weights are matrices of [out][in]."""
    has_cost = False
    """Counts in the mean that is reported as loss."""

    def __init__(self, context: BuildContext):
        self.index, self.section, self.notes = context.index, context.section, context.notes
        self.w, self.h, self.c, self.inputs = context.w, context.h, context.c, context.inputs
        self.batch, self.time_steps, self.is_part = context.batch, context.time_steps, context.is_part
        self.out_w = self.out_h = self.out_c = self.outputs = 0
        self.bflops = 0.0
        self.options: Any = read_options(self.Options, context.section, context.notes)
        self.build(self.options, context)

    def build(self, options: Any, context: BuildContext) -> None:
        """Set `out_w out_h out_c outputs` (flat length of one sample) and `bflops` from options and context.

        A type that doesn't say gives as much as it takes.
        """
        self.same_size()

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        """The layer's output, (B, out_c, out_h, out_w) or (B, outputs)."""
        raise NotImplementedError

    def tensors(self) -> list[TensorSpec]:
        """Owned tensors in the order of a `.weights` file."""
        return []

    def row(self) -> str:
        """What Darknet's load table prints after the layer number (may hold line breaks)."""
        return self.type

    def sources(self) -> list[int]:
        """Indices of the layers whose outputs `forward` reads through the context, besides the previous one."""
        return []

    shares: int | None = None
    """Index of the layer whose tensors this one uses instead of its own."""
    shared_by_others = False
    remembers = False
    """Keeps something beside its output: running it twice is not the same as running it once."""
    is_part = False
    """A sub-layer of a recurrent layer."""

    def loaded_tensors(self) -> list[TensorSpec]:
        """The specs that reading a file consumes, in order: `dontload` and `dontloadscales` leave some out."""
        specs = [spec for spec in self.tensors() if spec.stored]
        if self.options.dontload:
            return []
        if self.options.dontloadscales:
            return [spec for spec in specs if spec.role not in ("scale", "mean", "variance")]
        return specs

    def remembers_in(self, strict: bool) -> bool:
        """Whether it remembers something; in strict training shared statistics do."""
        return self.remembers or (strict and (self.shares is not None or self.shared_by_others))

    def after_read(self, arrays: dict, transpose: bool) -> dict:
        """Bring arrays read from a file (name -> numpy, of spec shape) into the layout of `tensors()`.

        `transpose`: an old file, which holds the matrices of dense layers as [in][out].
        """
        if not (transpose and self.is_dense):
            return arrays
        return {
            name: array.reshape(array.shape[::-1]).T if name.endswith("weights") else array
            for name, array in arrays.items()
        }

    def to_input(self, delta: Tensor) -> Tensor:
        """A head's delta in the layout of its input, where that differs from the output's."""
        return delta

    def fuse(self, tensors: Any) -> Any:
        """Tensors for inference, with batch normalisation folded in where that is possible."""
        return tensors

    def same_size(self) -> None:
        """Output as large as the input."""
        self.out_w, self.out_h, self.out_c, self.outputs = self.w, self.h, self.c, self.inputs

    def image_size(self, w: int, h: int, c: int) -> None:
        """Output w x h x c."""
        self.out_w, self.out_h, self.out_c, self.outputs = w, h, c, w * h * c

    @property
    def parameters_stored(self) -> int:
        """Floats that this layer adds to a `.weights` file."""
        return sum(spec.count for spec in self.tensors() if spec.stored)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.index}: {self.out_w} x {self.out_h} x {self.out_c})"


def prefixed(name: str, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The specs of a sub-layer, under its name."""
    return [TensorSpec(f"{name}.{s.name}", s.shape, s.role, s.init, s.stored) for s in specs]


def namespace(**tensors: Any) -> SimpleNamespace:
    """Tensors by attribute, for fused weights."""
    return SimpleNamespace(**tensors)
