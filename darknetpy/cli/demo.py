"""`detector demo`: a video file, a camera or a stream, shown, written and sent on."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, closing

from darknetpy.cli.common import lay_out, load_weights, names_for, pick_device, show_table
from darknetpy.cli.parse import Line, files_of
from darknetpy.config.datafile import DataConfig
from darknetpy.data.sets import open_data
from darknetpy.errors import DataError, UsageError
from darknetpy.files import video_source, writable_folder

TITLE = "Demo"
CLEAR = "\x1b[H\x1b[J"
QUALITY = 40
"""JPEG quality of `-mjpeg_port`."""
_NEXT_SKIP = {0: 60, 60: 4, 4: 0}
"""What ENTER does to the number of frames that the window leaves out."""


def demo(line: Line, words: list[str]) -> int:
    """`detector demo DATA CFG WEIGHTS [VIDEO]`; without a video the camera that `-c` names."""
    files = files_of(words, ["data", "cfg", "weights", "video"])
    if "cfg" not in files or not ("data" in files or "names" in files):
        raise UsageError("usage: darknetpy detector demo [data] [cfg] [weights (optional)] [video (optional)]")
    strict = bool(line.get("strict"))
    data = None if "names" in files else open_data(files["data"], strict)
    names = names_for(files, data)
    structure = lay_out(files["cfg"], line)
    _check_classes(structure, files["cfg"], data)
    word = files.get("video")
    source = video_source(word) if word is not None else line.get("c", 0)
    print(TITLE)
    show_table(structure, line)

    from darknetpy.inference import Detector
    from darknetpy.inference.video import Video
    from darknetpy.network import Network

    network = Network.from_structure(structure, pick_device(line))
    load_weights(network, files.get("weights"))
    detector = Detector(network, names=names, letter_box=True if line.get("letter_box") else None, strict=strict)
    print(f"Webcam index: {source}" if isinstance(source, int) else f"video file: {source}")
    sizes = (line.get("w"), line.values.get("h"))
    with closing(Video(source, sizes if all(sizes) else None, line.get("fps"))) as video:
        print("Video stream: {} x {} ".format(*video.size), flush=True)
        _play(line, detector, video)
    print("input video stream closed. ")
    return 0


def _check_classes(structure, cfg: str, data: DataConfig | None) -> None:
    """Darknet's sentence where `.data` and cfg disagree."""
    classes = next((head.options.classes for head in reversed(structure.heads)), None)
    if data is not None and data.has("classes") and classes not in (None, data.number("classes", 20)):
        raise DataError(
            f"Parameters don't match: in cfg-file classes={classes}, in data-file classes={data.number('classes', 20)}",
            file=data.path,
            remedy=f"make them equal in it and in {cfg}",
        )


def _play(line: Line, detector, video) -> None:
    from darknetpy.images import draw_frame
    from darknetpy.inference.video import FrameRate, detect_video
    from darknetpy.inference.writers import frame_lines

    benchmark, limit = bool(line.get("benchmark")), line.get("time_limit_sec", 0)
    plain = benchmark or bool(line.get("dontdraw_bbox"))
    clear = CLEAR if sys.stdout.isatty() else ""
    thresh = line.get("thresh", 0.25)
    with ExitStack() as stack:
        sinks = Sinks(line, video, stack)
        rate, began = FrameRate(), time.perf_counter()
        frames = detect_video(
            detector, video, thresh, line.get("nms", 0.45), line.get("hier"), line.get("batch", 1), benchmark
        )
        stack.callback(frames.close)
        for frame in frames:
            print(f"{clear}Objects:\n")
            sinks.numbers(frame)
            for text in () if plain else frame_lines(frame.found, bool(line.get("ext_output"))):
                print(text)
            if not plain:
                draw_frame(frame.image, frame.found)
            rate.tick()
            print(f"\nFPS:{rate.fps:.1f} \t AVG_FPS:{rate.average:.1f}")
            wanted = sinks.picture(frame)
            sys.stdout.flush()
            spent = time.perf_counter() - began
            if limit and spent > limit:
                print(f" start_time_lim = {began:f}, time spent = {spent:f} ")
                break
            if not wanted:
                break
        else:
            print("Stream closed.")


class Sinks:
    """Where each frame goes, by the flags of the command line; `stack` closes them all."""

    def __init__(self, line: Line, video, stack: ExitStack):
        from darknetpy.images import can_show
        from darknetpy.inference.streams import JsonStream, MjpegStream, Poster
        from darknetpy.inference.video import VideoFile
        from darknetpy.inference.writers import JsonWriter

        def opened(flag: str, make):
            value = line.get(flag)
            return stack.enter_context(closing(make(value))) if value not in (None, "", -1) else None

        bind, source = line.get("bind"), str(video.source)
        self.prefix = line.get("prefix")
        if self.prefix:
            writable_folder(os.path.dirname(self.prefix))
        path = line.get("json_file_output")
        self.json_file = stack.enter_context(JsonWriter(path)) if path else None
        self.json_port = opened("json_port", lambda port: JsonStream(port, bind))
        self.mjpeg_port = opened("mjpeg_port", lambda port: MjpegStream(port, bind))
        self.poster = opened(
            "http_post_host", lambda host: Poster(host, source, once=line.get("time_limit_sec", 0) > 0)
        )
        self.video = opened("out_filename", lambda path: VideoFile(path, video.fps, video.size))
        if self.video is not None:
            stack.callback(print, " closing... closed!output_video_writer closed. ")
        hidden = line.get("dont_show") or line.get("benchmark") or self.prefix
        self.window = not hidden and can_show()
        self.skip = self.left = max(0, line.get("s", 0))

    def numbers(self, frame) -> None:
        """Send a frame's detections."""
        from darknetpy.inference.writers import json_frame

        if self.json_file is not None:
            self.json_file.write(frame.found)
        if self.json_port is not None:
            self.json_port.send(json_frame(frame.found, frame.number).encode("utf-8", "backslashreplace"))
            print(" JSON-stream sent. ")
        if self.poster is not None:
            self.poster.send([(d.name, d.class_id) for d in frame.found])

    def picture(self, frame) -> bool:
        """Send the drawn picture; False where a key in the window asks for the end."""
        from darknetpy.images import encode_image, save_image

        picture = frame.image[:, :, ::-1]
        if self.prefix:
            save_image(f"{self.prefix}_{frame.number:08d}.jpg", picture, 95)
        if self.mjpeg_port is not None:
            self.mjpeg_port.send(encode_image(picture, ".jpg", QUALITY))
            print(" MJPEG-stream sent. ")
        if self.video is not None:
            self.video.write(frame.image)
            print("\n cvWriteFrame ")
        return not self.window or self._shown(picture)

    def _shown(self, picture) -> bool:
        from darknetpy.images import show
        from darknetpy.images.window import ENTER, ESCAPE

        self.left -= 1
        if self.left >= 0:
            return True
        key = show(TITLE, picture, wait=False)
        if key in ENTER:
            self.skip = _NEXT_SKIP.get(self.skip, 0)
        self.left = self.skip
        return key != ESCAPE
