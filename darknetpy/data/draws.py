"""The random numbers of augmentation as explicit values: the same draws give the same picture."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from darknetpy.errors import ConfigError, warn

if TYPE_CHECKING:
    from darknetpy.config import NetOptions
    from darknetpy.layers import Layer

NONE, MIXUP, CUTMIX, MOSAIC, BOTH = range(5)


@dataclass(frozen=True)
class Augmentation:
    """Ranges of the draws, from `[net]` and the last detection layer (whose values serve all heads).

    `track` loads videos: sequences of `time_steps` pictures up to `speed` frames apart, all with the same draws.
    `contrastive` loads pairs of the same picture, which differ in what is asked for.
    """

    jitter: float = 0.2
    resize: float = 1.0
    flip: bool = True
    hue: float = 0.0
    saturation: float = 1.0
    exposure: float = 1.0
    blur: int = 0
    noise: int = 0
    letter_box: bool = False
    mode: int = NONE
    mosaic_bound: bool = False
    max_boxes: int = 200
    classes: int = 20
    track: bool = False
    speed: int = 2
    time_steps: int = 1
    contrastive: bool = False
    contrastive_jit_flip: bool = False
    contrastive_color: bool = False

    @classmethod
    def of(cls, net: NetOptions, head: Layer) -> Augmentation:
        """What a cfg asks for."""
        o = head.options
        if net.contrastive and net.mini_batch < 2:
            raise ConfigError("contrastive=1 needs pairs, but batch/subdivisions is 1", remedy="lower subdivisions=")
        if net.mixup == MIXUP and net.mixup_mode != MIXUP:
            warn("mixup=1 has no effect beside mosaic=1 or cutmix=1, as in Darknet")
        return cls(
            o.jitter, o.resize, bool(net.flip), net.hue, net.saturation or 1.0, net.exposure or 1.0, net.blur,
            net.gaussian_noise, bool(net.letter_box), detector_mode(net.mixup_mode), bool(net.mosaic_bound), o.max,
            o.classes, bool(net.track), net.augment_speed, max(1, net.time_steps), bool(net.contrastive),
            bool(net.contrastive_jit_flip), bool(net.contrastive_color),
        )  # fmt: skip


def detector_mode(mode: int) -> int:
    """Cutmix does not exist for detectors: alone it is nothing, with mosaic it is mosaic. Other numbers are nothing."""
    if mode in (CUTMIX, BOTH):
        warn("cutmix=1 - isn't supported for Detector (use cutmix=1 only for Classifier) ")
    return {MIXUP: MIXUP, MOSAIC: MOSAIC, BOTH: MOSAIC}.get(mode, NONE)


@dataclass
class Draws:
    """One picture's numbers.

    Attributes:
        q: two numbers in 0..1 for resize (left and top; right and bottom).
        r: four numbers in 0..1 for jitter (left, right, top, bottom).
        flip: mirror; move: shift the margin to one side (mosaic only).
        dhue, dsat, dexp: shift of the hue in turns, factors on saturation and value.
        blur: kernel (1: background only); noise: amplitude; noise_seed: of OpenCV's generator, None: as it stands.
        shuffle: partner of each box in Darknet's shuffle, None: order kept.
    """

    q: tuple[float, float] = (0.0, 0.0)
    r: tuple[float, float, float, float] = (0.5, 0.5, 0.5, 0.5)
    flip: bool = False
    move: bool = False
    dhue: float = 0.0
    dsat: float = 1.0
    dexp: float = 1.0
    blur: int = 0
    noise: int = 0
    noise_seed: int | None = None
    shuffle: np.ndarray | None = field(default=None, repr=False)

    def with_geometry(self, other: Draws) -> Draws:
        """These draws with the jitter and flip of others."""
        return replace(self, r=other.r, flip=other.flip)

    def with_colour(self, other: Draws) -> Draws:
        """These draws with the colours of others."""
        return replace(self, dhue=other.dhue, dsat=other.dsat, dexp=other.dexp)

    def of_sequence(self, other: Draws) -> Draws:
        """These draws for a picture of a sequence: only the move and the order of boxes are its own."""
        return replace(other, move=self.move, shuffle=self.shuffle, noise_seed=self.noise_seed or other.noise_seed)


def rand_scale(rng: np.random.Generator, most: float) -> float:
    """U(1, most), by a coin its inverse (Darknet: `rand_scale`)."""
    value = np.float32(rng.uniform(min(1.0, most), max(1.0, most)))
    return float(value) if rng.integers(2) else float(np.float32(1) / value)


def draw(rng: np.random.Generator, options: Augmentation, mosaic: bool, boxes: int) -> Draws:
    """Draws of one picture with so many boxes."""
    blur = options.blur and (0, 1, options.blur)[rng.integers(3)]
    noise = options.noise * int(rng.integers(2)) if options.noise else 0
    return Draws(
        q=tuple(rng.random(2, np.float32).tolist()),
        r=tuple(rng.random(4, np.float32).tolist()),
        flip=bool(options.flip and rng.integers(2)),
        dhue=float(rng.uniform(-1.0, 1.0) * options.hue),
        dsat=rand_scale(rng, options.saturation),
        dexp=rand_scale(rng, options.exposure),
        blur=int(blur),
        noise=noise,
        noise_seed=int(rng.integers(2**31)) if noise else None,
        move=bool(mosaic and rng.integers(2)),
        shuffle=rng.integers(0, boxes, boxes) if boxes else None,
    )
