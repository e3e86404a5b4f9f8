"""Every golden case of the real Darknet, by the rules of tools/check_golden.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import SHARED, TESTS, shared

sys.path.insert(0, str(TESTS.parent))

from tools.check_golden import CHECKS, cases, run
from tools.golden.common import NOT_CHECKED, OK, UNSUPPORTED, Places

ROOT = SHARED / "golden"
UNSUPPORTED_CASES = {"train/step/conv_lstm"}
"""Cases of types that are laid out and run, but not trained as Darknet does yet."""


def _found() -> list[tuple[str, Path]]:
    return [case for case in cases(ROOT) if case[0] in CHECKS] if ROOT.is_dir() else []


@pytest.mark.parametrize(("kind", "place"), [pytest.param(*c, id=str(c[1].relative_to(ROOT))) for c in _found()])
def test_case(kind: str, place: Path) -> None:
    outcomes = run(kind, place, Places())
    assert outcomes
    for outcome in outcomes:
        if outcome.status == NOT_CHECKED:
            assert outcome.note == "not a target", outcome
        elif outcome.case in UNSUPPORTED_CASES:
            assert outcome.status == UNSUPPORTED, outcome
        else:
            assert outcome.status == OK, f"{outcome.case}: {outcome.note}"


def test_the_collection_is_here_and_complete() -> None:
    shared("golden")
    kinds = [kind for kind, _ in cases(ROOT)]
    assert {kind: kinds.count(kind) for kind in ("forward", "loss", "step", "rates", "boxes", "map", "image")} == {
        "forward": 65, "loss": 73, "step": 93, "rates": 20, "boxes": 24, "map": 1, "image": 1,
    }  # fmt: skip
