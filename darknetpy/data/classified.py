"""Mini-batches for classifiers, as pure functions of (seed, iteration, size)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from darknetpy.config import NetOptions
from darknetpy.data.batches import Batch, Rows
from darknetpy.data.cache import Cache
from darknetpy.data.classification import Truth
from darknetpy.data.draws import BOTH, CUTMIX, MIXUP, MOSAIC, NONE, rand_scale
from darknetpy.data.pictures import Pictures
from darknetpy.data.sampling import Request, Sampler, Stream
from darknetpy.data.views import Mix, View, blurred, mixed, seen

SOURCES = {NONE: 1, MIXUP: 2, CUTMIX: 2, MOSAIC: 4, BOTH: 4}
"""Pictures that go into one."""
PATCH, CUT = (0.3, 0.8), (0.2, 0.8)
"""Least and largest side of cutmix's patch, and place of mosaic's cut, as shares."""
BLUR_ONE_IN = 4
"""One picture in so many is blurred."""


@dataclass(frozen=True)
class Views:
    """Ranges of the draws, from `[net]`. `contrastive` gives two views of each picture."""

    min_crop: int = 0
    max_crop: int = 0
    flip: bool = True
    angle: float = 0.0
    aspect: float = 1.0
    hue: float = 0.0
    saturation: float = 1.0
    exposure: float = 1.0
    mode: int = NONE
    blur: int = 0
    contrastive: bool = False
    track: bool = False

    @classmethod
    def of(cls, net: NetOptions) -> Views:
        """What a cfg asks for."""
        return cls(
            net.min_crop, net.max_crop, bool(net.flip), net.angle, net.aspect or 1.0, net.hue, net.saturation or 1.0,
            net.exposure or 1.0, net.mixup_mode if net.mixup_mode in SOURCES else NONE, net.blur, bool(net.contrastive),
        )  # fmt: skip

    def draw(self, rng: np.random.Generator, w: int, h: int, size: int) -> View:
        """A view of a w x h picture; see `View.placed`."""
        low, high = sorted((self.min_crop, self.max_crop))
        return View.placed(
            w, h, size,
            aspect=rand_scale(rng, self.aspect),
            side=max(1, int(rng.integers(low, high + 1))),
            degrees=float(rng.uniform(-1.0, 1.0) * self.angle),
            u=rng.uniform(-1.0, 1.0),
            v=rng.uniform(-1.0, 1.0),
            flip=bool(self.flip and rng.integers(2)),
            dhue=float(rng.uniform(-1.0, 1.0) * self.hue),
            dsat=rand_scale(rng, self.saturation),
            dexp=rand_scale(rng, self.exposure),
        )  # fmt: skip

    def draw_mix(self, rng: np.random.Generator, mode: int, w: int, h: int) -> Mix:
        """How the pictures of a row become one."""
        if mode == BOTH:
            mode = int(rng.integers(CUTMIX, MOSAIC + 1))
        if mode == CUTMIX:
            cut_w, cut_h = (_between(rng, side, PATCH) for side in (w, h))
            return Mix(mode, (int(rng.integers(w - cut_w)), int(rng.integers(h - cut_h)), cut_w, cut_h))
        return Mix(mode, tuple(_between(rng, side, CUT) for side in (w, h)) if mode == MOSAIC else ())


def _between(rng: np.random.Generator, side: int, shares: tuple[float, float]) -> int:
    return int(rng.integers(int(side * shares[0]), int(side * shares[1]) + 1))


class ClassificationData:
    """Pictures whose paths name their classes, and how to augment them.

    Args:
        paths: image files; truth: of their paths; views: ranges of the draws; channels: of the network.
        seed: all draws follow from it; cache: keeps decoded pictures.
        closes: iteration from which on pictures are not mixed, None: never.
    """

    widest = np.float32

    def __init__(
        self, paths: Sequence[str], truth: Truth, views: Views, channels: int = 3, seed: int = 0,
        cache: Cache | None = None, closes: int | None = None,
    ):  # fmt: skip
        self.pictures = Pictures(paths, channels, cache=cache)
        self.truth, self.views = truth, views
        self.sampler = Sampler(len(paths), views, seed, closes)
        self._known: dict[int, np.ndarray] = {}

    @property
    def paths(self) -> list[str]:
        return self.pictures.paths

    def __len__(self) -> int:
        return len(self.paths)

    def shape(self, request: Request) -> tuple[tuple[int, int, int, int], type]:
        """Shape (B, C, H, W) and type of a batch's pictures."""
        return (request.count, self.pictures.channels, request.height, request.width), np.float32

    def batch(self, request: Request, empty: Callable[..., np.ndarray] = np.empty) -> Batch:
        """The mini-batch of a request: pictures (B, C, H, W) and targets (B, classes).

        Raises DataError if no picture can be read.
        """
        images = empty(*self.shape(request))
        rows = self.rows(request, 0, images)
        return Batch(images, self.stack(rows.truth), request, rows.paths)

    @staticmethod
    def stack(truth: Sequence[np.ndarray]) -> np.ndarray:
        """(B, classes)"""
        return np.stack(truth)

    def rows(self, request: Request, first: int, images: np.ndarray) -> Rows:
        """Fill `images` (n, C, H, W) with the rows from `first` on."""
        mode, result = self.sampler.mode(request), Rows([], [])
        for row, target in enumerate(images, first):
            choices = self.sampler.choices(request, row, SOURCES[mode])
            rng = self.sampler.rng(Stream.DRAWS, request, request.number(row))
            found = [self._view(choice, rng, request) for choice in choices]
            mix = self.views.draw_mix(rng, mode, request.width, request.height)
            kernel = self.views.blur if self.views.blur and rng.integers(BLUR_ONE_IN) == 0 else 0
            image, truth = combine([image for _, image, _ in found], [truth for *_, truth in found], mix, kernel)
            target[:] = image
            result.truth.append(truth)
            result.paths.append(found[0][0])
        return result

    def _view(self, choices: Iterator[int], rng: np.random.Generator, request: Request) -> tuple:
        """Path, picture as it is seen, and target of the first choice that can be read."""
        index, pixels = self.pictures.readable(choices)
        view = self.views.draw(rng, pixels.shape[1], pixels.shape[0], max(request.width, request.height))
        return self.paths[index], seen(pixels, view, request.width, request.height), self._target(index)

    def _target(self, index: int) -> np.ndarray:
        if index not in self._known:
            self._known[index] = self.truth.of(self.paths[index], index)
        return self._known[index]


def combine(
    images: Sequence[np.ndarray], targets: Sequence[np.ndarray], mix: Mix, kernel: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """One training picture and its target from one or several, blurred with `kernel` (0: not)."""
    image, target = (images[0], targets[0]) if mix.mode == NONE else mixed(images, targets, mix)
    return blurred(image, kernel) if kernel else image, target
