"""The command line as people type it: words and flags, prompt and lists, files, streams and exit statuses."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import cv2
import pytest
from small import CERTAIN, data_set, spot_network, spot_picture

from darknetpy import __version__, assets
from darknetpy.cli import detect
from darknetpy.cli.commands import COMMANDS, find
from darknetpy.cli.flags import FLAGS, WITHOUT_EFFECT
from darknetpy.cli.main import main
from darknetpy.cli.parse import files_of, parse
from darknetpy.errors import UsageError

TYPED = """
./darknet detector train data/obj.data cfg/yolo-obj.cfg yolov4.conv.137 -dont_show -map
./darknet detector train data/obj.data cfg/yolov3_training.cfg darknet53.conv.74 -dont_show
./darknet detector train data/obj.data cfg/yolov4-obj.cfg backup/yolov4-obj_last.weights -dont_show -map
./darknet detector train data/obj.data cfg/custom-yolov4-tiny-obj.cfg yolov4-tiny.conv.29 -dont_show -map -clear
./darknet detector train cfg/voc.data cfg/yolov3-voc.cfg darknet53.conv.74 -gpus 0,1,3
./darknet detector train data/persons.data cfg/yolov4-persons.cfg y.conv.137 -dont_show -mjpeg_port 8090 -map
darknet detector -map -dont_show train animals.data animals.cfg
darknet detector train -map -dont_show x.data x.cfg
darknet detector -map -dont_show -verbose -nocolor train LegoGears.data LegoGears.cfg
./darknet detector train data/obj.data yolo-obj.cfg yolov4.conv.137 -show_imgs
./darknet detector train cfg/m.data cfg/m.cfg yolov4.conv.137 -dont_show -map -json_port 1000 -mjpeg_port 1001
darknet detector train -map -dont_show x.data x.cfg -clear darknet53.conv.74
./darknet detect cfg/yolov3.cfg yolov3.weights data/dog.jpg
./darknet detect cfg/yolov3.cfg yolov3.weights -thresh 0.7
./darknet detect cfg/yolov3.cfg yolov3.weights data/dog.jpg -thresh 0
./darknet detector test cfg/coco.data cfg/yolov4.cfg yolov4.weights data/dog.jpg -i 0 -thresh 0.25
./darknet detector test cfg/coco.data cfg/yolov4-tiny.cfg yolov4-tiny.weights test/traffic.jpg -dont_show -ext_output
./darknet detector test cfg/coco.data cfg/yolov4.cfg yolov4.weights -ext_output -dont_show -out result.json
./darknet detector test cfg/coco.data cfg/yolov4.cfg yolov4.weights -dont_show -ext_output
./darknet detector test cfg/coco.data cfg/yolov4.cfg yolov4.weights -thresh 0.25 -dont_show -save_labels
./darknet detector test thin/t.data thin/t.cfg thin/t.weights img.jpg -out jsonfile.txt
./darknet detector test cfg/combine9k.data cfg/yolo9000.cfg yolo9000.weights data/dog.jpg -hier 0.3
./darknet detector test cfg/coco.data cfg/yolov3.cfg yolov3.weights -dont_show
./darknet detector test a.data b.cfg c.weights demo.jpg -thresh 0.25 -dont-show
./darknet detect cfg w img.jpg -out /tmp/o
./darknet detector demo cfg/coco.data cfg/yolov4.cfg yolov4.weights -dont_show video.mp4 -i 0 -out_filename res.avi
./darknet detector demo cfg/coco.data cfg/yolov4.cfg yolov4.weights -c 0
./darknet detector demo cfg/coco.data cfg/yolov4.cfg yolov4.weights rtsp://user:pw@host:554/
./darknet detector demo cfg/coco.data cfg/yolov4.cfg yolov4.weights http://192.168.0.80:8080/video?dummy=param.mjpg
./darknet detector demo ./cfg/coco.data ./y.cfg ./y.weights test50.mp4 -json_port 8070 -mjpeg_port 8090 -ext_output
./darknet detector demo cfg/coco.data cfg/yolov4.cfg yolov4.weights test.mp4 -benchmark
./darknet detector demo a.data b.cfg c.weights -c 0 -thresh 0.85 -json_port 42069 -prefix ../img -out_filename ../o.mkv
./darknet detector demo data cfg w "nvarguscamerasrc ! nvvidconv ! appsink"
./darknet detector demo data cfg w v.mp4 -dont_show -dontdraw_bbox -json_port 8070 -mjpeg_port 8090
./darknet detector map data/obj.data cfg/yolov4-custom.cfg backup/yolov4-custom_best.weights
./darknet detector map data/obj.data cfg/yolov4-custom.cfg backup/yolov4_best.weights -iou_thresh 0.75 -points 101
./darknet detector calc_anchors data/obj.data -num_of_clusters 9 -width 416 -height 416
./darknet detector calc_anchors data/obj.data -num_of_clusters 9 -width 416 -height 416 -show
./darknet detector valid cfg/coco.data cfg/yolov4.cfg yolov4.weights
./darknet detector valid cfg/coco.data cfg/yolov4.cfg yolov4.weights -out "" -gpu 0 -thresh .5
./darknet detector valid cfg/coco.data cfg/yolov4.cfg yolov4.weights -gpus 0,1
./darknet detector valid cfg/coco.data cfg/yolov4.cfg yolov4.weights -map
./darknet detector recall data/obj.data yolo-obj.cfg backup/yolo-obj_1000.weights -out log.txt
./darknet detector map data/obj.data cfg/x.cfg file darknet53.conv.74 -dont_show -ext_output
./darknet partial cfg/yolov3-tiny.cfg yolov3-tiny.weights yolov3-tiny.conv.15 15
./darknet classifier train cfg/mnist.data cfg/mnist_lenet.cfg
./darknet classifier train cfg/mnist.data cfg/mnist_lenet.cfg -dont_show -topk
./darknet classifier train x.data x.cfg -gpus 0 -dont_show
./darknet classifier predict cfg/imagenet1k.data cfg/darknet19.cfg darknet19.weights data/dog.jpg
./darknet classifier valid cfg/imagenet1k.data cfg/csdarknet53.cfg csdarknet53.weights
./darknet rnn generate cfg/rnn.cfg shakespeare.weights -srand 0 -seed CLEOPATRA -len 300
./darknet rnn train cfg/rnn.train.cfg -file text.txt
./darknet rnn generatetactic cfg/gru.cfg peek.weights
./darknet nightmare cfg/vgg-conv.cfg vgg-conv.weights data/scream.jpg 10 -range 3 -iters 20 -zoom .99
./darknet average cfg/x.cfg out.weights a.weights b.weights
./darknet ops cfg/yolov3.cfg
./darknet speed cfg/darknet.cfg 100
""".strip().splitlines()
"""Command lines of public READMEs, notebooks and scripts; redirections are the shell's. Some paths are shortened."""

