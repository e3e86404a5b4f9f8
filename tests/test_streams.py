"""Frames over HTTP, as browsers and scripts read them."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request

import pytest

from darknetpy.errors import UsageError
from darknetpy.inference import streams
from darknetpy.inference.streams import JsonStream, MjpegStream

HEADER = (
    b"HTTP/1.0 200 OK\r\nServer: Mozarella/2.2\r\nAccept-Range: bytes\r\nConnection: close\r\nMax-Age: 0\r\n"
    b"Expires: 0\r\nCache-Control: no-cache, private\r\nPragma: no-cache\r\nContent-Type: %b\r\n\r\n"
)
"""As captured from Darknet."""


@pytest.fixture
def opened():
    streams_, sockets = [], []

    def make(kind):
        streams_.append(kind(0, "127.0.0.1"))
        return streams_[-1]

    def connect(stream, request: bytes = b""):
        before = len(stream._listeners)
        sockets.append(socket.create_connection(("127.0.0.1", stream.port), timeout=5))
        sockets[-1].sendall(request)
        wait(lambda: len(stream._listeners) > before)
        return sockets[-1]

    make.connect = connect
    yield make
    for one in sockets:
        one.close()
    for stream in streams_:
        stream.close()


def wait(condition) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def rest(connection) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_json_is_one_document_for_each_listener(opened) -> None:
    stream = opened(JsonStream)
    stream.send(b'{"frame_id":1}')
    early = opened.connect(stream)  # says nothing, gets all
    stream.send(b'{"frame_id":2}')
    late = opened.connect(stream, b"GET /any/path HTTP/1.1\r\nHost: x\r\n\r\n")
    assert stream.send(b'{"frame_id":3}') == 2
    stream.close()
    header = HEADER % b"application/json"
    assert rest(early) == header + b'[\n{"frame_id":2}, \n{"frame_id":3}\n]'
    assert rest(late) == header + b'[\n{"frame_id":3}\n]'


def test_json_without_frames_is_an_empty_array(opened) -> None:
    stream = opened(JsonStream)
    listener = opened.connect(stream)
    stream.close()
    assert json.loads(rest(listener).split(b"\r\n\r\n")[1]) == []


def test_mjpeg_parts(opened) -> None:
    stream = opened(MjpegStream)
    listener = opened.connect(stream, b"GET / HTTP/1.0\r\n\r\n")
    stream.send(b"first")
    stream.send(b"second one")
    stream.close()
    part = b"--mjpegstream\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%b"
    expected = HEADER % b"multipart/x-mixed-replace; boundary=mjpegstream"
    assert rest(listener) == expected + part % (5, b"first") + part % (10, b"second one")


def test_a_browser_understands(opened) -> None:
    stream = opened(JsonStream)
    answer = urllib.request.urlopen(f"http://127.0.0.1:{stream.port}/", timeout=5)
    wait(lambda: stream._listeners)
    stream.send(b'{"a":1}')
    stream.close()
    assert answer.headers["Content-Type"] == "application/json"
    assert json.loads(answer.read()) == [{"a": 1}]


def test_a_listener_who_leaves_or_sleeps_holds_up_nobody(opened, monkeypatch) -> None:
    monkeypatch.setattr(streams, "PATIENCE", 0.2)
    stream = opened(JsonStream)
    opened.connect(stream)  # never reads
    opened.connect(stream).close()
    awake = opened.connect(stream, b"GET / HTTP/1.0\r\n\r\n")
    frame = b'{"x":"%b"}' % (b"." * 1_000_000)
    began = time.monotonic()
    for _ in range(60):
        stream.send(frame)
    assert time.monotonic() - began < 1
    reading = threading.Thread(target=rest, args=(awake,), daemon=True)
    reading.start()
    wait(lambda: len(stream._listeners) == 1)
    assert stream.send(b"{}") == 1
    stream.close()
    reading.join(5)


def test_too_many_listeners_are_turned_away(opened, monkeypatch) -> None:
    monkeypatch.setattr(streams, "MAX_LISTENERS", 1)
    stream = opened(JsonStream)
    opened.connect(stream)
    with socket.create_connection(("127.0.0.1", stream.port), timeout=5) as other:
        assert rest(other) == b""


def test_a_port_that_is_taken_is_said(opened) -> None:
    stream = opened(JsonStream)
    with pytest.raises(UsageError, match=f"port {stream.port} of 127.0.0.1 cannot be listened on"):
        MjpegStream(stream.port, "127.0.0.1")
    with pytest.raises(UsageError, match="port 70000 of"):
        JsonStream(70000)


def test_all_interfaces_unless_told_otherwise(monkeypatch, caplog) -> None:
    monkeypatch.delenv("DARKNETPY_BIND", raising=False)
    for given, variable, address in ((None, None, "0.0.0.0"), (None, "127.0.0.1", "127.0.0.1"), ("", None, "0.0.0.0")):
        if variable:
            monkeypatch.setenv("DARKNETPY_BIND", variable)
        stream = JsonStream(0, given)
        stream.close()
        assert stream.server_address[0] == address
