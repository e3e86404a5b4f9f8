"""Several trainings by the command line, some at a time, each in a folder of its own: what measuring tools share."""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Job:
    """A training: the words after `detector train`, and the folder where it runs."""

    folder: Path
    words: list[str]
    seconds: float = 0.0
    process: subprocess.Popen | None = field(default=None, repr=False)

    def start(self, threads: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "darknetpy", "detector", "train", *self.words, "-dont_show"]
        self.seconds = time.perf_counter()
        with open(self.folder / "train.log", "wb") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=subprocess.STDOUT)

    def ended(self) -> bool:
        """Whether it is over. Ends this process with the log's last lines where it failed."""
        status = self.process.poll()
        if status is None:
            return False
        self.seconds = time.perf_counter() - self.seconds
        if status:
            lines = (self.folder / "train.log").read_text(errors="replace").splitlines()
            raise SystemExit("\n".join([*lines[-15:], f"{self.folder}: exit status {status}"]))
        return True

    def rows(self) -> list[dict[str, str]]:
        """The rows of its `results.csv`."""
        path = self.folder / "results.csv"
        if not path.exists():
            return []
        with open(path, newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))


def run(jobs: Sequence[Job], parallel: int) -> None:
    """Run all jobs, `parallel` at a time, with a bar of iterations."""
    threads = max(1, (os.cpu_count() or 1) // parallel)
    waiting, running = list(jobs), []
    try:
        with tqdm(unit="it", desc=f"{len(jobs)} trainings") as bar:
            while waiting or running:
                while waiting and len(running) < parallel:
                    running.append(waiting.pop(0))
                    running[-1].start(threads)
                time.sleep(1)
                running = [job for job in running if not job.ended()]
                bar.n = sum(_lines(job.folder / "results.csv") for job in jobs)
                bar.refresh()
    finally:
        for job in running:
            job.process.kill()


def _lines(path: Path) -> int:
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


def device_words(device: str, replicas: int = 1) -> list[str]:
    """Flags for a device (`cpu`, `cuda:0`, or several as `cuda:0,cuda:1`, which replicas take in turns)."""
    names = device.split(",")
    if names == ["cpu"]:
        return ["-nogpu", *(["-gpus", ",".join(map(str, range(replicas)))] if replicas > 1 else [])]
    numbers = [name.partition(":")[2] or "0" for name in names]
    if replicas == 1:
        return ["-i", numbers[0]]
    return ["-gpus", ",".join(numbers[i % len(numbers)] for i in range(replicas))]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; nan where there are too few."""
    nan = float("nan")
    return (
        statistics.fmean(values) if values else nan,
        statistics.stdev(values) if len(values) > 1 else nan,
    )
