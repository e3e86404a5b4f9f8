"""Loading and resizing of pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from darknetpy import images
from tools.golden.common import Outcome, Places, Worst, load_json

TOLERANCE = 1e-6

OPERATIONS = {
    "load": lambda image, a: image,
    "resize": lambda image, a: images.resize_image(image, a[0], a[1]),
    "letterbox": lambda image, a: images.letterbox_image(image, a[0], a[1]),
    "crop": lambda image, a: images.crop_image(image, *a),
    "resize_min": lambda image, a: images.resize_min(image, a[0]),
    "resize_max": lambda image, a: images.resize_max(image, a[0]),
    "flip": lambda image, a: images.flip_image(image),
}


def is_case(folder: Path) -> bool:
    if not all((folder / name).is_file() for name in ("golden.npz", "meta.json")) or (folder / "net.cfg").is_file():
        return False
    meta = load_json(folder / "meta.json")
    return isinstance(meta, list) and bool(meta) and "op" in meta[0]


def check(folder: Path, places: Places) -> list[Outcome]:
    golden, worst = np.load(folder / "golden.npz"), Worst()
    for entry in load_json(folder / "meta.json"):
        image = images.load_image(folder / entry["file"], entry["channels"])
        result, want = OPERATIONS[entry["op"]](image, entry["args"]), golden[entry["key"]]
        if result.shape != want.shape:
            worst.fail(f"{entry['key']}: {result.shape}, stored is {want.shape}")
        else:
            worst.see(entry["key"], np.abs(result - want).max(), TOLERANCE)
    return [worst.outcome(folder.name)]
