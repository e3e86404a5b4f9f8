"""Curves and matrices as pictures: by matplotlib where it is installed (extra `plots`), else by OpenCV.

save_panels("curve.png", [Panel("loss", "iteration", [Series("loss", x, y)])])
"""

from __future__ import annotations

import importlib.util
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from darknetpy.files import atomic_write
from darknetpy.images.draw import encode_image

WIDTH, HEIGHT = 640, 440
"""Pixels of a panel."""
MOST_POINTS = 2000
"""Points of a curve that are drawn; of more, evenly chosen ones."""
MOST_NAMES = 12
"""Curves up to which a panel has a legend."""
MOST_NUMBERS = 30
"""Classes up to which a matrix shows its numbers."""
COLORS = ("1f77b4", "ff7f0e", "2ca02c", "d62728", "9467bd", "8c564b", "e377c2", "7f7f7f", "bcbd22", "17becf")
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_MARGIN = (70, 40, 20, 50)
"""Pixels left, above, right and below of a panel's axes."""


@dataclass
class Series:
    """One curve: finite points are drawn; `marked` ones get dots."""

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    marked: bool = False

    def points(self) -> np.ndarray:
        """(N, 2), thinned out."""
        xy = np.stack([np.asarray(self.x, np.float64), np.asarray(self.y, np.float64)], 1)
        xy = xy[np.isfinite(xy).all(1)]
        if len(xy) > MOST_POINTS:
            xy = xy[np.linspace(0, len(xy) - 1, MOST_POINTS).round().astype(int)]
        return xy


@dataclass
class Panel:
    """Axes with curves. `limits` is the range (low, high) of y where it is known; `x_limits` of x."""

    title: str
    x_label: str
    series: Sequence[Series]
    limits: tuple[float, float] | None = None
    x_limits: tuple[float, float] | None = None
    log: bool = False


def have_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def save_panels(path: str | os.PathLike, panels: Sequence[Panel], columns: int = 2) -> None:
    """Draw panels side by side, `columns` in a row."""
    columns = max(1, min(columns, len(panels)))
    (_panels_matplotlib if have_matplotlib() else _panels_opencv)(path, panels, columns)


def save_matrix(path: str | os.PathLike, counts: np.ndarray, names: Sequence[str], title: str) -> None:
    """Draw a confusion matrix: (N, N) counts, truth down, detection across; shades are shares of the row."""
    total = counts.sum(1, keepdims=True)
    share = np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)
    (_matrix_matplotlib if have_matplotlib() else _matrix_opencv)(path, counts, share, names, title)


def _save(path: str | os.PathLike, data: bytes) -> None:
    with atomic_write(path) as stream:
        stream.write(data)


# --- matplotlib ------------------------------------------------------------------------------------------------------


