"""Video: files, cameras and streams through a detector, frame by frame (Darknet: `demo.c`).

for frame in detect_video(detector, Video("test.mp4")):
    print(frame.number, frame.found)
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from darknetpy.detections import Detections
from darknetpy.errors import ImageError, warn
from darknetpy.files import video_source, writable_folder
from darknetpy.inference.detector import HIER, NMS, THRESH, Detector

AHEAD = 8
"""Frames of a file that are decoded before they are needed."""
ATTEMPTS, PAUSE = 5, 1.0
"""How often, and after how many seconds, a stream that broke off is opened again."""
TIMEOUT = 10_000
"""Milliseconds to wait for a stream."""
DEFAULT_FPS = 25.0
_CODECS = {".mp4": "mp4v", ".m4v": "mp4v", ".mov": "mp4v"}
_CODEC, _ANYWHERE = "DIVX", "MJPG"


@dataclass
class Frame:
    """`number` from 1, `image` uint8 (H, W, 3) BGR as OpenCV reads it, `found` relative to it."""

    number: int
    image: np.ndarray
    found: Detections


class Video:
    """An opened source of frames. Frames of a file all come, in order; of what is live only the newest waits.

    Args:
        source: a path, a camera's index (a number or its text), a URL or a GStreamer pipeline.
        size: (width, height) to ask a camera for; fps: its rate.

    Raises MissingFileError, or ImageError where OpenCV cannot open it or it has no first frame.
    """

    def __init__(self, source: str | int, size: tuple[int, int] | None = None, fps: float | None = None):
        self.source = source = video_source(source) if isinstance(source, str) else source
        self._wanted = {cv2.CAP_PROP_FPS: fps} if fps else {}
        if size:
            self._wanted |= {cv2.CAP_PROP_FRAME_WIDTH: size[0], cv2.CAP_PROP_FRAME_HEIGHT: size[1]}
        self._capture = self._open()
        self._first = self._read()
        if self._first is None:
            self._capture.release()
            raise ImageError(self._sentence())
        height, width = self._first.shape[:2]
        self.size = (width, height)
        rate = self._capture.get(cv2.CAP_PROP_FPS)
        self.fps = rate if 0 < rate < 1000 else DEFAULT_FPS
        self.live = isinstance(source, int) or "://" in source or "!" in source
        self._endless = self.live and not self._capture.get(cv2.CAP_PROP_FRAME_COUNT) > 0

    def _open(self) -> cv2.VideoCapture:
        if isinstance(self.source, str) and "!" in self.source and not os.path.exists(self.source):
            return cv2.VideoCapture(self.source, cv2.CAP_GSTREAMER)
        capture = cv2.VideoCapture()
        if isinstance(self.source, str) and "://" in self.source:
            limits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, TIMEOUT, cv2.CAP_PROP_READ_TIMEOUT_MSEC, TIMEOUT]
            capture.open(self.source, cv2.CAP_FFMPEG, limits)
        if not capture.isOpened():
            capture.open(self.source)
        for key, value in self._wanted.items():
            capture.set(key, value)
        return capture

    def _sentence(self) -> str:
        if isinstance(self.source, int):
            return f"Couldn't connect to webcam {self.source}"
        what = "stream" if "://" in self.source or "!" in self.source else "video"
        return f"{self.source}: is no {what} that OpenCV can read"

    def _read(self) -> np.ndarray | None:
        try:
            _, frame = self._capture.read()
        except cv2.error as error:
            warn(f"{self.source}: a frame cannot be decoded: {error.err}")
            return None
        if frame is None or not frame.size:
            return None
        return cv2.cvtColor(frame, cv2.COLOR_GRAY2BGR) if frame.ndim == 2 or frame.shape[2] == 1 else frame

    def read(self) -> np.ndarray | None:
        """The next frame, uint8 (H, W, 3) BGR; None at the end. A stream that broke off is opened again."""
        frame, self._first = self._first, None
        if frame is None:
            frame = self._read()
        attempts = ATTEMPTS if self._endless and isinstance(self.source, str) else 0
        for attempt in range(attempts if frame is None else 0):
            warn(f"{self.source}: Video-stream stopped! Connecting again ({attempt + 1} of {attempts})")
            self._capture.release()
            time.sleep(PAUSE)
            self._capture = self._open()
            if (frame := self._read()) is not None:
                break
        return frame

    def __iter__(self) -> Iterator[np.ndarray]:
        while (frame := self.read()) is not None:
            yield frame

    def close(self) -> None:
        self._capture.release()


def detect_video(
    detector: Detector,
    video: Video,
    thresh: float = THRESH,
    nms: float = NMS,
    hier: float = HIER,
    batch: int = 1,
    repeat: bool = False,
) -> Iterator[Frame]:
    """Detections in every frame, in order. Decoding and resizing go on in a thread of their own.

    Args:
        batch: frames of a file that go through the network at once.
        repeat: the first frame again and again, to measure the network alone.
    """
    number = 0
    for frames in _groups(detector, video, 1 if video.live else max(1, batch), repeat):
        pictures = torch.from_numpy(np.stack([prepared for _, prepared in frames]))
        sizes = [(image.shape[1], image.shape[0]) for image, _ in frames]
        for (image, _), found in zip(frames, detector.predict(pictures, sizes, thresh, nms, hier), strict=True):
            number += 1
            yield Frame(number, image, found)


def _groups(detector: Detector, video: Video, count: int, repeat: bool) -> Iterator[list]:
    """Up to `count` frames with their network input, as many as are there."""
    if repeat:
        frame = video.read()
        prepared = detector.prepare_frame(frame)
        while True:
            yield [(frame.copy(), prepared)]
    waiting: queue.Queue = queue.Queue(1 if video.live else AHEAD)
    stop = threading.Event()
    thread = threading.Thread(target=_fill, args=(waiting, stop, detector, video), daemon=True)
    thread.start()
    try:
        item = waiting.get()
        while item is not None:
            group = []
            while item is not None:
                if isinstance(item, Exception):
                    raise item
                group.append(item)
                if len(group) == count or waiting.empty():
                    break
                item = waiting.get()
            yield group
            if item is not None:
                item = waiting.get()
    finally:
        stop.set()
        thread.join(TIMEOUT / 1000)


def _fill(waiting: queue.Queue, stop: threading.Event, detector: Detector, video: Video) -> None:
    """The reading thread: frames, then None; an error is handed over in place of a frame."""
    try:
        for frame in video:
            _put(waiting, (frame, detector.prepare_frame(frame)), stop, video.live)
            if stop.is_set():
                return
        _put(waiting, None, stop, False)
    except Exception as error:
        _put(waiting, error, stop, False)


def _put(waiting: queue.Queue, item, stop: threading.Event, newest: bool) -> None:
    """Wait for room; with `newest` take the place of what waits."""
    while not stop.is_set():
        try:
            waiting.put(item, timeout=0 if newest else 0.1)
            return
        except queue.Full:
            if newest:
                with contextlib.suppress(queue.Empty):
                    waiting.get_nowait()


class VideoFile:
    """A video that is written frame by frame; the codec goes by the suffix, DIVX as in Darknet where it may.

    Raises ImageError where the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike, fps: float, size: tuple[int, int]):
        self.path, self.size = os.fspath(path), size
        writable_folder(os.path.dirname(self.path))
        for codec in (_CODECS.get(os.path.splitext(self.path)[1].lower(), _CODEC), _ANYWHERE):
            self._writer = cv2.VideoWriter(self.path, cv2.VideoWriter.fourcc(*codec), fps, size)
            if self._writer.isOpened():
                return
        raise ImageError(f"{self.path}: OpenCV cannot write such a video", remedy="use a name that ends in .avi")

    def write(self, image: np.ndarray) -> None:
        """Add uint8 (H, W, 3) BGR; another size than the video's is brought to it."""
        if (image.shape[1], image.shape[0]) != self.size:
            image = cv2.resize(image, self.size)
        self._writer.write(image)

    def close(self) -> None:
        self._writer.release()


class FrameRate:
    """Darknet's two numbers: a running average of single frames, and frames a second of the last three seconds."""

    WINDOW = 3.0

    def __init__(self):
        self.fps = self.average = 0.0
        self._before = self._began = time.perf_counter()
        self._frames = 0

    def tick(self) -> None:
        """Count a frame."""
        now = time.perf_counter()
        self.fps = 0.9 * self.fps + 0.1 / max(now - self._before, 1e-9)
        self._before = now
        self._frames += 1
        if now - self._began >= self.WINDOW:
            self.average, self._frames, self._began = self._frames / (now - self._began), 0, now
