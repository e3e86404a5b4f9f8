"""`detector demo` and video from Python, on small films whose objects are known."""

from __future__ import annotations

import http.server
import json
import re
import threading
import time
import urllib.request

import cv2
import numpy as np
import pytest
from small import spot_network, spot_picture

from darknetpy import Detector
from darknetpy.cli.main import main
from darknetpy.errors import ImageError, MissingFileError
from darknetpy.inference import video
from darknetpy.inference.video import FrameRate, Video, VideoFile, detect_video

FRAMES = 6
DEMO = ["detector", "demo", "obj.data", "spot.cfg", "spot.weights", "film.avi", "-dont_show", "-quiet"]
BLOCK = re.compile(r"^Objects:\n\n(.*?)\nFPS:(\d+\.\d) \t AVG_FPS:(\d+\.\d)$", re.M | re.S)


def film(path: str, count: int = FRAMES) -> None:
    """Motion JPEG, 128 x 128, 10 frames a second: a cat in one cell of the first row, another one each frame."""
    writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"MJPG"), 10, (128, 128))
    assert writer.isOpened()
    for i in range(count):
        writer.write(spot_picture({(i % 4, 0): 0, (1, 2): 1}))
    writer.release()


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(spot_network(tmp_path))
    film("film.avi")
    return tmp_path


@pytest.fixture
def detector(place):
    return Detector("spot.cfg", "spot.weights", "obj.names")


def run(capfd, words: list[str], status: int = 0) -> tuple[str, str]:
    capfd.readouterr()
    assert main(words) == status
    captured = capfd.readouterr()
    assert "Traceback" not in captured.err
    return captured.out, captured.err


def cats(found) -> list[float]:
    return [round(d.box[0], 3) for d in found if d.name == "cat"]


# ---------------------------------------------------------------------------------------------- from Python


@pytest.mark.parametrize("batch", [1, 4])
def test_every_frame_comes_once_and_in_order(detector, batch) -> None:
    with_video = Video("film.avi")
    frames = list(detect_video(detector, with_video, batch=batch))
    assert [frame.number for frame in frames] == list(range(1, FRAMES + 1))
    assert [cats(frame.found) for frame in frames] == [[0.125 + 0.25 * (i % 4)] for i in range(FRAMES)]
    assert frames[0].image.shape == (128, 128, 3)
    assert (with_video.size, with_video.fps, with_video.live) == ((128, 128), 10.0, False)


def test_a_letterboxed_frame(detector) -> None:
    detector.letter_box = True
    frame = spot_picture({(2, 1): 1})[32:96]
    prepared = detector.prepare_frame(frame)
    assert prepared.shape == (3, 64, 64)
    assert np.all(prepared[:, :16] == 0.5)


def test_a_frame_is_resized_as_opencv_does(detector) -> None:
    frame = np.random.default_rng(0).integers(0, 256, (50, 90, 3), dtype=np.uint8)
    expected = cv2.resize(frame, (64, 64))[:, :, ::-1].transpose(2, 0, 1) / np.float32(255)
    assert np.array_equal(detector.prepare_frame(frame), expected)


