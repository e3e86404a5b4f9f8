"""Pictures of what a network is shown in training (Darknet: `-show_imgs`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import cv2
import numpy as np

from darknetpy.data.detection import Batch
from darknetpy.errors import DarknetpyError, warn
from darknetpy.images.draw import class_color, save_image

FOLDER = "augmented"
MOST = 64
"""Pictures written in all."""
TINY = 1e-6


class Preview:
    """Writes the first augmented pictures of a run, with their boxes: `FOLDER/aug_ITERATION_ROW.jpg`."""

    def __init__(self, classes: int, names: Sequence[str] = (), folder: str = FOLDER, most: int = MOST):
        self.classes, self.names, self.folder, self.left = classes, names, folder, most
        os.makedirs(folder, exist_ok=True)

    def __call__(self, batches: Sequence[Batch]) -> None:
        """Take the mini-batches of a turn. A picture that cannot be written ends the writing, not the training."""
        for batch in batches:
            for row in range(min(self.left, len(batch.images))):
                name = f"aug_{batch.request.iteration}_{batch.request.number(row)}.jpg"
                try:
                    save_image(os.path.join(self.folder, name), self.drawn(batch.images[row], batch.truth[row]))
                except (DarknetpyError, OSError) as error:
                    warn(f"-show_imgs ends: {error}")
                    self.left = 0
                    return
                self.left -= 1

    def drawn(self, image: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """uint8 (H, W, 3), RGB, with boxes, from a row (C, H, W) of a batch and its truth (M, 6)."""
        canvas = _canvas(image)
        h, w = canvas.shape[:2]
        for x, y, bw, bh, label in truth[truth[:, 0] != 0, :5].tolist():
            color = class_color(int(label), self.classes)
            left, top, right, bottom = (
                round(v) for v in ((x - bw / 2) * w, (y - bh / 2) * h, (x + bw / 2) * w, (y + bh / 2) * h)
            )
            cv2.rectangle(canvas, (left, top), (right - 1, bottom - 1), color, 1)
            name = self.names[int(label)] if 0 <= label < len(self.names) else str(int(label))
            cv2.putText(canvas, name, (left + 2, top + 12), cv2.FONT_HERSHEY_SIMPLEX, 0.4, color, 1, cv2.LINE_AA)
        return canvas


class ClassPreview(Preview):
    """Writes the first augmented pictures of a classifier's run, with the names of their classes."""

    def __init__(self, labels: Sequence[str], folder: str = FOLDER, most: int = MOST):
        super().__init__(len(labels), labels, folder, most)

    def drawn(self, image: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """uint8 (H, W, 3), RGB, from a row (C, H, W) of a batch and its target (classes,): classes of half the best."""
        canvas = _canvas(image)
        for line, label in enumerate(np.flatnonzero(truth >= max(truth.max() / 2, TINY)).tolist()):
            color, place = class_color(label, self.classes), (2, 12 * (line + 1))
            cv2.putText(canvas, self.names[label], place, cv2.FONT_HERSHEY_SIMPLEX, 0.4, color, 1, cv2.LINE_AA)
        return canvas


def _canvas(image: np.ndarray) -> np.ndarray:
    """uint8 (H, W, 3), RGB, from a row (C, H, W) of a batch."""
    pixels = image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8)
    pixels = pixels[:3] if len(pixels) >= 3 else np.repeat(pixels[:1], 3, axis=0)
    return np.ascontiguousarray(pixels.transpose(1, 2, 0))
