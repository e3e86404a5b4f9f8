"""Kill a training at random instants, start it again each time, and compare its end with that of an undisturbed run.

python tools/soak_resume.py --kills 200 [--iterations N] [--seed N] [--keep FOLDER]

Each start goes on from `_last.weights` where there is one. Exit status 0 only if no start failed, no half file was left
and the final weights are equal byte for byte.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from small import CFG, data_set

Kill = Callable[[subprocess.Popen, float], bool]
LONGEST = 3.0
"""Seconds after its first iteration within which a run is killed."""


def prepare(folder: Path, iterations: int) -> None:
    """A data set and a network with everything that a run remembers, saved every second iteration."""
    cfg = CFG.replace("[maxpool]", "[dropout]\nprobability=.3\n\n[maxpool]", 1).replace("random=0", "random=1")
    cfg = cfg.replace("burn_in=0", "burn_in=2\nmosaic=1\nema_alpha=.9").replace(
        "max_batches=4", f"max_batches={iterations}"
    )
    data_set(folder, cfg=cfg)
    with open(folder / "obj.data", "a", encoding="utf-8") as stream:
        stream.write("savelast=2\nsaveweights=50\n")


def start(folder: Path, *words: str) -> subprocess.Popen:
    """Train there; `words` are weights to go on from, and flags."""
    words = ["detector", "train", "obj.data", "tiny.cfg", *words, "-map", "-map_every", "9", "-dont_show"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "darknetpy", *words, "-no_rehearsal", "-nogpu", "-workers", "1"]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def going_on(folder: Path) -> list[str]:
    """The weights to go on from, if there are any."""
    last = folder / "backup/tiny_last.weights"
    return ["backup/tiny_last.weights"] if last.exists() or last.with_suffix(".state.pt").exists() else []


def runs_for(process: subprocess.Popen, delay: float) -> bool:
    """Wait for the first iteration and `delay` seconds more; whether the run has not come to its end meanwhile."""
    for line in process.stdout:
        if "avg loss" in line:
            break
    try:
        process.communicate(timeout=delay)
    except subprocess.TimeoutExpired:
        return True
    return False


def killed(process: subprocess.Popen, delay: float) -> bool:
    """Kill `delay` seconds after the first iteration; whether it was still running."""
    running = runs_for(process, delay)
    if running:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    return running


def check(folder: Path) -> None:
    """Every file with a final name is whole: a weights file has the size of all others."""
    sizes = {path.stat().st_size for path in (folder / "backup").glob("*.weights")}
    if len(sizes) > 1:
        raise SystemExit(f"half a file in {folder / 'backup'}: sizes {sorted(sizes)}")


def soak(folder: Path, kills: int, iterations: int, seed: int, words: Sequence[str] = (), kill: Kill = killed) -> int:
    """Kill `kills` times; returns the number of times that a run came to its end meanwhile.

    Args:
        words: flags of all runs; kill: takes a run and the seconds to wait, kills, and says whether it still ran.
    """
    whole, broken, rng = folder / "whole", folder / "broken", random.Random(seed)
    for place in (whole, broken):
        prepare(place, iterations)
    output, _ = (process := start(whole, *words)).communicate()
    if process.returncode:
        raise SystemExit(output)
    expected, ends, done = (whole / "backup/tiny_final.weights").read_bytes(), 0, 0
    over = False
    with tqdm(total=kills, unit="kill") as bar:
        while done < kills or not over:
            process = start(broken, *going_on(broken), *words)
            if kill(process, rng.uniform(0, LONGEST) if done < kills else 3600):
                done, over = done + 1, False  # even where the final weights were there already
                bar.update()
                check(broken)
                continue
            if process.returncode:
                raise SystemExit(f"a start after {done} kills ended with status {process.returncode}")
            if (broken / "backup/tiny_final.weights").read_bytes() != expected:
                raise SystemExit(f"after {done} kills the final weights differ")
            ends, over = ends + 1, True
            if done < kills:
                for path in (broken / "backup").iterdir():
                    path.unlink()
    return ends


def main(text: str = __doc__, words: Sequence[str] = (), kill: Kill = killed) -> None:
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--iterations", type=int, default=120)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        ends = soak(options.keep or Path(temporary), options.kills, options.iterations, options.seed, words, kill)
    print(f"{options.kills} kills (seed {options.seed}): {ends} runs ended with the weights of an undisturbed one")


if __name__ == "__main__":
    main()
