"""Weights files of a run, by Darknet's names."""

from __future__ import annotations

import os
from dataclasses import dataclass

from darknetpy.files import base_name, writable_folder
from darknetpy.network import Network
from darknetpy.weights import Header


@dataclass
class Checkpoints:
    """Where a run saves: `folder/BASE_N.weights`, `_last`, `_best`, `_final`, `_ema`.

    Raises DataError at the start where the folder cannot be written.
    """

    folder: str
    cfg: str

    def __post_init__(self):
        writable_folder(self.folder)
        self.base = base_name(self.cfg)

    def path(self, suffix: str | int) -> str:
        return os.path.join(self.folder, f"{self.base}_{suffix}.weights")

    def save(self, network: Network, suffix: str | int, iteration: int) -> str:
        """Write a file; `seen` in its header is the images of whole iterations."""
        path = self.path(suffix)
        network.save_weights(path, Header(seen=iteration * network.net.images_per_update))
        return path
