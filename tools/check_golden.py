"""Run every golden case under some folders and print a table.

    python tools/check_golden.py ../shared/golden
    python tools/check_golden.py cases -k yolo --models models --images images

Exit status 0 only if no case fails and none is unsupported.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.golden import augment, class_augment, classify, detect, evaluation, forward, multigpu, pictures, training
from tools.golden.common import FAIL, NOT_CHECKED, OK, UNSUPPORTED, Outcome, Places

SKIPPED = frozenset({"cpu", "gpu_nocudnn", "images"})


def cases(folder: Path) -> Iterator[tuple[str, Path]]:
    """(kind, place) of every case in and under a folder; a matched case is not descended into."""
    kind = kind_of(folder)
    if kind:
        yield kind, folder
        if kind not in ("boxes folder",):
            return
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            if entry.name not in SKIPPED:
                yield from cases(entry)
        elif entry.suffix == ".json" and not kind:
            if detect.is_boxes(entry):
                yield "boxes", entry
            elif entry.name == "dims_table.json":
                yield "sizes", entry
            elif training.is_rates(entry):
                yield "rates", entry


def kind_of(folder: Path) -> str | None:
    """What a folder is, first match wins."""
    has = lambda *names: all((folder / name).exists() for name in names)  # noqa: E731
    rules = [
        ("forward", lambda: forward.is_case(folder)),
        ("image", lambda: pictures.is_case(folder)),
        ("tensors", lambda: detect.is_tensors(folder)),
        ("text", lambda: detect.is_text(folder)),
        ("cli", lambda: has("index.json") and any(folder.glob("*.stdout.txt"))),
        ("map", lambda: evaluation.is_case(folder)),
        ("classify", lambda: classify.is_case(folder)),
        ("curve", lambda: has("runs.json", "start.weights")),
        ("multigpu", lambda: multigpu.is_case(folder)),
        ("resize", lambda: training.is_resize(folder)),
        ("step", lambda: training.is_step(folder)),
        ("loss", lambda: training.is_loss(folder)),
        ("augment classifier", lambda: augment.kind_of(folder) == "classifier"),
        ("augment", lambda: augment.kind_of(folder) is not None),
    ]
    return next((name for name, holds in rules if holds()), None)


CHECKS = {
    "forward": forward.check,
    "image": pictures.check,
    "boxes": detect.check_boxes,
    "tensors": detect.check_tensors,
    "text": detect.check_text,
    "map": evaluation.check,
    "augment classifier": class_augment.check,
    "classify": classify.check,
    "curve": evaluation.check_curve,
    "rates": lambda path, places: training.check_rates(path),
    "sizes": lambda path, places: training.check_sizes(path),
    "loss": training.check_loss,
    "step": training.check_step,
    "multigpu": multigpu.check,
    "resize": training.check_resize,
    "augment": augment.check,
}
"""Kinds that are checked here; the others are named in the table as not checked."""


def run(kind: str, place: Path, places: Places) -> list[Outcome]:
    """Check one case; an exception is a failure, not the end."""
    name = f"{place.parent.name}/{place.name}"
    if kind not in CHECKS:
        return [Outcome(name, NOT_CHECKED, note=kind)]
    try:
        return CHECKS[kind](place, places)
    except Exception as error:  # a case must not stop the others
        logging.getLogger("darknetpy.check").debug("%s", traceback.format_exc())
        return [Outcome(name, FAIL, note=f"{type(error).__name__}: {error}"[:200])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("-k", default="", help="only cases whose path contains this")
    parser.add_argument("--models", type=Path, help="folder of model folders")
    parser.add_argument("--images", type=Path, help="folder of pictures")
    arguments = parser.parse_args()
    logging.getLogger("darknetpy").setLevel(logging.CRITICAL)
    absolute = [p.resolve() if p else None for p in (arguments.models, arguments.images)]
    places = Places(*absolute)
    found = [case for path in arguments.paths for case in cases(path.resolve()) if arguments.k in str(case[1])]
    outcomes = [o for kind, place in tqdm(found, disable=not sys.stderr.isatty()) for o in run(kind, place, places)]
    number = lambda v: "" if v is None else f"{v:.2g}"  # noqa: E731
    rows = [(o.case, number(o.error), number(o.tolerance), o.status, o.note[:90]) for o in outcomes]
    print(tabulate(rows, headers=["case", "worst error", "tolerance", "", "where"]))
    count = {status: sum(o.status == status for o in outcomes) for status in (OK, FAIL, UNSUPPORTED, NOT_CHECKED)}
    print(f"{count[OK]} ok, {count[FAIL]} failed, {count[UNSUPPORTED]} unsupported, {count[NOT_CHECKED]} not checked")
    return 0 if not count[FAIL] and not count[UNSUPPORTED] else 1


if __name__ == "__main__":
    sys.exit(main())
