"""What a network for pictures needs, whatever it says about them: weights, names, and pictures of any form."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from darknetpy.assets import locate
from darknetpy.config import Cfg
from darknetpy.config.datafile import read_names
from darknetpy.errors import ImageError, warn
from darknetpy.images import load_image
from darknetpy.network import Network

Image = str | os.PathLike | np.ndarray | Tensor


class PictureNetwork:
    """A network in inference mode. `cfg` may be a Network that exists already; see `Detector` for the others."""

    classes: int

    def __init__(
        self,
        cfg: str | os.PathLike | Cfg | Network,
        weights: str | os.PathLike | None = None,
        device: str | torch.device = "cpu",
        strict: bool = False,
        overrides: Iterable[str] = (),
    ):
        if isinstance(cfg, Network):
            self.network = cfg
        else:
            self.network = Network(cfg, weights, device, strict, overrides=overrides)
        self.network.train(False)
        self.strict = strict or self.network.strict

    def _names(self, names: str | os.PathLike | Sequence[str] | None) -> list[str]:
        given = read_names(names) if isinstance(names, str | os.PathLike) else list(names or self.network.names)
        if given and len(given) != self.classes:
            warn(f"there are {len(given)} names for {self.classes} classes of {self.network.structure.cfg.path}")
        return given + [f"class_{i}" for i in range(len(given), self.classes)]

    def _picture(self, image: Image) -> np.ndarray:
        channels = self.network.net.channels
        if isinstance(image, str | os.PathLike):
            return load_image(locate(image), channels)
        if isinstance(image, Tensor):
            image = (image.float() if image.is_floating_point() else image).detach().cpu().numpy()
        if not isinstance(image, np.ndarray):
            raise ImageError(f"an image must be a path, an array or a tensor, not {type(image).__name__}")
        if image.dtype == np.uint8:
            return _from_opencv(image, channels)
        if image.ndim != 3 or image.shape[0] != channels or not image.size or image.dtype.kind != "f":
            raise ImageError(
                f"an image must be ({channels}, H, W) floats or (H, W, 3) bytes, not {image.shape} of {image.dtype}"
            )
        return np.ascontiguousarray(image, np.float32)


def _from_opencv(image: np.ndarray, channels: int) -> np.ndarray:
    if image.ndim == 2:
        image = image[:, :, None]
    if image.ndim != 3 or not image.size or image.shape[2] not in {1, 3, 4, channels}:
        raise ImageError(f"an image must be (H, W), (H, W, 3) or (H, W, 4) bytes, not {image.shape}")
    if channels == 1 and image.shape[2] >= 3:
        image = (image[:, :, :3].astype(np.float32) @ np.float32([0.114, 0.587, 0.299]))[:, :, None]
    elif channels == 3:
        image = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image[:, :, 2::-1]
    if image.shape[2] != channels:
        raise ImageError(f"an image must be (H, W, {channels}) bytes, not {image.shape}")
    return np.ascontiguousarray(image.transpose(2, 0, 1), np.float32) / np.float32(255)
