"""A tiny data set and network that command-line tests build for themselves."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import cv2
import numpy as np

CFG = """[net]
batch=4
subdivisions=2
width=64
height=64
channels=3
learning_rate=0.001
burn_in=0
max_batches=4
policy=constant

[convolutional]
batch_normalize=1
filters=8
size=3
stride=2
pad=1
activation=leaky

[maxpool]
size=2
stride=2

[convolutional]
batch_normalize=1
filters=8
size=3
stride=2
pad=1
activation=leaky

[convolutional]
size=1
stride=1
pad=1
filters=21
activation=linear

[yolo]
mask=0,1,2
anchors=10,10, 20,20, 40,40
classes=2
num=3
iou_loss=ciou
iou_normalizer=0.07
ignore_thresh=.7
truth_thresh=1
random=0
jitter=.2
"""


def picture(seed: int = 0, w: int = 80, h: int = 60) -> np.ndarray:
    """Noise with a bright rectangle, uint8 BGR."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 120, (h, w, 3), dtype=np.uint8)
    image[15:35, 20:50] = (40, 200, 220)
    return image


def data_set(folder: Path, count: int = 6, cfg: str = CFG) -> Path:
    """Pictures, labels, `list.txt`, `obj.names`, `obj.data` and `tiny.cfg` in a folder; returns the folder."""
    (folder / "img").mkdir(parents=True, exist_ok=True)
    names = []
    for i in range(count):
        cv2.imwrite(str(folder / f"img/{i}.png"), picture(i))
        (folder / f"img/{i}.txt").write_text(f"{i % 2} 0.4375 0.4167 0.375 0.3333\n")
        names.append(f"img/{i}.png\n")
    (folder / "list.txt").write_text("".join(names))
    (folder / "obj.names").write_text("cat\ndog\n")
    (folder / "obj.data").write_text("classes=2\ntrain=list.txt\nvalid=list.txt\nnames=obj.names\nbackup=backup\n")
    (folder / "tiny.cfg").write_text(cfg)
    return folder


SPOT_CFG = """[net]
batch=1
width=64
height=64
channels=3

[maxpool]
size=16
stride=16
padding=0

[convolutional]
size=1
stride=1
filters=7
activation=linear

[yolo]
mask=0
anchors=16,8
classes=2
num=1
"""
CERTAIN = 1 / (1 + math.exp(-10)) ** 2
"""Confidence of a spot: objectness and class are both sigmoid(10)."""
SPOT_COLORS = {0: (0, 255, 255), 1: (255, 0, 255)}
"""BGR of what the spot network takes for class 0 (cat) and 1 (dog)."""


def spot_network(folder: Path) -> Path:
    """`spot.cfg`, `spot.weights`, `obj.names` and `obj.data`: a detector whose answers are known by hand.

    The picture is seen as 4 x 4 cells. A cell with full red has an object in its middle, 16 x 8 network pixels large
    (a quarter and an eighth of the picture), a cat where green is full too and a dog where blue is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spot.cfg").write_text(SPOT_CFG)
    (folder / "obj.names").write_text("cat\ndog\n")
    (folder / "obj.data").write_text("classes=2\nnames=obj.names\n")
    biases, weights = np.zeros(7, np.float32), np.zeros((7, 3), np.float32)
    biases[4:] = -10
    weights[[4, 5, 6], [0, 1, 2]] = 20
    header = struct.pack("<iiiQ", 0, 2, 5, 64000)
    (folder / "spot.weights").write_bytes(header + biases.tobytes() + weights.tobytes())
    return folder


def spot_picture(spots: dict[tuple[int, int], int], cell: int = 32) -> np.ndarray:
    """Black uint8 BGR of 4 x 4 cells with a spot of a class in the middle of some, by (column, row)."""
    image = np.zeros((4 * cell, 4 * cell, 3), np.uint8)
    for (x, y), class_id in spots.items():
        part = slice(y * cell + cell // 4, (y + 1) * cell - cell // 4)
        image[part, x * cell + cell // 4 : (x + 1) * cell - cell // 4] = SPOT_COLORS[class_id]
    return image
