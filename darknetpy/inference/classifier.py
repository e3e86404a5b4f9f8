"""From pictures to classes.

classifier = Classifier("darknet19.cfg", "darknet19.weights", "imagenet.names")
for c in classifier("dog.jpg", top=5):
    print(c.name, c.probability)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from darknetpy.config import Cfg
from darknetpy.errors import ConfigError, ImageError
from darknetpy.images import crop_image, flip_image, resize_image, resize_min
from darknetpy.inference.pictures import Image, PictureNetwork
from darknetpy.network import Network

TOP = 5
SHIFT = 32
"""How far `ten_views` moves its window, pixels."""
SCALES = (224, 288, 320, 352, 384)
"""Shorter sides of `scale_views`."""
MOST_PIXELS = 1 << 25
"""A picture so narrow that it would grow to more than this is refused."""


@dataclass(frozen=True)
class Classification:
    """A class and how likely it is; `parent` is the name above it in a class tree, `Root` at its top, None without."""

    class_id: int
    name: str
    probability: float
    parent: str | None = None


class Classifier(PictureNetwork):
    """A network that says what a picture shows.

    Args:
        cfg: network file, or a Network that exists already.
        weights: `.weights` or `.pt`; None runs random weights.
        names: class names: a file, or a list; with a class tree those of the tree serve where none are given.
        leaves: with a class tree, names of the classes that count as leaves (None: those that are nobody's parent).
        device: torch device. strict: exactly Darknet. overrides: `section[#n].key=value` words.

    Raises ConfigError for a network with a detection head.
    """

    def __init__(
        self,
        cfg: str | os.PathLike | Cfg | Network,
        weights: str | os.PathLike | None = None,
        names: str | os.PathLike | Sequence[str] | None = None,
        *,
        leaves: Sequence[str] | None = None,
        device: str | torch.device = "cpu",
        strict: bool = False,
        overrides: Iterable[str] = (),
    ):
        super().__init__(cfg, weights, device, strict, overrides)
        layers = [layer for layer in self.network.layers if layer.type != "cost"]
        path = self.network.structure.cfg.path
        if not layers or any(hasattr(layer, "decode") for layer in layers):
            raise ConfigError("is no classifier", file=path, remedy="`detector` takes networks that find boxes")
        self.output = layers[-1]
        self.tree = getattr(self.output, "tree", None)
        self.names = self._names(names or self.network.names or (self.tree.names if self.tree is not None else None))
        self._inner = self._inner_classes(leaves)

    @property
    def classes(self) -> int:
        return self.output.outputs

    def _inner_classes(self, leaves: Sequence[str] | None) -> list[int]:
        """Classes of the tree that are no leaves."""
        if self.tree is None:
            return []
        if leaves is not None:
            wanted = set(leaves)
            return [i for i, name in enumerate(self.tree.names) if name not in wanted]
        return sorted({parent for parent in self.tree.parents if parent >= 0})

    def __call__(self, image: Image, top: int = TOP) -> list[Classification]:
        """The likeliest classes of one picture, in any of the forms that `Detector` takes.

        Raises ImageError for a file that cannot be read, or an array that is no picture.
        """
        return self.classify([image], top)[0]

    def classify(self, images: Sequence[Image], top: int = TOP) -> list[list[Classification]]:
        """The likeliest classes of several pictures, as one batch."""
        if not images:
            return []
        return self.guesses(np.stack([self.prepare(self._picture(image)) for image in images]), top)

    def guesses(self, batch: np.ndarray, top: int = TOP) -> list[list[Classification]]:
        """The likeliest classes of prepared pictures (B, C, H, W) in 0..1, the best first."""
        found = self.probabilities(torch.from_numpy(batch)).numpy()
        return [[self._classification(i, row) for i in ranking(row)[: max(0, top)]] for row in found]

    def _classification(self, i: int, probabilities: np.ndarray) -> Classification:
        parent = None
        if self.tree is not None:
            above = self.tree.parents[i]
            parent = self.names[above] if above >= 0 else "Root"
        return Classification(int(i), self.names[i], float(probabilities[i]), parent)

    def probabilities(self, batch: Tensor, leaves: bool = False) -> Tensor:
        """(B, classes) on the CPU for prepared pictures (B, C, H, W) in 0..1.

        With a class tree they are multiplied down from the root; `leaves` makes those of inner classes 0.
        """
        found = self.outputs(batch)
        if self.tree is not None:
            found = self.tree.probabilities(found)
            if leaves:
                found[:, self._inner] = 0
        return found

    def outputs(self, batch: Tensor) -> Tensor:
        """What the network gives for prepared pictures, (B, classes) on the CPU; in a tree given the class above."""
        passed = self.network.predict(batch.to(self.network.device, non_blocking=True))
        return passed.outputs[self.output.index].float().cpu().flatten(1)

    # --- what of a picture the network is shown ----------------------------------------------------------------------

    def prepare(self, picture: np.ndarray) -> np.ndarray:
        """The middle of a (C, H, W) picture whose shorter side was brought to the network's width."""
        width, height = self.network.net.width, self.network.net.height
        resized = _resized(picture, width)
        left, top = int((resized.shape[2] - width) / 2), int((resized.shape[1] - height) / 2)
        return np.ascontiguousarray(crop_image(resized, left, top, width, height))

    def ten_views(self, picture: np.ndarray) -> list[np.ndarray]:
        """Middle and corners of the picture 32 pixels larger than the network, each mirrored too (`valid10`)."""
        width, height = self.network.net.width, self.network.net.height
        larger = resize_image(picture, width + SHIFT, height + SHIFT)
        places = ((-SHIFT, -SHIFT), (SHIFT, -SHIFT), (0, 0), (-SHIFT, SHIFT), (SHIFT, SHIFT))
        return [
            np.ascontiguousarray(crop_image(image, x, y, width, height))
            for image in (larger, flip_image(larger))
            for x, y in places
        ]

    def whole_view(self, picture: np.ndarray) -> list[np.ndarray]:
        """All of the picture, its shorter side brought to the network's width (`validfull`)."""
        return [_resized(picture, self.network.net.width)]

    def scale_views(self, picture: np.ndarray) -> list[np.ndarray]:
        """All of the picture at five sizes, each mirrored too (`validmulti`)."""
        resized = [_resized(picture, side) for side in SCALES]
        return [view for image in resized for view in (image, flip_image(image))]

    def stretched_view(self, picture: np.ndarray) -> list[np.ndarray]:
        """The picture stretched to the network's size (`validcrop`)."""
        return [resize_image(picture, self.network.net.width, self.network.net.height)]


def _resized(picture: np.ndarray, side: int) -> np.ndarray:
    """The shorter side becomes `side`."""
    _, h, w = picture.shape
    if max(h, w) * side // max(1, min(h, w)) * side > MOST_PIXELS:
        raise ImageError(f"a picture of {w} x {h} pixels is too narrow to be brought to a shorter side of {side}")
    return resize_min(picture, side)


def ranking(probabilities: np.ndarray) -> np.ndarray:
    """Classes from the likeliest to the least likely along the last axis; of equal ones the first comes first."""
    return np.argsort(-probabilities, axis=-1, kind="stable")
