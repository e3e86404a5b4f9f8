"""Where tests find their reference data.

`golden(...)` prefers what the repository ships in tests/golden; `shared(...)` is the reference collection that lies
beside a full checkout: missing, a test is skipped by name, except where CI is set: there it fails.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
SHARED = TESTS.parent.parent / "shared"


def shared(*parts: str) -> Path:
    """Path inside the reference collection; skips (or, in CI, fails) when it isn't there."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        message = f"reference data {'/'.join(('shared', *parts))} is not here"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


def golden(*parts: str) -> Path:
    """Path of golden data: tests/golden if shipped, else the reference collection."""
    path = TESTS.joinpath("golden", *parts)
    return path if path.exists() else shared("golden", *parts)


def have_shared(*parts: str) -> bool:
    """True when the reference data is here (or must be, in CI): for building parametrisations at collection time."""
    return SHARED.joinpath(*parts).exists() or bool(os.environ.get("CI"))


@pytest.fixture(autouse=True)
def logger_as_found() -> Iterator[None]:
    """A command that a test calls sets up the program's logger for the process: the next test finds it as it was."""
    logger = logging.getLogger("darknetpy")
    before = logger.level, logger.propagate, logger.disabled, list(logger.handlers)
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.disabled, logger.handlers[:] = before[1:]


@pytest.fixture
def hears_signals() -> Iterator[None]:
    """SIGHUP and SIGINT are heard by the test and what it starts, although whoever started the tests (nohup, a shell's
    background) may have them ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
