"""From pictures to detections.

detector = Detector("yolov4.cfg", "yolov4.weights", "coco.names")
for d in detector("dog.jpg"):
    print(d.name, d.confidence, d.box)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import cv2
import numpy as np
import torch
from torch import Tensor

from darknetpy.config import Cfg
from darknetpy.detections import Detections
from darknetpy.errors import ConfigError
from darknetpy.images import letterbox_image, resize_image
from darknetpy.inference.pictures import Image, PictureNetwork
from darknetpy.inference.postprocess import detections_of
from darknetpy.network import Network

THRESH, NMS, HIER = 0.25, 0.45, 0.5
"""Darknet's defaults of `detector test`."""


class Detector(PictureNetwork):
    """A network for inference, with its class names.

    Args:
        cfg: network file, or a Network that exists already.
        weights: `.weights` or `.pt`; None runs random weights, as Darknet does.
        names: class names: a file, or a list, None: those that a `.pt` holds; fewer than the classes are filled up as
            `class_N` (with a warning).
        device: torch device.
        letter_box: keep the aspect ratio; None: what `[net] letter_box` says.
        strict: exactly Darknet.
        overrides: `section[#n].key=value` words.

    Raises ConfigError for a network without a detection head.
    """

    def __init__(
        self,
        cfg: str | os.PathLike | Cfg | Network,
        weights: str | os.PathLike | None = None,
        names: str | os.PathLike | Sequence[str] | None = None,
        *,
        device: str | torch.device = "cpu",
        letter_box: bool | None = None,
        strict: bool = False,
        overrides: Iterable[str] = (),
    ):
        super().__init__(cfg, weights, device, strict, overrides)
        self.heads = self.network.structure.detectors
        if not self.heads:
            raise ConfigError("has no detection layer", file=self.network.structure.cfg.path)
        self.letter_box = bool(self.network.net.letter_box) if letter_box is None else letter_box
        self.names = self._names(names)

    @property
    def classes(self) -> int:
        return self.heads[-1].options.classes

    def __call__(self, image: Image, thresh: float = THRESH, nms: float = NMS, hier: float = HIER) -> Detections:
        """Detections in one picture, boxes relative to it.

        Args:
            image: a path; or uint8 (H, W, 3) as `cv2.imread` gives it (BGR), also with alpha or grey (H, W);
                or float (C, H, W), RGB, 0..1.
            thresh: objectness and class confidence must both exceed this.
            nms: overlap above which the weaker box goes; 0 keeps all.
            hier: how likely a class of a class tree (yolo9000) must be to be preferred to its parent; strict: 0.5.

        Raises ImageError for a file that cannot be read, or an array that is no picture.
        """
        return self.detect([image], thresh, nms, hier)[0]

    def detect(
        self, images: Sequence[Image], thresh: float = THRESH, nms: float = NMS, hier: float = HIER
    ) -> list[Detections]:
        """Detections in several pictures, as one batch."""
        if not images:
            return []
        pictures = [self._picture(image) for image in images]
        sizes = [(picture.shape[2], picture.shape[1]) for picture in pictures]
        batch = torch.from_numpy(np.stack([self.prepare(picture) for picture in pictures]))
        return self.predict(batch, sizes, thresh, nms, hier)

    def prepare(self, picture: np.ndarray) -> np.ndarray:
        """A (C, H, W) picture at the network's size, by Darknet's own resize (or letterbox)."""
        width, height = self.network.net.width, self.network.net.height
        return (letterbox_image if self.letter_box else resize_image)(picture, width, height)

    def prepare_frame(self, frame: np.ndarray) -> np.ndarray:
        """A video frame, uint8 (H, W, 3) BGR, as (C, H, W) at the network's size.

        By OpenCV's bilinear resize, as Darknet's `demo` does, or by Darknet's letterbox.
        """
        if self.letter_box:
            return self.prepare(self._picture(frame))
        return self._picture(cv2.resize(frame, (self.network.net.width, self.network.net.height)))

    def predict(
        self,
        batch: Tensor,
        sizes: Sequence[tuple[int, int]],
        thresh: float = THRESH,
        nms: float = NMS,
        hier: float = HIER,
        relative: bool = True,
    ) -> list[Detections]:
        """Detections of a prepared batch.

        Args:
            batch: (B, C, H, W), 0..1, at the network's size.
            sizes: (width, height) of each original picture.
            relative: boxes relative to the picture instead of in its pixels.
        """
        batch = batch.to(self.network.device, non_blocking=True)
        passed = self.network.predict(batch)
        net_size = (batch.shape[3], batch.shape[2])
        hier = HIER if self.strict else hier
        found = detections_of(self.heads, passed.outputs, net_size, sizes, thresh, hier, relative, self.letter_box)
        kind, beta = self.nms_kind
        result = []
        for detections in found:
            detections.names = self.names
            result.append(detections.nms(kind, nms, beta) if nms else detections)
        return result

    @property
    def nms_kind(self) -> tuple[str, float]:
        """Kind and beta of NMS: those of the last detection layer serve the whole network."""
        options = self.heads[-1].options
        return getattr(options, "nms_kind", "default"), getattr(options, "beta_nms", 0.6)
