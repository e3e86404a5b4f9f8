"""`-profile N`: what torch's profiler sees of some turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from darknetpy.errors import warn

FOLDER = "profile"
LEFT_OUT = 2
"""First turns, in which much happens only once."""


@contextmanager
def profiled(turns: int, name: str) -> Iterator[Callable[[], None]]:
    """Write `profile/NAME.json`, which chrome://tracing and ui.perfetto.dev show, of so many turns (0: of none).

    Gives a function to call after every turn.
    """
    if turns <= 0:
        yield lambda: None
        return

    def write(profiler: torch.profiler.profile) -> None:
        os.makedirs(FOLDER, exist_ok=True)
        path = os.path.join(FOLDER, f"{name}.json")
        profiler.export_chrome_trace(path)
        warn(f"the profile of {turns} turns is in {path}")

    steps = torch.profiler.schedule(wait=LEFT_OUT - 1, warmup=1, active=turns, repeat=1)
    with torch.profiler.profile(schedule=steps, on_trace_ready=write) as profiler:
        yield profiler.step
