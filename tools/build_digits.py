"""Make the sample set `data/digits`: real handwritten digits scattered over varied backgrounds.

The handwriting is the UCI "Optical Recognition of Handwritten Digits" set (E. Alpaydin, C. Kaynak; CC BY 4.0), 8x8 grey
values, which scikit-learn ships. Training and validation pictures use different originals.

    python tools/build_digits.py            # rewrites data/digits from its seed
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parent.parent
SIDE = 96
QUALITY = 90


@dataclass
class Settings:
    """How hard the set is."""

    train: int = 800
    valid: int = 150
    fewest: int = 3
    most: int = 7
    smallest: int = 16
    largest: int = 40
    overlap: float = 0.08
    seed: int = 20


def background(rng: np.random.Generator) -> np.ndarray:
    """(SIDE, SIDE, 3) uint8: plain, graded, blotchy or striped."""
    kind = rng.integers(4)
    base = rng.uniform(30, 225, 3)
    canvas = np.empty((SIDE, SIDE, 3), np.float32)
    canvas[:] = base
    if kind == 1:
        other, angle = rng.uniform(30, 225, 3), rng.uniform(0, 2 * np.pi)
        y, x = np.mgrid[:SIDE, :SIDE] / SIDE - 0.5
        t = (x * np.cos(angle) + y * np.sin(angle) + 0.7) / 1.4
        canvas += (other - base) * t[..., None]
    elif kind == 2:
        noise = rng.normal(0, 1, (6, 6, 3)).astype(np.float32)
        canvas += cv2.resize(noise, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC) * rng.uniform(8, 30)
    elif kind == 3:
        period, angle = rng.uniform(8, 30), rng.uniform(0, np.pi)
        y, x = np.mgrid[:SIDE, :SIDE]
        wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / period)
        canvas += wave[..., None] * rng.uniform(4, 18)
    canvas += rng.normal(0, rng.uniform(0, 6), canvas.shape)
    return np.clip(canvas, 0, 255)


def stamp(digit: np.ndarray, side: int, rng: np.random.Generator) -> np.ndarray:
    """The 8x8 digit as a smooth (h, w) mask in 0..1, cropped to its ink, slightly rotated and sheared."""
    wide = rng.uniform(0.85, 1.15)
    big = cv2.resize(digit.astype(np.float32) / 16, (64, 64), interpolation=cv2.INTER_CUBIC)
    big = cv2.copyMakeBorder(big, 16, 16, 16, 16, cv2.BORDER_CONSTANT)
    turn = cv2.getRotationMatrix2D((48, 48), rng.uniform(-12, 12), 1.0)
    turn[0, 1] += rng.uniform(-0.15, 0.15)
    big = cv2.warpAffine(big, turn, (96, 96), flags=cv2.INTER_LINEAR)
    mask = np.clip((big - 0.25) / 0.5, 0, 1)
    ys, xs = np.nonzero(mask > 0.4)
    mask = mask[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
    h = side
    w = max(5, round(side * mask.shape[1] / mask.shape[0] * wide))
    return cv2.resize(mask, (w, h), interpolation=cv2.INTER_AREA)


def overlap(a: tuple, b: tuple) -> float:
    """Intersection over the smaller box; boxes are left, top, width, height."""
    w = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    h = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    return max(w, 0) * max(h, 0) / min(a[2] * a[3], b[2] * b[3])


def picture(images: np.ndarray, targets: np.ndarray, s: Settings, rng: np.random.Generator):
    """One picture and its label lines."""
    canvas, boxes, lines = background(rng), [], []
    for _ in range(rng.integers(s.fewest, s.most + 1)):
        pick = rng.integers(len(images))
        mask = stamp(images[pick], int(rng.integers(s.smallest, s.largest + 1)), rng)
        h, w = mask.shape
        if h >= SIDE - 2 or w >= SIDE - 2:
            continue
        for _ in range(20):
            x, y = int(rng.integers(1, SIDE - w)), int(rng.integers(1, SIDE - h))
            if all(overlap((x, y, w, h), other) <= s.overlap for other in boxes):
                break
        else:
            continue
        under = canvas[y : y + h, x : x + w].mean((0, 1))
        ink = rng.uniform(0, 255, 3)
        while abs(ink.mean() - under.mean()) < 55:
            ink = rng.uniform(0, 255, 3)
        alpha = mask[..., None]
        canvas[y : y + h, x : x + w] = canvas[y : y + h, x : x + w] * (1 - alpha) + ink * alpha
        boxes.append((x, y, w, h))
        lines.append(f"{targets[pick]} {(x + w / 2) / SIDE:.6f} {(y + h / 2) / SIDE:.6f} {w / SIDE:.6f} {h / SIDE:.6f}")
    return np.clip(canvas, 0, 255).astype(np.uint8), lines


def build(folder: Path, s: Settings) -> None:
    """Write pictures, labels and lists."""
    digits = load_digits()
    rng = np.random.default_rng(s.seed)
    order = rng.permutation(len(digits.images))
    split = len(order) * 3 // 4
    parts = {"train": (order[:split], s.train), "valid": (order[split:], s.valid)}
    for name, (chosen, count) in parts.items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        for old in place.glob("*.*"):
            old.unlink()
        names = []
        for i in range(count):
            image, lines = picture(digits.images[chosen], digits.target[chosen], s, rng)
            path = place / f"{i:04d}.jpg"
            cv2.imwrite(str(path), image[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
            path.with_suffix(".txt").write_text("".join(f"{line}\n" for line in lines))
            names.append(f"data/digits/{name}/{path.name}")
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "digits")
    build(parser.parse_args().out, Settings())


if __name__ == "__main__":
    main()
