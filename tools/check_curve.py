"""Whole trainings against the real Darknet's: the same cfg and pictures, several seeds, mAP and loss on the way.

    python tools/check_curve.py --device cuda:0 --seeds 5 --parallel 5 --out table.md
    python tools/check_curve.py --device cuda:0 --replicas 4 --start          # from Darknet's weights at iteration 400
    python tools/check_curve.py --device cpu --seeds 1 --iterations 30        # does it run at all?

Needs the reference collection (`../shared/golden/curve`, or `--golden`). Exit status 0 only if

* the mean mAP at 600, 1000 and the end lies within two standard errors of the difference of Darknet's mean,
* each seed's average loss at 200, 300 and 400 lies in Darknet's range, widened by its own width on each side,
* with `--start` (or more replicas, for which there are single runs of Darknet only) the final mAP lies in the range of
  Darknet's runs, widened likewise.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.training_runs import Job, device_words, mean_and_deviation, run  # noqa: E402

MAP_AT = ("600", "1000", "final")
LOSS_AT = (200, 300, 400)
STARTED_AT = 400
HEADERS = ["", "Darknet", "sd", "runs", "darknetpy", "sd", "seeds", "difference", "allowed", "verdict"]


@dataclass
class Golden:
    """Darknet's runs of one kind: mAP by checkpoint and average loss by iteration, each a list over runs."""

    accuracy: dict[str, list[float]]
    loss: dict[int, list[float]]

    @classmethod
    def read(cls, folder: Path, replicas: int, start: bool) -> Golden:
        runs = json.loads((folder / "runs.json").read_text(encoding="utf-8")).values()
        chosen = [r for r in runs if r["gpus"] == replicas and r["start"].startswith("start" if start else "random")]
        if not chosen:
            raise SystemExit(f"there is no run of Darknet with {replicas} replicas{' from its start' if start else ''}")
        accuracy = {at: [r["map50"][at] for r in chosen if at in r["map50"]] for at in MAP_AT}
        losses = [{row[0]: row[2] for row in r["loss"]} for r in chosen]
        return cls(accuracy, {at: [row[at] for row in losses if at in row] for at in LOSS_AT})


def data_file(folder: Path, golden: Path) -> Path:
    """A `.data` file of our own, since Darknet's is relative to its folder and would save there."""
    data = golden / "data"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "digits.data"
    keys = {"classes": 10, "train": data / "train.txt", "valid": data / "valid.txt", "names": data / "digits.names"}
    keys |= {"backup": "backup", "saveweights": 200}
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()), encoding="utf-8")
    return path


def accuracy_of(job: Job, data: Path, cfg: Path, device: str) -> dict[str, float]:
    """mAP@0.50 of the checkpoints that there are."""
    from darknetpy import evaluate

    found = {}
    for at in MAP_AT:
        weights = job.folder / "backup" / f"digits-tiny_{at}.weights"
        if weights.exists():
            found[at] = evaluate(data, cfg, weights, device=device.split(",")[0], progress=False).map
    return found


def row(name: str, darknet: Sequence[float], ours: Sequence[float], judge: Callable) -> list:
    """One measure; the last entry is None where there is nothing to judge."""
    (their_mean, their_sd), (mean, sd) = mean_and_deviation(darknet), mean_and_deviation(ours)
    allowed, passed = judge(darknet, ours) if darknet and ours else ("-", None)
    numbers = (their_mean, their_sd, len(darknet), mean, sd, len(ours), mean - their_mean)
    return [name, *("-" if math.isnan(v) else f"{v:.4g}" for v in numbers), allowed, passed]


def by_standard_error(darknet: Sequence[float], ours: Sequence[float]) -> tuple[str, bool | None]:
    """Two standard errors of the difference of the means; no verdict from single runs."""
    (their_mean, their_sd), (mean, sd) = mean_and_deviation(darknet), mean_and_deviation(ours)
    allowed = 2 * math.sqrt(their_sd**2 / len(darknet) + sd**2 / len(ours))
    if math.isnan(allowed):
        return by_range(darknet, ours) if len(darknet) > 1 else ("-", None)
    return f"±{allowed:.4g}", abs(mean - their_mean) <= allowed


