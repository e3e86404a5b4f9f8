"""The README's training, the sample set with `cfg/yolov4-tiny-digits.cfg`, for several seeds: mAP and time.

python tools/bench_digits.py --device cpu --seeds 3 [--parallel N] [--iterations N] [--out table.md]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.training_runs import Job, device_words, mean_and_deviation, run  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, or several as cuda:0,cuda:1")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=1, help="trainings at the same time; times are then no measure")
    parser.add_argument("--iterations", type=int, default=None, help="fewer than the cfg's, for a trial")
    parser.add_argument("--out", type=Path, default=None, help="write the table here, as Markdown")
    parser.add_argument("words", nargs="*", help="further words of the command line, after --")
    a = parser.parse_args()
    words = [str(ROOT / "data" / "digits.data"), str(ROOT / "cfg" / "yolov4-tiny-digits.cfg"), "-map"]
    words += [*device_words(a.device, a.replicas), *a.words]
    if a.iterations:
        words += ["-set", f"net.max_batches={a.iterations}"]
    seeds = range(a.first_seed, a.first_seed + a.seeds)
    with tempfile.TemporaryDirectory() as folder:
        jobs = [Job(Path(folder) / f"seed{seed}", [*words, "-seed", str(seed)]) for seed in seeds]
        run(jobs, a.parallel)
        rows = [_row(seed, job) for seed, job in zip(seeds, jobs, strict=True)]
    means = [mean_and_deviation([row[i] for row in rows]) for i in range(1, len(rows[0]))]
    rows += [["mean", *(m for m, _ in means)]]
    if len(jobs) > 1:
        rows.append(["sd", *(sd for _, sd in means)])
    headers = ["seed", "iterations", "final mAP %", "best mAP %", "average loss", "wall s", "images/s", "waiting %"]
    text = tabulate(rows, headers, "github", floatfmt=".4g")
    print(text)
    if a.out:
        a.out.write_text(text + "\n", encoding="utf-8")


def _row(seed: int, job: Job) -> list:
    rows = job.rows()
    accuracy = [100 * float(row["map"]) for row in rows if row["map"]]
    loading = sum(float(row["load_seconds"]) for row in rows)
    seconds = sum(float(row["seconds"]) for row in rows) + loading
    return [
        seed, len(rows), accuracy[-1], max(accuracy), float(rows[-1]["avg_loss"]), job.seconds,
        int(rows[-1]["images"]) / seconds, 100 * loading / seconds,
    ]  # fmt: skip


if __name__ == "__main__":
    main()