SPOT = ["detector", "test", "obj.data", "spot.cfg", "spot.weights"]
QUIET = ["-quiet", "-dont_show"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the spot network and one picture, as working directory."""
    monkeypatch.chdir(spot_network(tmp_path))
    cv2.imwrite("a.png", spot_picture({(0, 0): 0, (2, 1): 1}))
    return tmp_path


def run(capfd, words: list[str], status: int = 0) -> tuple[str, str]:
    """stdout and stderr of a command whose exit status is checked."""
    capfd.readouterr()
    assert main(words) == status
    captured = capfd.readouterr()
    assert "Traceback" not in captured.err
    return captured.out, captured.err


def on_stdin(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


# ---------------------------------------------------------------------------------------------- words and flags


@pytest.mark.parametrize("text", TYPED)
def test_what_people_type_is_understood_up_to_the_first_file(text, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assets, "_FOLDERS", ())  # nothing packaged: the first file that is named is not there
    words = shlex.split(text)[1:]
    command = find(parse(words).words)
    if command is None:
        pytest.skip(f"{' '.join(words[:2])} is not here yet")
    _, error = run(capfd, words, status=1)
    assert "Couldn't open file: " in error


@pytest.mark.parametrize(
    "spelling", ["-dont_show", "--dont_show", "-dont-show", "--dont-show", "-dontshow", "-DontShow", "-noshow"]
)
def test_spellings_of_a_flag(spelling) -> None:
    assert parse(["a", spelling, "b"]).values == {"dont_show": True}
    assert parse(["a", spelling, "b"]).words == ["a", "b"]


def test_values_of_flags() -> None:
    line = parse(shlex.split("-thresh .25 --iou-thresh=0.75 -points=101 -i 2 -gpus 0,1,3 -hier 25%"))
    assert line.values == {"thresh": 0.25, "iou_thresh": 0.75, "points": 101, "i": 2, "gpus": "0,1,3", "hier": 25.0}
    assert line.words == []


def test_numbers_are_read_as_c_reads_them() -> None:
    line = parse(["-thresh", " 0.5x", "-points", "11.9", "-iou_thresh", "+.5"])
    assert line.values == {"thresh": 0.5, "points": 11, "iou_thresh": 0.5}


def test_the_first_of_two_counts() -> None:
    assert parse(["-thresh", "1", "-thresh", "2"]).get("thresh") == 1.0


@pytest.mark.parametrize("word", ["-5", "-.5", "-0.25", "-1e-3", "+3", "-25%", "-"])
def test_a_negative_number_is_a_word(word) -> None:
    assert parse(["a", word]).words == ["a", word]


def test_a_negative_number_is_a_value() -> None:
    assert parse(["-i", "-1", "-thresh", "-.5"]).values == {"i": -1, "thresh": -0.5}


def test_an_existing_file_is_a_word(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-odd.jpg").write_bytes(b"")
    assert parse(["-odd.jpg"]).words == ["-odd.jpg"]
    with pytest.raises(UsageError, match=r"unknown flag -even\.jpg"):
        parse(["-even.jpg"])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("-dont_sow", "-dont_show"), ("-ext_ouput", "-ext_output"), ("--iou-tresh=.5", "-iou_thresh"), ("-mapp", "-map")],
)
def test_an_unknown_flag_names_the_nearest(typed, meant) -> None:
    with pytest.raises(UsageError, match=f"unknown flag {typed.split('=')[0]}; did you mean {meant}[?]"):
        parse([typed])


@pytest.mark.parametrize("words", [["-thresh"], ["-thresh", "-dont_show"], ["-out", "-map"], ["-gpus"]])
def test_a_value_that_is_missing_is_an_error(words) -> None:
    with pytest.raises(UsageError, match=f"{words[0]} needs a value"):
        parse(words)


def test_set_takes_all_following_assignments() -> None:
    line = parse(
        shlex.split("x.cfg -set net.width=416 yolo#1.anchors='1,2, 3,4' convolutional[36].filters=21 a=b -map")
    )
    assert line.get("set") == ["net.width=416", "yolo#1.anchors=1,2, 3,4", "convolutional[36].filters=21"]
    assert line.words == ["x.cfg", "a=b"]
    with pytest.raises(UsageError, match=r"-set needs section\.key=value"):
        parse(["-set", "cfg/net.cfg"])


def test_lines_of_dos_files_leave_no_trace() -> None:
    assert parse(["detector\r", "a.data\r\n", "-thresh\r", ".5\r"]).words == ["detector", "a.data"]


@pytest.mark.parametrize(
    "flag",
    [flag for flag in [*FLAGS, *WITHOUT_EFFECT] if flag.name not in ("help", "version", "trace")],
    ids=lambda flag: flag.name,
)
def test_every_flag_is_accepted_by_every_command(flag, tmp_path, monkeypatch, capfd) -> None:
    """With its value, with one notice where it has no effect, and the command goes on to its files."""
    monkeypatch.chdir(tmp_path)
    value = {"switch": [], "words": ["net.batch=1"], "float or none": ["0.5"]}.get(flag.kind, ["1"])
    for command in [command for command in COMMANDS if command.arguments]:  # `doctor` has no files to go on to
        words = [*command.name.split(), f"-{flag.name}", *value, "no.data" if "DATA" in command.arguments else "no.cfg"]
        _, error = run(capfd, words, status=1)
        assert "unknown flag" not in error
        assert "needs a value" not in error
        assert "Couldn't open file: no." in error or "usage: " in error
        assert error.count("no effect") == (flag.name not in command.flags and " has no effect" in error)


def test_a_flag_without_effect_is_said_once(place, capfd) -> None:
    _, error = run(capfd, ["detector", "valid", "no.data", "spot.cfg", "-thresh", ".5", "-map"], status=1)
    notices = [line for line in error.splitlines() if "no effect" in line]
    assert [line.split()[0] for line in notices] == ["-thresh", "-map"]
    _, error = run(capfd, ["detector", "test", "no.data", "spot.cfg", "-thresh", ".5", "-dont_show", "-i", "0"], 1)
    assert "no effect" not in error


def test_the_original_darknets_camera_size_is_no_call_for_help() -> None:
    line = parse(["detector", "demo", "-w", "640", "-h", "480", "a.data"])
    assert line.words == ["detector", "demo", "a.data"]
    assert (line.get("w"), line.values["h"]) == (640, 480)
    assert parse(["detector", "-h"]).get("help")


def test_files_go_by_suffix_then_by_order() -> None:
    slots = ["data", "cfg", "weights", "image"]
    assert files_of(["a.weights", "b.cfg", "c.data", "d.jpg"], slots) == {
        "weights": "a.weights", "cfg": "b.cfg", "data": "c.data", "image": "d.jpg",
    }  # fmt: skip
    assert files_of(["d", "c", "w", "i", "more"], slots) == {"data": "d", "cfg": "c", "weights": "w", "image": "i"}
    assert files_of(["a.data", "b.cfg", "", "d.jpg"], slots) == {"data": "a.data", "cfg": "b.cfg", "image": "d.jpg"}
    assert files_of(["a.data", "b.cfg", "c.pt"], slots)["weights"] == "c.pt"


# ---------------------------------------------------------------------------------------------- help and statuses


@pytest.mark.parametrize(
    ("words", "status", "out", "error"),
    [
        ([], 0, "", "usage: darknetpy <function>\n"),
        (["help"], 0, "darknetpy detector calc_anchors", ""),
        (["--help"], 0, "darknetpy detector calc_anchors", ""),
        (["help", "detector", "test"], 0, "-save_labels", ""),
        (["detector", "test", "--help"], 0, "-save_labels", ""),
        (["version"], 0, f"darknetpy {__version__}\n", ""),
        (["--version"], 0, f"darknetpy {__version__}\n", ""),
        (["foo"], 1, "", "Not an option: foo"),
        (["detecter", "test"], 1, "", "Not an option: detecter; did you mean `detector test`?"),
        (["detector"], 1, "", "usage: darknetpy detector [train/test/map/"),
        (["detector", "foo", "a", "b", "c"], 1, "", "There isn't such command: foo"),
        (["detector", "test"], 1, "", "usage: darknetpy detector test [data] [cfg]"),
        (["detector", "test", "a.data"], 1, "", "usage: darknetpy detector test [data] [cfg]"),
        (["detector", "map"], 1, "", "usage: darknetpy detector map [data] [cfg] [weights]"),
        (["detector", "train", "a.data"], 1, "", "usage: darknetpy detector train [data] [cfg]"),
        (["detector", "calc_anchors", "obj.data", "-num_of_clusters", "6"], 1, "", "set width and height"),
        (["detect"], 1, "", "usage: darknetpy detect [cfg]"),
        (["export", "spot.cfg"], 1, "", "usage: darknetpy export [cfg] [weights] [out]"),
    ],
)
def test_help_and_missing_arguments(place, capfd, words, status, out, error) -> None:
    got_out, got_error = run(capfd, words, status)
    assert out in got_out
    assert error in got_error
    if not out:
        assert got_out == ""


def test_help_is_fast_and_loads_no_torch(place) -> None:
    code = (
        "import sys; from darknetpy.cli.main import main; status = main(sys.argv[1:]);"
        "sys.exit(status or any(name in sys.modules for name in ('torch', 'torch._C', 'cv2')))"
    )
    for words in (["--help"], ["help", "detector", "train"], ["version"], []):
        seconds = []
        while not seconds or (min(seconds) >= 0.5 and len(seconds) < 5):  # others may be using the machine
            began = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
            seconds.append(time.perf_counter() - began)
            assert done.returncode == 0, done.stderr
        assert min(seconds) < 0.5
    done = subprocess.run([sys.executable, "-m", "darknetpy", "version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"darknetpy {__version__}\n")


def test_a_reader_who_leaves_is_no_accident(place) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "darknetpy", "help"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-thresh", "abc"], "-thresh takes a number ('abc'); for example -thresh 0.5"),
        (["-i", "x"], "-i takes a number ('x'); for example -i 4"),
        (["-thresh=high"], "-thresh takes a number ('high')"),
    ],
)
def test_a_flag_that_takes_a_number_is_given_one(capsys, words, sentence):
    assert main(["detector", "test", "data/coco.data", "cfg/yolov4.cfg", *words]) == 1
    assert sentence in capsys.readouterr().err
    assert parse(["-thresh", ".5x", "-i", "-1"]).values == {"thresh": 0.5, "i": -1}, "what follows is passed over"


def test_an_interrupt_at_the_prompt_ends_with_130(place) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "darknetpy", *SPOT, *QUIET, "-out", "r.json"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests may run in the background
    )  # fmt: skip
    try:
        process.stdin.write("a.png\n")
        process.stdin.flush()
        seen = ""
        while seen.count("Enter Image Path: ") < 2 and (letter := process.stdout.read(1)):
            seen += letter
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in error
    assert "stopped" in error
    assert [frame["filename"] for frame in json.loads((place / "r.json").read_text())] == ["a.png"]


def test_trace_shows_the_traceback(place, capfd, monkeypatch) -> None:
    for words, environment in ((["-trace"], None), ([], "1")):
        if environment:
            monkeypatch.setenv("DARKNETPY_DEBUG", environment)
        assert main(["detector", "test", "no.data", "spot.cfg", *words]) == 1
        assert "Traceback" in capfd.readouterr().err


# ---------------------------------------------------------------------------------------------- detector test


def test_results_go_to_stdout_and_the_log_to_stderr(place, capfd) -> None:
    out, error = run(capfd, [*SPOT, "a.png", "-dont_show"])
    assert re.sub(r"\d+\.\d{6}", "T", out).splitlines() == [
        "mini_batch = 1, batch = 1, time_steps = 1, train = 0 ",
        "",
        " seen 64, trained: 64 K-images (1 Kilo-batches_64) ",
        " Detection layer: 2 - type = 28 ",
        "a.png: Predicted in T milli-seconds.",
        "cat: 100%",
        "dog: 100%",
    ]
    assert f"darknetpy {__version__}" in error
    assert "   layer   filters  size/strd(dil)      input                output\n" in error
    assert "Loading weights from spot.weights...Done! Loaded 3 layers from weights-file \n" in error


def test_quiet_hides_the_table(place, capfd) -> None:
    out, error = run(capfd, [*SPOT, "a.png", *QUIET])
    assert "mini_batch" not in out
    assert "size/strd" not in error


def test_ext_output_appends_pixels(place, capfd) -> None:
    out, _ = run(capfd, [*SPOT, "a.png", *QUIET, "-ext_output"])
    assert out.splitlines()[-2:] == [
        "cat: 100%\t(left_x:    0   top_y:    8   width:   32   height:   16)",
        "dog: 100%\t(left_x:   64   top_y:   40   width:   32   height:   16)",
    ]
    known = r"(\w+): (\d+)%\s+\(left_x:\s+(-?\d+)\s+top_y:\s+(-?\d+)\s+width:\s+(\d+)\s+height:\s+(\d+)\)"
    assert re.findall(known, out)[1] == ("dog", "100", "64", "40", "32", "16")


def test_boxes_are_printed_from_left_to_right_and_not_clamped(place, capfd) -> None:
    cv2.imwrite("b.png", spot_picture({(3, 0): 1, (1, 2): 0, (0, 3): 1}))
    words = [*SPOT, "b.png", *QUIET, "-ext_output", "-set", "yolo.anchors=32,40"]
    out, _ = run(capfd, words)
    assert [line.split("\t")[1] for line in out.splitlines()[-3:]] == [
        "(left_x:  -16   top_y:   72   width:   64   height:   80)",
        "(left_x:   16   top_y:   40   width:   64   height:   80)",
        "(left_x:   80   top_y:  -24   width:   64   height:   80)",
    ]


def test_thresh_is_strict(place, capfd) -> None:
    """At 0 every cell speaks; a confidence must be more than the threshold."""
    dim = 1 / (1 + 2.718281828459045**10)
    out, _ = run(capfd, [*SPOT, "a.png", *QUIET, "-thresh", "0.99"])
    assert out.count("%") == 2
    out, _ = run(capfd, [*SPOT, "a.png", *QUIET, "-thresh", f"{(CERTAIN + 1) / 2:.9f}"])
    assert out.count("%") == 0
    out, _ = run(capfd, [*SPOT, "a.png", *QUIET, "-thresh", f"{dim / 4:.9f}"])
    assert out.count("0%") >= 4
    assert "a.png: Predicted in" in out


def test_classes_that_must_not_show_do_not(place, capfd) -> None:
    (place / "obj.names").write_text("dont_show_cat\ndog\n")
    out, _ = run(capfd, [*SPOT, "a.png", *QUIET, "-out", "r.json", "-save_labels"])
    assert [line for line in out.splitlines() if "%" in line] == ["dog: 100%"]
    assert [o["name"] for o in json.loads((place / "r.json").read_text())[0]["objects"]] == ["dog"]
    assert (place / "a.txt").read_text() == "1 0.6250 0.3750 0.2500 0.1250\n"


def test_out_writes_darknets_json(place, capfd, monkeypatch) -> None:
    cv2.imwrite("none.png", spot_picture({}))
    on_stdin(monkeypatch, b"a.png\nnone.png\n")
    run(capfd, [*SPOT, *QUIET, "-out", "r.json"])
    assert (place / "r.json").read_text() == (
        "[\n{\n"
        ' "frame_id":1, \n "filename":"a.png", \n "objects": [ \n'
        '  {"class_id":1, "name":"dog", "relative_coordinates":{"center_x":0.625000, "center_y":0.375000, '
        '"width":0.250000, "height":0.125000}, "confidence":0.999909}, \n'
        '  {"class_id":0, "name":"cat", "relative_coordinates":{"center_x":0.125000, "center_y":0.125000, '
        '"width":0.250000, "height":0.125000}, "confidence":0.999909}\n'
        " ] \n}, \n{\n"
        ' "frame_id":2, \n "filename":"none.png", \n "objects": [ \n\n ] \n}\n]'
    )


def test_json_is_a_document_without_images_and_with_odd_names(place, capfd, monkeypatch) -> None:
    on_stdin(monkeypatch, b"")
    run(capfd, [*SPOT, *QUIET, "-out", "empty.json"])
    assert (place / "empty.json").read_text() == "[\n\n]"
    (place / "obj.names").write_text('say "cat"\nb\\dog\n')
    (place / "q\\b").mkdir()
    (place / 'q\\b/"é".png').write_bytes((place / "a.png").read_bytes())
    run(capfd, [*SPOT, 'q\\b/"é".png', *QUIET, "-out", "odd.json"])
    frame = json.loads((place / "odd.json").read_text(encoding="utf-8"))[0]
    assert frame["filename"] == 'q\\b/"é".png'
    assert [o["name"] for o in frame["objects"]] == ["b\\dog", 'say "cat"']


def test_json_that_cannot_be_created_is_said(place, capfd) -> None:
    _, error = run(capfd, [*SPOT, "a.png", *QUIET, "-out", "nowhere/r.json"], status=1)
    assert "nowhere/r.json cannot be written: No such file or directory" in error


def test_boxes_without_end_leave_json_and_labels_readable(place, capfd) -> None:
    """exp() of a wild network overflows: such a box has no place in a file."""
    words = [*SPOT, "a.png", *QUIET, "-out", "r.json", "-save_labels", "-set", "yolo.anchors=1e39,8"]
    run(capfd, words)
    assert json.loads((place / "r.json").read_text())[0]["objects"] == []
    assert (place / "a.txt").read_text() == ""


def test_save_labels_writes_beside_the_image_and_empties(place, capfd, monkeypatch) -> None:
    (place / "x.y").mkdir()
    cv2.imwrite("x.y/b.jpg", spot_picture({}))
    (place / "x.y/b.txt").write_text("old\n")
    on_stdin(monkeypatch, b"a.png\nx.y/b.jpg\n")
    run(capfd, [*SPOT, *QUIET, "-save_labels"])
    assert sorted((place / "a.txt").read_text().splitlines()) == [
        "0 0.1250 0.1250 0.2500 0.1250",
        "1 0.6250 0.3750 0.2500 0.1250",
    ]
    assert (place / "x.y/b.txt").read_text() == ""


def test_letter_box_undoes_its_border(place, capfd) -> None:
    """A picture twice as wide as high fills the middle two rows of cells; its height counts double."""
    wide = spot_picture({(0, 1): 0, (2, 2): 1})[32:96]
    cv2.imwrite("wide.png", wide)
    out, _ = run(capfd, [*SPOT, "wide.png", *QUIET, "-ext_output", "-letter_box"])
    assert [line.split("\t")[1] for line in out.splitlines()[-2:]] == [
        "(left_x:    0   top_y:    8   width:   32   height:   16)",
        "(left_x:   64   top_y:   40   width:   32   height:   16)",
    ]


def test_predictions_jpg_is_the_last_picture(place, capfd, monkeypatch) -> None:
    cv2.imwrite("big.png", spot_picture({(1, 1): 0}, cell=50))
    on_stdin(monkeypatch, b"a.png\nbig.png\n")
    run(capfd, [*SPOT, *QUIET])
    assert cv2.imread("predictions.jpg").shape == (200, 200, 3)


def test_detect_has_its_own_threshold_and_data(place, capfd) -> None:
    (place / "cfg").mkdir()
    (place / "cfg/coco.data").write_text("classes=2\nnames=obj.names\n")
    out, error = run(capfd, ["detect", "-dont_show", "spot.cfg", "spot.weights", "a.png", "-ext_output", "-quiet"])
    assert out.splitlines()[-1] == "dog: 100%\t(left_x:   64   top_y:   40   width:   32   height:   16)"
    assert "no effect" not in error
    seen = []
    original = detect._run
    try:
        detect._run = lambda line, files, thresh: seen.append(thresh)
        detect.detect(parse([]), ["spot.cfg"])
        detect.test(parse([]), ["obj.data", "spot.cfg"])
    finally:
        detect._run = original
    assert seen == [0.24, 0.25]


def test_names_file_serves_without_data(place, capfd) -> None:
    out, _ = run(capfd, ["detector", "test", "obj.names", "spot.cfg", "spot.weights", "a.png", *QUIET])
    assert out.splitlines()[-2:] == ["cat: 100%", "dog: 100%"]


def test_flags_stand_anywhere(place, capfd) -> None:
    words = "-i 0 detector -thresh .5 test -dont_show obj.data -quiet spot.cfg spot.weights -ext_output a.png"
    out, _ = run(capfd, words.split())
    assert out.splitlines()[-1] == "dog: 100%\t(left_x:   64   top_y:   40   width:   32   height:   16)"


# ---------------------------------------------------------------------------------------------- prompt and lists


def test_the_prompt_stands_before_each_answer_and_at_the_end(place, capfd, monkeypatch) -> None:
    on_stdin(monkeypatch, b"a.png\na.png")
    out, _ = run(capfd, [*SPOT, *QUIET])
    parts = out.split("Enter Image Path: ")
    assert len(parts) == 4
    assert parts[1].startswith(" Detection layer: 2 - type = 28 \na.png: Predicted in ")
    assert parts[2].endswith("cat: 100%\ndog: 100%\n")
    assert parts[3] == ""


def test_no_list_is_no_error(place, capfd, monkeypatch) -> None:
    on_stdin(monkeypatch, b"")
    out, _ = run(capfd, [*SPOT, *QUIET])
    assert out.endswith("Enter Image Path: ")


@pytest.mark.parametrize(
    "text",
    [
        b"a.png\r\n\r\na b.png\r\n",
        b"\n\n  a.png  \n\ta b.png\n   \n",
        b"\xef\xbb\xbfa.png\na b.png",
        b"./" * 200 + b"a.png\na b.png\n",
    ],
    ids=["dos", "blanks", "byte order mark", "long"],
)
def test_lists_as_they_come(place, capfd, monkeypatch, text) -> None:
    (place / "a b.png").write_bytes((place / "a.png").read_bytes())
    on_stdin(monkeypatch, text)
    out, _ = run(capfd, [*SPOT, *QUIET])
    found = re.findall(r"^(?:Enter Image Path: )*(.+): Predicted in", out, re.M)
    assert [os.path.normpath(path) for path in found] == ["a.png", "a b.png"]
    assert out.count("dog: 100%") == 2


def test_paths_in_no_encoding(place, capfdbinary, monkeypatch) -> None:
    """A list in Latin-1 on a UTF-8 machine: bytes go through as they came, JSON stays readable."""
    name = b"caf\xe9.png"
    with open(name, "wb") as stream:
        stream.write((place / "a.png").read_bytes())
    on_stdin(monkeypatch, name + b"\n")
    assert main([*SPOT, *QUIET, "-out", "r.json"]) == 0
    assert b"caf\xe9.png: Predicted in" in capfdbinary.readouterr().out
    (frame,) = json.loads((place / "r.json").read_text(encoding="utf-8"))
    assert os.fsencode(frame["filename"]) == name


def test_an_unreadable_member_of_a_list_is_a_warning(place, capfd, monkeypatch) -> None:
    (place / "text.jpg").write_text("no picture")
    on_stdin(monkeypatch, b"no.png\ntext.jpg\na.png\n")
    out, error = run(capfd, [*SPOT, *QUIET, "-out", "r.json"])
    assert out.count("Enter Image Path: ") == 4
    assert error.count("Cannot load image") == 2
    assert (place / "bad.list").read_text() == "no.png\ntext.jpg\n"
    frames = json.loads((place / "r.json").read_text())
    assert [(f["frame_id"], f["filename"], len(f["objects"])) for f in frames] == [
        (1, "no.png", 0), (2, "text.jpg", 0), (3, "a.png", 2),
    ]  # fmt: skip


def test_an_unreadable_single_image_ends_with_1(place, capfd) -> None:
    out, error = run(capfd, [*SPOT, "no.png", *QUIET], status=1)
    assert "Cannot load image no.png" in error
    assert "Predicted" not in out
    assert not (place / "predictions.jpg").exists()
    assert (place / "bad.list").read_text() == "no.png\n"


def test_strict_puts_darknets_black_picture_in_its_place(place, capfd) -> None:
    out, error = run(capfd, [*SPOT, "no.png", *QUIET, "-strict"])
    assert "Cannot load image no.png" in error
    assert "no.png: Predicted in" in out
    assert cv2.imread("predictions.jpg").shape == (10, 10, 3)
    assert (place / "bad.list").read_text() == "no.png\n"


def test_a_window_opens_only_where_there_is_a_display(place, capfd, monkeypatch) -> None:
    from darknetpy import images

    shown = []
    monkeypatch.setattr(images, "show", lambda title, image, wait=True: shown.append((title, image.shape)))
    for possible, words in ((False, []), (True, ["-dont_show"]), (True, [])):
        monkeypatch.setattr(images, "can_show", lambda possible=possible: possible)
        run(capfd, [*SPOT, "a.png", "-quiet", *words])
    assert shown == [("predictions", (128, 128, 3))]


def test_without_a_display_there_is_no_window(monkeypatch) -> None:
    from darknetpy.images import can_show

    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for display in ("", ":77"):  # none, and one that is not there: opening a window would end the process
        monkeypatch.setenv("DISPLAY", display)
        can_show.cache_clear()
        assert not can_show()
    can_show.cache_clear()


# ---------------------------------------------------------------------------------------------- the other commands


def test_map_valid_recall_and_anchors_run_and_leave_their_files(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(spot_network(tmp_path))
    data_set(tmp_path, 2)
    for i in range(2):
        cv2.imwrite(f"img/{i}.png", spot_picture({(0, 0): 0, (2, 1): 1}))
        (tmp_path / f"img/{i}.txt").write_text("0 .125 .125 .25 .125\n1 .625 .375 .25 .125\n")
    files = ["obj.data", "spot.cfg", "spot.weights", "-quiet"]
    out, _ = run(capfd, ["detector", "map", *files])
    assert "\n mean average precision (mAP@0.50) = 1.000000, or 100.00 % \n" in out
    _, error = run(capfd, ["detector", "recall", *files])
    assert "Recall:100.00%" in error
    run(capfd, ["detector", "valid", *files, "-out", ""])
    assert (tmp_path / "results/cat.txt").read_text().split("\n")[0].startswith("0 0.999909 1.0")
    words = "detector calc_anchors obj.data -num_of_clusters 1 -width 64 -height 64"
    out, _ = run(capfd, words.split())
    assert "anchors =  16,  8" in out
    assert (tmp_path / "anchors.txt").read_text() == " 16,  8"


def test_calcanchors_is_the_same_command() -> None:
    assert find(["detector", "calcanchors"]).name == "detector calc_anchors"


def test_export_there_and_back_is_the_same_file(place, capfd) -> None:
    run(capfd, ["export", "spot.cfg", "spot.weights", "spot.pt", "-quiet"])
    run(capfd, ["export", "spot.cfg", "spot.pt", "back.weights", "-quiet"])
    assert (place / "back.weights").read_bytes() == (place / "spot.weights").read_bytes()
    out, _ = run(capfd, ["detector", "test", "obj.data", "spot.cfg", "spot.pt", "a.png", *QUIET])
    assert out.splitlines()[-2:] == ["cat: 100%", "dog: 100%"]


def test_training_prints_darknets_line_and_writes_its_files(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(data_set(tmp_path, 4))
    words = "detector train obj.data tiny.cfg -dont_show -map -nogpu -workers 0 -quiet -set net.max_batches=1"
    out, error = run(capfd, words.split())
    number = r"-?\d+\.\d{6}"
    line = rf"^ 1: {number}, {number} avg loss, {number} rate, {number} seconds, 4 images, {number} hours left$"
    assert re.search(line, out, re.M)
    assert re.search(r"^([\d].*): .*?, (.*?) avg", out.replace("\n ", "\n"), re.M)
    assert "\x1b" not in out
    assert "If you want to train from the beginning, then use flag in the end of training command: -clear " in out
    assert "Saving weights to backup/tiny_final.weights" in error
    assert (tmp_path / "backup/tiny_best.weights").exists()
