"""What a person sees of a run: one sink a file."""

from __future__ import annotations

from collections.abc import Callable

from darknetpy.reporting import chart, csv_log, darknet_lines, progress  # noqa: F401 - importing registers
from darknetpy.reporting.registry import make, names, sink
from darknetpy.training.events import use_by_default

DEFAULT = ["darknet", "progress", "csv", "chart"]


def default_sinks() -> list[Callable]:
    """The sinks of `detector train`."""
    return make(DEFAULT)


use_by_default(default_sinks)

__all__ = ["DEFAULT", "default_sinks", "make", "names", "sink"]
