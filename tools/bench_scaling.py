"""How training scales over the GPUs of this machine: a table in markdown on standard output.

    python tools/bench_scaling.py [--counts 1,2,4,8] [--turns 40] [--networks yolov4-tiny:416,yolov4:608]
    python tools/bench_scaling.py --cpu --counts 1,2 --turns 6 --batch 4 --networks yolov4-tiny:96     (a smoke test)

Runs `darknetpy detector train` on synthetic pictures, batch 64 a GPU, for every number of GPUs: weights averaged and
gradients shared (`-ddp`) with cached pictures and little augmentation, then weights averaged with pictures from the
disk and the cfg's own augmentation. Numbers are those of `results.csv` without the first turns.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch
from tabulate import tabulate
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
WARM_UP = 0.25
"""Share of the turns that is left out at the beginning."""
CLASSES = 80
LITTLE = ["net.mosaic=0", "net.hue=0", "net.saturation=1", "net.exposure=1", "yolo.jitter=0", "yolo.random=0"]
MODES = {
    "averaging": ["-cache", "ram", "-set", *LITTLE],
    "-ddp": ["-ddp", "-cache", "ram", "-set", *LITTLE],
    "averaging, from disk": ["-cache", "none", "-set", "yolo.random=0"],
}


def prepare(folder: Path, count: int) -> None:
    """Photographs of noise and rectangles, with labels."""
    (folder / "img").mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f"img/{i}.jpg"), cv2.resize(coarse, (640, 480), interpolation=cv2.INTER_CUBIC))
        boxes = np.column_stack([rng.uniform(0.3, 0.7, (5, 2)), rng.uniform(0.05, 0.4, (5, 2))])
        rows = [f"{rng.integers(CLASSES)} {x:.4f} {y:.4f} {w:.4f} {h:.4f}\n" for x, y, w, h in boxes]
        (folder / f"img/{i}.txt").write_text("".join(rows))
    (folder / "list.txt").write_text("".join(f"img/{i}.jpg\n" for i in range(count)))
    (folder / "obj.names").write_text("".join(f"thing{i}\n" for i in range(CLASSES)))
    (folder / "obj.data").write_text(f"classes={CLASSES}\ntrain=list.txt\nnames=obj.names\nbackup=backup\n")


def measure(folder: Path, network: str, count: int, mode: str, options) -> dict[str, float]:
    """Images a second, and shares of the time spent on synchronisation and on waiting for pictures."""
    name, _, size = network.partition(":")
    batch, turns = options.batch, options.turns
    devices = ["-gpus", ",".join(map(str, range(count)))] + (["-nogpu"] if options.cpu else [])
    words = [f"net.width={size}", f"net.height={size}", f"net.batch={batch}", "net.burn_in=1000"]
    words += [f"net.max_batches={turns * count}", f"net.subdivisions={options.subdivisions}", "net.learning_rate=1e-5"]
    command = [sys.executable, "-m", "darknetpy", "detector", "train", "obj.data", str(ROOT / f"cfg/{name}.cfg")]
    done = subprocess.run(
        [*command, *devices, "-dont_show", "-no_rehearsal", "-quiet", *MODES[mode], *words],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{network}, {count} devices, {mode}: {(done.stdout + done.stderr)[-2000:]}")
    with (folder / "results.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))[int(turns * WARM_UP) :]
    column = {k: sum(float(row[k] or 0) for row in rows) for k in ("seconds", "load_seconds", "sync_seconds")}
    total = column["seconds"] + column["load_seconds"]
    images = batch * count * len(rows)
    return {"rate": images / total, "sync": column["sync_seconds"] / total, "load": column["load_seconds"] / total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", default="1,2,4,8", help="numbers of devices; those that are not there are left out")
    parser.add_argument("--networks", default="yolov4-tiny:416,yolov4:608", help="cfg:size, ...")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64, help="of each device")
    parser.add_argument("--subdivisions", type=int, default=1)
    parser.add_argument("--pictures", type=int, default=256)
    parser.add_argument("--cpu", action="store_true", help="replicas on the CPU")
    options = parser.parse_args()
    there = sys.maxsize if options.cpu else torch.cuda.device_count()
    counts = [n for n in map(int, options.counts.split(",")) if n <= there]
    rows = []
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place), options.pictures)
        runs = [(net, mode, n) for net in options.networks.split(",") for mode in MODES for n in counts]
        first: dict[tuple[str, str], float] = {}
        for network, mode, count in tqdm(runs, unit="run"):
            found = measure(Path(place), network, count, mode, options)
            single = first.setdefault((network, mode), found["rate"] / count)
            shares = f"{100 * found['sync']:.1f} %", f"{100 * found['load']:.1f} %"
            rows.append([network, mode, count, round(found["rate"], 1), f"{found['rate'] / single:.2f}", *shares])
    headers = ["network", "mode", "devices", "images/s", "speed-up", "synchronising", "waiting for pictures"]
    print(tabulate(rows, headers, tablefmt="github"))


if __name__ == "__main__":
    main()
