"""A tiny data set and network that command-line tests build for themselves."""

from __future__ import annotations

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