def _figure(width: float, height: float):
    """A figure of its own, without the global state of pyplot, which belongs to the user."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width / 100, height / 100), dpi=100, layout="tight")
    FigureCanvasAgg(figure)
    return figure


def _save_figure(path: str | os.PathLike, figure) -> None:
    data = io.BytesIO()
    figure.savefig(data, format="png")
    _save(path, data.getvalue())


def _panels_matplotlib(path: str | os.PathLike, panels: Sequence[Panel], columns: int) -> None:
    rows = math.ceil(len(panels) / columns)
    figure = _figure(WIDTH * columns, HEIGHT * rows)
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(panel.title, parse_math=False)
        axes.set_xlabel(panel.x_label)
        axes.grid(alpha=0.3)
        for k, series in enumerate(panel.series):
            xy = series.points()
            color, marker = f"#{COLORS[k % len(COLORS)]}", "o" if series.marked else None
            axes.plot(xy[:, 0], xy[:, 1], label=_literal(series.name), color=color, lw=1.2, marker=marker, ms=4)
        if panel.log:
            axes.set_yscale("log")
        if panel.limits:
            axes.set_ylim(*panel.limits)
        if panel.x_limits:
            axes.set_xlim(*panel.x_limits)
        if 0 < len(panel.series) <= MOST_NAMES:
            axes.legend(fontsize=8)
    _save_figure(path, figure)


def _literal(name: str) -> str:
    """A name as a label: `$` starts no formula, a leading `_` hides nothing."""
    return f" {name}".replace("$", r"\$")


def _matrix_matplotlib(path, counts: np.ndarray, share: np.ndarray, names: Sequence[str], title: str) -> None:
    side = max(5.0, min(20.0, 2 + 0.4 * len(names))) * 100
    figure = _figure(side, side)
    axes = figure.add_subplot()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set_title(title)
    axes.set_xlabel("detection")
    axes.set_ylabel("truth")
    labels = [_literal(name) for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), labels, fontsize=7)
    if len(names) <= MOST_NUMBERS:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                color = "white" if share[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color=color)
    _save_figure(path, figure)


# --- OpenCV ----------------------------------------------------------------------------------------------------------


def _panels_opencv(path: str | os.PathLike, panels: Sequence[Panel], columns: int) -> None:
    pictures = [_panel(panel) for panel in panels]
    pictures += [np.full((HEIGHT, WIDTH, 3), 255, np.uint8)] * (-len(pictures) % columns)
    rows = [np.concatenate(pictures[i : i + columns], 1) for i in range(0, len(pictures), columns)]
    _save(path, encode_image(np.concatenate(rows), ".png"))


def _panel(panel: Panel) -> np.ndarray:
    image = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    left, top, right, bottom = _MARGIN
    right, bottom = WIDTH - right, HEIGHT - bottom
    curves = [series.points() for series in panel.series]
    if panel.log:
        curves = [np.stack([xy[:, 0], np.log10(xy[:, 1])], 1) for xy in (c[c[:, 1] > 0] for c in curves)]
    together = np.concatenate(curves) if curves else np.zeros((0, 2))
    x_low, x_high = panel.x_limits or _range(together[:, 0])
    y_low, y_high = panel.limits if panel.limits and not panel.log else _range(together[:, 1])

    def place(xy: np.ndarray) -> np.ndarray:
        share = (xy - (x_low, y_low)) / (x_high - x_low, y_high - y_low)
        return (share * (right - left, top - bottom) + (left, bottom)).clip(-9999, 9999).round().astype(np.int32)

    for value in _ticks(x_low, x_high):
        x = int(place(np.array([value, y_low]))[0])
        cv2.line(image, (x, top), (x, bottom), (225, 225, 225), 1)
        _centred(image, f"{value:g}", (x, bottom + 18))
    for value in _ticks(y_low, y_high):
        y = int(place(np.array([x_low, value]))[1])
        cv2.line(image, (left, y), (right, y), (225, 225, 225), 1)
        text = f"{10**value:.2g}" if panel.log else f"{value:g}"
        _text(image, text, (left - 6 - _width(text, 0.4), y + 4), 0.4)
    for k, (series, xy) in enumerate(zip(panel.series, curves, strict=True)):
        color, points = _rgb(k), place(xy)
        inside = np.ascontiguousarray(image[top : bottom + 1, left : right + 1])
        cv2.polylines(inside, [points - (left, top)], False, color, 1, cv2.LINE_AA)
        for x, y in (points - (left, top)).tolist() if series.marked else ():
            cv2.circle(inside, (x, y), 3, color, cv2.FILLED, cv2.LINE_AA)
        image[top : bottom + 1, left : right + 1] = inside
        if len(panel.series) <= MOST_NAMES:
            y = top + 16 + 16 * k
            cv2.line(image, (right - 190, y - 4), (right - 170, y - 4), color, 2)
            _text(image, series.name[:26], (right - 164, y), 0.4)
    cv2.rectangle(image, (left, top), (right, bottom), (90, 90, 90), 1)
    _centred(image, panel.title, (WIDTH // 2, 24), 0.55)
    _centred(image, panel.x_label, (WIDTH // 2, HEIGHT - 10), 0.45)
    return image


def _range(values: np.ndarray) -> tuple[float, float]:
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    room = 0.05 * (high - low) or abs(high) or 1.0
    return low - room, high + room


def _ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers between two ends."""
    step = 10.0 ** math.floor(math.log10((high - low) / about))
    step *= next((m for m in (1, 2, 5) if (high - low) / (m * step) <= about), 10)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _rgb(k: int) -> tuple[int, int, int]:
    return tuple(bytes.fromhex(COLORS[k % len(COLORS)]))


def _text(image: np.ndarray, text: str, place: tuple[int, int], scale: float, color=(0, 0, 0)) -> None:
    cv2.putText(image, text, place, _FONT, scale, color, 1, cv2.LINE_AA)


def _width(text: str, scale: float) -> int:
    return cv2.getTextSize(text, _FONT, scale, 1)[0][0]


def _centred(image: np.ndarray, text: str, place: tuple[int, int], scale: float = 0.4, color=(0, 0, 0)) -> None:
    _text(image, text, (place[0] - _width(text, scale) // 2, place[1]), scale, color)


def _matrix_opencv(path, counts: np.ndarray, share: np.ndarray, names: Sequence[str], title: str) -> None:
    cell, side = max(10, min(44, 1600 // len(names))), 130
    whole = side + cell * len(names)
    image = np.full((whole + 20, whole + 20, 3), 255, np.uint8)
    dark = np.array([8, 48, 107], np.float64)
    shades = (255 + share[..., None] * (dark - 255)).round().astype(np.uint8)
    image[side:whole, side:whole] = shades.repeat(cell, 0).repeat(cell, 1)
    upright = np.full((side, whole, 3), 255, np.uint8)
    for k, name in enumerate(names):
        middle = side + cell * k + cell // 2
        _text(image, name[:16], (4, middle + 4), 0.38)
        strip = np.full((cell, side, 3), 255, np.uint8)
        _text(strip, name[:16], (4, cell // 2 + 4), 0.38)
        upright[:, middle - cell // 2 : middle - cell // 2 + cell] = np.rot90(strip)
        for column in range(len(names)) if len(names) <= MOST_NUMBERS else ():
            if counts[k, column]:
                color = (255,) * 3 if share[k, column] > 0.5 else (0, 0, 0)
                _centred(image, str(counts[k, column]), (side + cell * column + cell // 2, middle + 4), 0.38, color)
    image[:side, side:whole] = upright[:, side:]
    _text(image, title, (4, 16), 0.4)
    _text(image, "down: truth", (4, 36), 0.38)
    _text(image, "across: detection", (4, 52), 0.38)
    _save(path, encode_image(image, ".png"))
