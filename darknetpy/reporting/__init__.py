"""What a person sees of a run: one sink a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from darknetpy.reporting import board, chart, csv_log, darknet_lines, plots, progress, verdict  # noqa: F401 - registers
from darknetpy.reporting.registry import load, make, names, sink
from darknetpy.training.events import use_by_default

DEFAULT = ["darknet", "progress", "verdict", "csv", "chart", "plots"]


def default_sinks(
    *,
    previous_chart: str | None = None,
    tensorboard: str | None = None,
    mjpeg_port: int | None = None,
    bind: str | None = None,
    own: Sequence[str] = (),
) -> list[Callable]:
    """The sinks of `detector train`.

    Args:
        previous_chart: picture that `chart.png` goes on drawing; tensorboard: folder of its logs.
        mjpeg_port: serve the chart there; bind: on this address only. own: names of further registered sinks.

    Raises UsageError or MissingFileError where one of them cannot be made.
    """
    sinks = make(DEFAULT)
    if previous_chart:
        sinks[DEFAULT.index("chart")] = chart.Chart(previous=previous_chart)
    if tensorboard is not None:
        sinks.append(board.TensorBoard(tensorboard))
    if mjpeg_port is not None and mjpeg_port > 0:
        sinks.append(chart.ChartStream(mjpeg_port, bind, previous_chart))
    return sinks + make(list(own))


use_by_default(default_sinks)

__all__ = ["DEFAULT", "default_sinks", "load", "make", "names", "sink"]