def test_leaving_early_ends_the_reading_thread(detector) -> None:
    film("long.avi", 60)
    before = threading.active_count()
    for _ in detect_video(detector, Video("long.avi")):
        break
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_an_error_in_the_reading_thread_is_raised(detector, monkeypatch) -> None:
    monkeypatch.setattr(detector, "prepare_frame", lambda frame: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(detect_video(detector, Video("film.avi")))


class Capture:
    """Stands for a stream: frames, then nothing, as often as it is opened."""

    def __init__(self, frames: int):
        self.left = frames

    def read(self):
        self.left -= 1
        return (True, spot_picture({(0, 0): 0})) if self.left >= 0 else (False, None)

    def get(self, key):
        return 0.0

    def release(self):
        pass


def test_a_stream_that_breaks_off_is_opened_again(detector, monkeypatch, caplog) -> None:
    captures = [Capture(2), Capture(0), Capture(3), *(Capture(0) for _ in range(video.ATTEMPTS))]
    opened = iter(captures)
    monkeypatch.setattr(Video, "_open", lambda self: next(opened))
    monkeypatch.setattr(video, "PAUSE", 0)
    stream = Video("rtsp://nowhere/")
    assert stream.live
    assert stream.fps == 25
    assert len(list(stream)) == 5
    assert caplog.text.count("Video-stream stopped!") == 2 + video.ATTEMPTS


def test_of_a_camera_only_the_newest_frame_waits(detector, monkeypatch) -> None:
    monkeypatch.setattr(Video, "_open", lambda self: Capture(50))
    number = 0
    for frame in detect_video(detector, Video(0)):
        number = frame.number
        time.sleep(0.02)
    assert 1 <= number < 50


def test_what_is_no_video_is_said(place) -> None:
    (place / "text.mp4").write_text("no film")
    with pytest.raises(ImageError, match=r"text\.mp4: is no video that OpenCV can read"):
        Video("text.mp4")
    with pytest.raises(MissingFileError, match=r"Couldn't open file: no\.mp4"):
        Video("no.mp4")
    with pytest.raises(ImageError, match="Couldn't connect to webcam 77"):
        Video("77")


def test_half_a_film_gives_the_frames_it_has(detector, place) -> None:
    data = (place / "film.avi").read_bytes()
    (place / "half.avi").write_bytes(data[: len(data) * 2 // 3])
    assert 1 <= len(list(detect_video(detector, Video("half.avi")))) < FRAMES


@pytest.mark.parametrize("name", ["a.avi", "b.mp4", "c.mkv", "sub/d.avi"])
def test_films_are_written_and_read_back(place, name) -> None:
    out = VideoFile(name, 10, (128, 128))
    for i in range(3):
        out.write(np.full((128, 128, 3), 80 * i, np.uint8))
    out.write(np.full((64, 64, 3), 240, np.uint8))  # another size is brought to the film's
    out.close()
    back = Video(name)
    frames = list(back)
    assert [frame.shape for frame in frames] == [(128, 128, 3)] * 4
    assert [round(frame.mean() / 80) for frame in frames] == [0, 1, 2, 3]


def test_frame_rates(monkeypatch) -> None:
    """Each frame takes 0.1 s: the running average tends to 10, the other one is known after three seconds."""
    clock = iter(np.arange(0, 100, 0.1))
    monkeypatch.setattr(video.time, "perf_counter", lambda: float(next(clock)))
    rate = FrameRate()
    rate.tick()
    assert rate.fps == pytest.approx(1.0)
    rate.tick()
    assert (rate.fps, rate.average) == (pytest.approx(1.9), 0.0)
    for _ in range(40):
        rate.tick()
    assert rate.fps == pytest.approx(10, abs=0.2)
    assert rate.average == pytest.approx(10)


# ---------------------------------------------------------------------------------------------- detector demo


def test_darknets_lines(place, capfd) -> None:
    out, _ = run(capfd, [w for w in DEMO if w != "-quiet"])
    assert out.startswith("Demo\nmini_batch = 1, ")
    assert "\nvideo file: film.avi\nVideo stream: 128 x 128 \nObjects:\n\n" in out
    assert out.endswith("\nStream closed.\ninput video stream closed. \n")
    assert "\x1b" not in out  # the screen is cleared on a terminal only
    blocks = BLOCK.findall(out)
    assert len(blocks) == FRAMES
    assert all(block[0] == "dog: 100% \ncat: 100% \n" for block in blocks)
    assert blocks[0][2] == "0.0"


def test_ext_output_is_inside_the_frame(place, capfd) -> None:
    out, _ = run(capfd, [*DEMO, "-ext_output", "-set", "yolo.anchors=24,24"])
    first = BLOCK.findall(out)[0][0]
    assert first == (
        "dog: 100% \t(left_x:   24   top_y:   56   width:   48   height:   48)\n"
        "cat: 100% \t(left_x:    0   top_y:    0   width:   48   height:   48)\n"
    )


def test_results_are_written_as_video_json_and_frames(place, capfd) -> None:
    words = ["-out_filename", "res.avi", "-json_file_output", "out.json", "-prefix", "frames/img", "-i", "0"]
    out, _ = run(capfd, [*DEMO, *words])
    assert out.count("\n cvWriteFrame \n") == FRAMES
    assert out.endswith(
        "Stream closed.\n closing... closed!output_video_writer closed. \ninput video stream closed. \n"
    )
    written = Video("res.avi")
    frames = list(written)
    assert len(frames) == FRAMES
    assert written.fps == 10
    frames_json = json.loads((place / "out.json").read_text())
    assert [frame["frame_id"] for frame in frames_json] == list(range(1, FRAMES + 1))
    assert list(frames_json[0]) == ["frame_id", "objects"]
    assert sorted(o["name"] for o in frames_json[0]["objects"]) == ["cat", "dog"]
    names = sorted(path.name for path in (place / "frames").iterdir())
    assert names == [f"img_{i:08d}.jpg" for i in range(1, FRAMES + 1)]
    drawn, plain = cv2.imread("frames/img_00000001.jpg"), spot_picture({(0, 0): 0, (1, 2): 1})
    assert np.abs(drawn.astype(int) - plain).max() > 100


def test_benchmark_and_dontdraw_print_no_objects(place, capfd) -> None:
    out, _ = run(capfd, [*DEMO, "-dontdraw_bbox", "-avgframes", "1", "-s", "1"])
    assert [block[0] for block in BLOCK.findall(out)] == [""] * FRAMES
    out, _ = run(capfd, [*DEMO, "-benchmark", "-time_limit_sec", "1"])
    assert len(BLOCK.findall(out)) > FRAMES
    assert " start_time_lim = " in out
    assert {block[0] for block in BLOCK.findall(out)} == {""}


def test_ports_serve_while_it_plays(place, capfd, monkeypatch) -> None:
    """A listener on each port gets frames; bound where `-bind` says."""
    from darknetpy.inference import streams

    opened, got = [], {}
    create = streams.Stream.__init__

    def recording(self, port, bind=None):
        create(self, 0, bind)
        threading.Thread(target=fetch, args=(type(self).__name__, self.port), daemon=True).start()
        opened.append((type(self).__name__, port, self.server_address[0]))

    def fetch(kind, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            got[kind] = answer.read()

    monkeypatch.setattr(streams.Stream, "__init__", recording)
    words = ["-json_port", "8070", "-mjpeg_port", "8090", "-bind", "127.0.0.1", "-time_limit_sec", "1", "-benchmark"]
    out, error = run(capfd, [*DEMO, *words])
    assert opened == [("JsonStream", 8070, "127.0.0.1"), ("MjpegStream", 8090, "127.0.0.1")]
    assert error.count("listening on 127.0.0.1") == 2
    assert out.count(" JSON-stream sent. \n") == out.count(" MJPEG-stream sent. \n") == out.count("Objects:")
    deadline = time.monotonic() + 5
    while len(got) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    frames = json.loads(got["JsonStream"])
    assert [frame["frame_id"] for frame in frames] == sorted(frame["frame_id"] for frame in frames)
    assert {o["name"] for o in frames[0]["objects"]} == {"cat", "dog"}
    size = int(re.search(rb"Content-Length: (\d+)\r\n\r\n", got["MjpegStream"])[1])
    body = got["MjpegStream"].split(b"\r\n\r\n", 1)[1]
    picture = cv2.imdecode(np.frombuffer(body[:size], np.uint8), cv2.IMREAD_COLOR)
    assert picture.shape == (128, 128, 3)


def test_objects_are_posted(place, capfd) -> None:
    got = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["Content-Length"])
            got.append((self.path, self.headers["Content-Type"], self.rfile.read(length).decode()))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        run(capfd, [*DEMO, "-http_post_host", f"127.0.0.1:{server.server_port}/hook"])
        assert len(got) == FRAMES
        path, kind, body = got[0]
        assert (path, kind) == ("/hook", "text/plain")
        day = r"[A-Z]\w+day \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
        assert re.fullmatch(rf"(?:cat, id: 0\n|dog, id: 1\n){{2}}\ntime:\n{day}\nvideosource:\nfilm\.avi", body)
        got.clear()
        run(capfd, [*DEMO, "-http_post_host", f"127.0.0.1:{server.server_port}/hook", "-time_limit_sec", "60"])
        assert len(got) == 1
    finally:
        server.shutdown()
        server.server_close()
    _, error = run(capfd, [*DEMO, "-http_post_host", f"127.0.0.1:{server.server_port}/hook"])
    assert error.count("the objects cannot be posted") == 1


def test_keys_in_the_window(place, capfd, monkeypatch) -> None:
    from darknetpy import images

    shown, keys = [], iter([-1, 13, 27])
    monkeypatch.setattr(images, "can_show", lambda: True)
    monkeypatch.setattr(images, "show", lambda title, image, wait: shown.append(title) or next(keys))
    out, _ = run(capfd, [w for w in DEMO if w != "-dont_show"])
    assert (shown, len(BLOCK.findall(out))) == (["Demo", "Demo"], FRAMES)  # ENTER left 60 frames out
    keys = iter([27])
    out, _ = run(capfd, [w for w in DEMO if w != "-dont_show"])
    assert len(BLOCK.findall(out)) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["missing.mp4"], "Couldn't open file: missing.mp4"),
        (["text.mp4"], "text.mp4: is no video that OpenCV can read"),
        (["-c", "77"], "Couldn't connect to webcam 77"),
        (["film.avi", "-out_filename", "film.avi/x.avi"], "film.avi: the folder cannot be written"),
        (["film.avi", "-json_port", "99999"], "port 99999 of this machine cannot be listened on"),
    ],
)
def test_a_demo_that_cannot_begin_ends(place, capfd, words, sentence) -> None:
    (place / "text.mp4").write_text("no film")
    _, error = run(capfd, ["detector", "demo", "obj.data", "spot.cfg", "spot.weights", *words, "-dont_show"], status=1)
    assert sentence in error


def test_classes_must_agree(place, capfd) -> None:
    (place / "obj.data").write_text("classes=3\nnames=obj.names\n")
    _, error = run(capfd, DEMO, status=1)
    assert "Parameters don't match: in cfg-file classes=2, in data-file classes=3" in error