def by_range(darknet: Sequence[float], ours: Sequence[float]) -> tuple[str, bool]:
    """Darknet's range, widened by its own width on each side, for each of our runs."""
    low, high = min(darknet), max(darknet)
    low, high = low - (high - low), high + (high - low)
    return f"{low:.4g} to {high:.4g}", all(low <= value <= high for value in ours)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cpu, cuda:0, or several as cuda:0,cuda:1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--start", action="store_true", help="from Darknet's weights at iteration 400")
    parser.add_argument("--parallel", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--iterations", type=int, default=None, help="fewer than the cfg's 1500, for a trial")
    parser.add_argument("--golden", type=Path, default=ROOT.parent / "shared" / "golden" / "curve")
    parser.add_argument("--folder", type=Path, default=None, help="keep the runs here")
    parser.add_argument("--out", type=Path, default=None, help="write the table here, as Markdown")
    parser.add_argument("words", nargs="*", help="further words of the command line, after --")
    a = parser.parse_args()

    golden = a.golden.resolve()
    darknet = Golden.read(golden, a.replicas, a.start)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (a.folder or Path(temporary)).resolve()
        data, cfg = data_file(folder, golden), golden / "data" / "digits-tiny.cfg"
        words = [str(data), str(cfg), *([str(golden / "start.weights")] if a.start else [])]
        words += [*device_words(a.device, a.replicas), *a.words]
        if a.iterations:
            words += ["-set", f"net.max_batches={(STARTED_AT if a.start else 0) + a.iterations}"]
        seeds = range(a.first_seed, a.first_seed + a.seeds)
        jobs = [Job(folder / f"seed{seed}", [*words, "-seed", str(seed)]) for seed in seeds]
        run(jobs, a.parallel)
        accuracy = [accuracy_of(job, data, cfg, a.device) for job in jobs]
        losses = [{int(r["iteration"]): float(r["avg_loss"]) for r in job.rows()} for job in jobs]

    whole = a.iterations is None
    single = a.replicas == 1 and not a.start
    known = [{at: value for at, value in m.items() if whole or at != "final"} for m in accuracy]
    rows = [
        row(f"mAP@0.50 at {at}", darknet.accuracy[at], [m[at] for m in known if at in m],
            by_standard_error if single else by_range if at == "final" else lambda *_: ("-", None))
        for at in MAP_AT
    ]  # fmt: skip
    if not a.start:
        rows += [
            row(f"average loss at {at}", darknet.loss[at], [loss[at] for loss in losses if at in loss],
                by_range if single else lambda *_: ("-", None))
            for at in LOSS_AT
        ]  # fmt: skip
    text = tabulate([[*r[:-1], {None: "-", True: "ok", False: "DIFFERS"}[r[-1]]] for r in rows], HEADERS, "github")
    text += "\n\n" + tabulate(
        [[s, *(f"{m[at]:.4f}" if at in m else "-" for at in MAP_AT), f"{job.seconds:.0f}"]
         for s, m, job in zip(seeds, accuracy, jobs, strict=True)],
        ["seed", *(f"mAP at {at}" for at in MAP_AT), "seconds"], "github", disable_numparse=True,
    )  # fmt: skip
    title = f"{a.replicas} replica{'s' if a.replicas > 1 else ''} on {a.device}, from "
    title += f"{'start.weights' if a.start else 'random weights'}{'' if whole else f', {a.iterations} iterations only'}"
    print(f"{title}\n\n{text}")
    if a.out:
        a.out.write_text(f"{title}\n\n{text}\n", encoding="utf-8")
    return int(any(r[-1] is False for r in rows))


if __name__ == "__main__":
    sys.exit(main())
