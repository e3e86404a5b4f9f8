"""Frames over HTTP: one port, many listeners, any path (Darknet: `http_stream.cpp`).

stream = JsonStream(8070)
stream.send(b'{"frame_id":1}')
stream.close()

A listener gets Darknet's header and then every frame from the moment it connected. One that reads too slowly misses
frames; it never holds up the sender.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import socket
import socketserver
import threading
import time
from collections.abc import Sequence

from darknetpy.errors import UsageError, warn

EVERYWHERE = ""
"""Listen on all interfaces, as Darknet does."""
MAX_LISTENERS = 100
WAITING = 32
"""Frames kept for a listener that is behind."""
PATIENCE = 10.0
"""Seconds after which a listener that takes nothing is dropped."""
_HEADER = (
    "HTTP/1.0 200 OK\r\nServer: Mozarella/2.2\r\nAccept-Range: bytes\r\nConnection: close\r\nMax-Age: 0\r\n"
    "Expires: 0\r\nCache-Control: no-cache, private\r\nPragma: no-cache\r\nContent-Type: {}\r\n\r\n"
)
_END = None


class Stream(socketserver.ThreadingTCPServer):
    """A port that sends each frame to all who listen.

    Args:
        port: 0 takes a free one (`self.port` tells which).
        bind: address to listen on; None: the environment's DARKNETPY_BIND, else all interfaces.

    Raises UsageError where the port cannot be had.
    """

    content_type = "application/octet-stream"
    first = between = last = b""
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, bind: str | None = None):
        address = os.environ.get("DARKNETPY_BIND", EVERYWHERE) if bind is None else bind
        self._listeners: set[queue.Queue] = set()
        self._lock = threading.Lock()
        if ":" in address:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((address, port), _Listener)
        except (OSError, OverflowError) as error:
            raise UsageError(f"port {port} of {address or 'this machine'} cannot be listened on: {error}") from error
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()
        warn(f"{type(self).__name__}: listening on {address or 'all interfaces'}, port {self.port}")

    @property
    def listeners(self) -> int:
        """How many there are."""
        return len(self._listeners)

    def send(self, frame: bytes) -> int:
        """Hand a frame to all listeners; returns how many there are."""
        with self._lock:
            for waiting in self._listeners:
                if waiting.full():
                    with contextlib.suppress(queue.Empty):
                        waiting.get_nowait()
                waiting.put_nowait(frame)
            return len(self._listeners)

    def join(self) -> queue.Queue | None:
        """A new listener's queue of frames; None where there are too many."""
        with self._lock:
            if len(self._listeners) >= MAX_LISTENERS:
                return None
            self._listeners.add(waiting := queue.Queue(WAITING))
            return waiting

    def leave(self, waiting: queue.Queue) -> None:
        with self._lock:
            self._listeners.discard(waiting)

    def close(self) -> None:
        """Say goodbye to all listeners and free the port."""
        self.shutdown()
        self.send(_END)
        for _ in range(100):
            with self._lock:
                if not self._listeners:
                    break
            threading.Event().wait(0.02)
        self.server_close()

    def handle_error(self, request, client_address) -> None:
        """A listener that goes away is no error of ours."""


class _Listener(socketserver.BaseRequestHandler):
    """One connection. What it asks is not read before the end: every request has the same answer."""

    server: Stream

    def handle(self) -> None:
        waiting = self.server.join()
        if waiting is None:
            return
        self.request.settimeout(PATIENCE)
        try:
            self.request.sendall(_HEADER.format(self.server.content_type).encode())
            before = self.server.first
            while (frame := waiting.get()) is not _END:
                self.request.sendall(before + frame)
                before = self.server.between
            self.request.sendall((self.server.first if before is self.server.first else b"") + self.server.last)
            self._hang_up()
        except OSError:  # gone, or too slow
            pass
        finally:
            self.server.leave(waiting)

    def _hang_up(self) -> None:
        """End our side and swallow the request, so that the last bytes are not lost to a reset."""
        self.request.shutdown(socket.SHUT_WR)
        self.request.settimeout(0.5)
        while self.request.recv(65536):
            pass


class JsonStream(Stream):
    """One JSON array without end; each frame is an object of it."""

    content_type = "application/json"
    first, between, last = b"[\n", b", \n", b"\n]"


class MjpegStream(Stream):
    """Motion JPEG for browsers; each frame is the bytes of a JPEG."""

    content_type = "multipart/x-mixed-replace; boundary=mjpegstream"

    def send(self, frame: bytes | None) -> int:
        if frame is not _END:
            part = f"--mjpegstream\r\nContent-Type: image/jpeg\r\nContent-Length: {len(frame)}\r\n\r\n"
            frame = part.encode() + frame
        return super().send(frame)


class Poster:
    """Sends a list of found objects to a web server (Darknet: `-http_post_host`), without holding up the sender.

    Args:
        address: `host/path` or `host:port/path`; port 80 where none is given.
        source: what is named as the video.
        once: only the first list is sent.
    """

    TIMEOUT = 3.0

    def __init__(self, address: str, source: str, once: bool = False):
        host, slash, path = address.removeprefix("http://").partition("/")
        self._host, self._path, self._source, self._once = host, slash + path or "/", source, once
        self._waiting: queue.Queue = queue.Queue(WAITING)
        self._failed = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def send(self, objects: Sequence[tuple[str, int]]) -> None:
        """(name, class) of each box of a frame; a frame without any is not sent, nor one while too many wait."""
        if not objects or self._once is None:
            return
        if self._once:
            self._once = None
        lines = "".join(f"{name}, id: {class_id}\n" for name, class_id in objects)
        now = time.strftime("%A %Y-%m-%d %H:%M:%S")
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(f"{lines}\ntime:\n{now}\nvideosource:\n{self._source}")

    def _work(self) -> None:
        while (text := self._waiting.get()) is not _END:
            try:
                connection = http.client.HTTPConnection(self._host, timeout=self.TIMEOUT)
                connection.request("POST", self._path, text.encode("utf-8", "replace"), {"Content-Type": "text/plain"})
                connection.getresponse().read(1)
                connection.close()
            except (OSError, http.client.HTTPException, ValueError) as error:
                if not self._failed:
                    warn(f"{self._host}{self._path}: the objects cannot be posted: {error}")
                self._failed = True

    def close(self) -> None:
        """Wait for what is on its way."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(_END, timeout=self.TIMEOUT)
        self._thread.join(2 * self.TIMEOUT)
