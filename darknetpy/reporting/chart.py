"""`chart.png`: loss and mAP over the iterations, as Darknet draws them (Darknet: `draw_train_chart`).

With `-mjpeg_port` browsers see it grow.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Mapping

import cv2
import numpy as np

from darknetpy.errors import MissingFileError
from darknetpy.files import atomic_write
from darknetpy.images.draw import encode_image
from darknetpy.inference.streams import MjpegStream
from darknetpy.reporting.registry import sink
from darknetpy.training.events import Evaluated, Event, Finished, Started, TurnDone

SIDE, LEFT = 1000, 60
PLOT = SIDE - LEFT
FONT = cv2.FONT_HERSHEY_COMPLEX_SMALL
BLUE, RED, BLACK = (255, 0, 0), (0, 0, 255), (0, 0, 0)
EVERY = 100
"""Iterations between two savings."""
QUALITY = 70
"""JPEG quality of the stream."""
PAUSE = 0.1
"""Seconds between two pictures of the stream: drawing must not hold up a fast training."""


@sink("chart")
class Chart:
    """Draws into a picture and saves it as `chart.png` and `chart_BASE.png` in the working directory."""

    def __init__(self, folder: str = ".", previous: str | None = None):
        self.folder, self.previous = folder, previous
        if previous and not os.path.exists(previous):
            raise MissingFileError(previous)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Evaluated):
            self._accuracy(event.iteration, event.result.map)
            self.save()
        elif isinstance(event, TurnDone):
            self._loss(event.iteration, event.avg_loss)
            self._caption(event)
        elif isinstance(event, Finished):
            self.save()

    def resume(self, rows: Iterable[Mapping[str, float]]) -> None:
        """Draw what happened before, unless there is a picture that a person named."""
        if self.going_on:
            return
        self._clean()
        for row in rows:
            self._loss(int(row["iteration"]), row["avg_loss"])
            if "map" in row:
                self._accuracy(int(row["iteration"]), row["map"])

    def _start(self, e: Started) -> None:
        self.metric = e.metric
        self.base, self.max_batches, self.top = e.base, max(1, e.max_batches), e.max_chart_loss or 20.0
        self._clean()
        older = self.previous or os.path.join(self.folder, f"chart_{e.base}.png")
        image = cv2.imread(older) if (e.iteration or self.previous) and os.path.exists(older) else None
        fits = image is not None and image.shape == (SIDE, SIDE, 3)
        if fits:
            self.image = image
        self.going_on = fits and self.previous is not None
        self.saved = e.iteration // EVERY

    def _clean(self) -> None:
        self.image = _frame(self.top, self.max_batches)
        self.last_map: tuple[int, float] | None = None
        self.label: tuple[int, float] = (0, 0.0)
        self.best = 0.0

    def _point(self, iteration: int, height: float) -> tuple[int, int]:
        y = int(PLOT * (1 - height))
        return LEFT + int(PLOT * iteration / self.max_batches), y if y >= 0 else 1

    def _loss(self, iteration: int, avg_loss: float) -> None:
        if np.isfinite(avg_loss):
            cv2.circle(self.image, self._point(iteration, avg_loss / self.top), 1, BLUE, cv2.FILLED, cv2.LINE_8)

    def _caption(self, e: TurnDone) -> None:
        cv2.rectangle(self.image, (15, 960), (SIDE - 1, 977), (255, 255, 255), cv2.FILLED)
        left = f"approx. time left = {e.hours_left:2.2f} hours"
        text = f"current avg loss = {e.avg_loss:2.4f}    iteration = {e.iteration}    {left}"
        _write(self.image, text, (15, 973))
        if e.iteration // EVERY != self.saved:
            self.saved = e.iteration // EVERY
            self.save()

    def _accuracy(self, iteration: int, accuracy: float) -> None:
        now = (iteration, accuracy)
        if self.last_map is None:
            _write(self.image, self.metric, (10, 12), RED)
        else:
            cv2.line(self.image, self._point(*self.last_map), self._point(*now), RED, 2, cv2.LINE_AA)
        cv2.circle(self.image, self._point(*now), 3, RED, cv2.FILLED, cv2.LINE_AA)
        cv2.rectangle(self.image, (0, 15), (LEFT - 2, 36), (255, 255, 255), cv2.FILLED)
        _write(self.image, f"{100 * accuracy:2.1f}%", (2, 30), RED)
        far = now[0] - self.label[0] > self.max_batches / 10
        if abs(now[1] - self.label[1]) > 0.1 or (now[1] > self.best and far) or far:
            x, y = self._point(*now)
            _write(self.image, f"{100 * now[1]:2.0f}%", (min(x, SIDE - 50), max(14, y - 8)), RED)
            self.label = now
        self.best, self.last_map = max(self.best, now[1]), now

    def rehearse(self) -> None:
        """Write the picture once, to a folder that goes away."""
        with tempfile.TemporaryDirectory(prefix=".rehearsal", dir=self.folder) as folder:
            self.save(folder)

    def save(self, folder: str | None = None) -> None:
        done, data = cv2.imencode(".png", self.image)
        for name in ("chart.png", f"chart_{self.base}.png") if done else ():
            with atomic_write(os.path.join(folder or self.folder, name)) as stream:
                stream.write(data.tobytes())


@sink("mjpeg")
class ChartStream(Chart):
    """The chart for browsers, as motion JPEG over HTTP; a listener sees the next picture first.

    Args:
        port: 0 takes a free one; bind: address to listen on, None: DARKNETPY_BIND, else all interfaces.
        previous: picture to go on drawing.

    Raises UsageError where the port cannot be had.
    """

    def __init__(self, port: int = 8090, bind: str | None = None, previous: str | None = None):
        super().__init__(previous=previous)
        self.stream, self.sent = MjpegStream(port, bind), 0.0

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, TurnDone) and time.monotonic() - self.sent >= PAUSE:
            self._send()
        elif isinstance(event, Finished):
            self._send()
            self.stream.close()

    def _send(self) -> None:
        if self.stream.listeners:
            self.sent = time.monotonic()
            self.stream.send(encode_image(self.image[:, :, ::-1], ".jpg", QUALITY))

    def save(self, folder: str | None = None) -> None:
        """The picture is sent, not written."""


def _write(image: np.ndarray, text: str, place: tuple[int, int], color=BLACK) -> None:
    cv2.putText(image, text, place, FONT, 0.7, color, 1, cv2.LINE_AA)


def _frame(top: float, max_batches: int) -> np.ndarray:
    """Axes, grid and captions."""
    image = np.full((SIDE, SIDE, 3), 255, np.uint8)
    for i in range(101):
        shade = (128,) * 3 if i % 10 == 0 else (224,) * 3
        x, y = LEFT + PLOT * i // 100, PLOT * i // 100
        if i:
            cv2.line(image, (LEFT, y), (SIDE, y), shade, 1)
        cv2.line(image, (x, 0), (x, PLOT), shade, 1)
        if i % 10 == 0 and i:
            _write(image, f"{top * (100 - i) / 100:2.1f}", (4, y + 3))
            _write(image, str(max_batches * i // 100), (min(x, SIDE - 45), PLOT + 15))
    _write(image, "Loss", (10, 60), BLUE)
    _write(image, "Iteration number", (470, 990))
    _write(image, f"in cfg max_batches={max_batches}", (745, 990))
    return image
