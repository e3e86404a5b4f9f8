"""Every golden case of the real Darknet, by the rules of tools/check_golden.py.

What the repository ships in tests/golden is checked everywhere; the cases that need models or pictures only where the
reference collection lies beside the checkout.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import SHARED, TESTS, shared

sys.path.insert(0, str(TESTS.parent))

from tools.check_golden import CHECKS, cases, run
from tools.golden.common import NOT_CHECKED, OK, Places

COLLECTION, SHIPPED = SHARED / "golden", TESTS / "golden"
SHIPPED_KINDS = Counter(forward=65, image=1, loss=73, rates=20, step=93, sizes=1, augment=4, multigpu=8)
COLLECTION_KINDS = SHIPPED_KINDS + Counter(boxes=24, map=1, tensors=1, text=1, augment=2, classify=3, curve=1)
COLLECTION_KINDS["augment classifier"] = 1
NOT_TARGETS = {"forward/cpu_zero_activations", "train/step/coordconv", "curve/runs"}
"""Cases that record a defect of Darknet's CPU build, and a data race of its GPU build; trainings that take hours."""


def _found() -> dict[str, tuple[str, Path]]:
    """Kind and place by path relative to the collection; the shipped copy comes first."""
    found = {}
    for root, kinds in ((SHIPPED, set(SHIPPED_KINDS)), (COLLECTION, set(CHECKS))):
        for kind, place in cases(root) if root.is_dir() else ():
            if kind in kinds:
                found.setdefault(place.relative_to(root).as_posix(), (kind, place))
    return found


FOUND = _found()


@pytest.mark.parametrize("name", FOUND)
def test_case(name: str) -> None:
    outcomes = run(*FOUND[name], Places())
    assert outcomes
    for outcome in outcomes:
        if NOT_TARGETS & {name, outcome.case}:
            assert outcome.status == NOT_CHECKED, outcome
        else:
            assert outcome.status == OK, f"{outcome.case}: {outcome.note}"


def test_shipped_cases_are_complete() -> None:
    kinds = Counter(kind for kind, place in FOUND.values() if SHIPPED in place.parents)
    assert kinds == SHIPPED_KINDS


def test_the_collection_is_here_and_complete() -> None:
    shared("golden")
    kinds = Counter(kind for kind, _ in FOUND.values())
    assert {kind: kinds[kind] for kind in COLLECTION_KINDS} == COLLECTION_KINDS


def test_shipped_files_are_the_collections() -> None:
    shared("golden")
    files = [p.relative_to(SHIPPED) for p in SHIPPED.rglob("*") if p.is_file()]
    assert files
    assert [str(p) for p in files if (COLLECTION / p).read_bytes() != (SHIPPED / p).read_bytes()] == []


def test_shipped_files_stay_small() -> None:
    assert sum(p.stat().st_size for p in SHIPPED.rglob("*")) < 25e6
