"""What a person sees of a run: Darknet's lines to the byte, files that survive what happens, sinks of one's own."""

from __future__ import annotations

import csv
import math
import os
import re
import socket
import sys
import threading
import urllib.request
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from conftest import TESTS, golden
from small import data_set
from test_average_precision import coco_names
from test_average_precision import collect as matches_of_golden

from darknetpy import training
from darknetpy.errors import MissingFileError, UsageError
from darknetpy.evaluation import EvaluationResult, score
from darknetpy.layers import read_structure
from darknetpy.losses import HeadLoss, printed
from darknetpy.reporting import board, default_sinks, figures, load, make, progress, registry, sink, verdict
from darknetpy.reporting.chart import PLOT, RED, Chart, ChartStream
from darknetpy.reporting.csv_log import COLUMNS, CsvLog, read
from darknetpy.reporting.darknet_lines import DarknetLines
from darknetpy.reporting.plots import Plots
from darknetpy.reporting.progress import Progress
from darknetpy.reporting.verdict import Verdict, limit
from darknetpy.training.events import Evaluated, Events, Finished, Recovered, Saved, Started, TurnDone

HEADS = ((4, "yolo"),)


def started(iteration: int = 0, max_batches: int = 1000, device: str = "cpu", **other) -> Started:
    return Started(
        "tiny-train", "cfg/tiny-train.cfg", iteration, max_batches, 8, 100, device, 0.001, 0.9, 0.0005, HEADS, 1000,
        100, 20.0, **{"evaluating": False, **other},
    )  # fmt: skip


def done(iteration: int, loss: float = 2.0, **other) -> TurnDone:
    values = {
        "max_batches": 1000, "avg_loss": loss, "rate": 0.00261, "seconds": 0.5, "load_seconds": 0.01,
        "images": 16 * iteration, "hours_left": 1.5, "size": (416, 416), "trained": 8 * iteration,
    }  # fmt: skip
    return TurnDone(iteration=iteration, loss=loss, **{**values, **other})


def result_of(accuracy: float) -> EvaluationResult:
    return EvaluationResult(accuracy, [], 0.5, 0.25, 1 / 3, 1, 1, 3, 0.4, 9, 4, 0.5, 0.25, 0)


def evaluated(iteration: int, accuracy: float) -> Evaluated:
    return Evaluated(iteration, 1000, result_of(accuracy), True, accuracy)


def tell(receiver, *events) -> None:
    for event in events:
        receiver(event)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- Darknet's lines -------------------------------------------------------------------------------------------------

LINE = re.compile(
    rb"\n (\d+): ([\d.]+), ([\d.]+) avg loss, ([\d.]+) rate, ([\d.]+) seconds, (\d+) images, ([-\d.]+) hours left"
)


def turns_of(text: bytes, **other) -> list[TurnDone]:
    """The events that Darknet's own log tells of."""
    loads = [float(seconds) for seconds in re.findall(rb"Loaded: ([\d.]+) seconds", text)]
    turns = []
    for load_seconds, found in zip(loads, LINE.findall(text), strict=True):
        iteration, loss, average, rate, seconds, images, hours = map(float, found)
        numbers = {"avg_loss": average, "rate": rate, "seconds": seconds, "load_seconds": load_seconds}
        counts = {"images": int(images), "hours_left": hours, "max_batches": 6}
        turns.append(done(int(iteration), loss, **numbers, **counts, **other))
    return turns


@pytest.mark.parametrize(
    ("case", "other"), [("54_train", {}), ("55_train_map_clear", {"evaluating": True})], ids=["train", "map"]
)
def test_lines_are_darknets_to_the_last_byte(case, other, capsys, monkeypatch):
    """All that the real Darknet wrote to a terminal, from the first line of training to the last iteration."""
    text = golden("cli", f"{case}.stdout.txt").read_bytes()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = DarknetLines()
    turns = turns_of(text, next_map=100 if other else None)
    tell(lines, started(max_batches=6, **other), *turns)
    printed_ = capsys.readouterr().out.encode()
    begin = text.index(b"Weights are saved after")
    end = LINE.search(text, text.index(b"\n 6: ") - 1).end() + 1
    assert printed_[printed_.index(b"Weights are saved after") :] == text[begin:end]
    assert len(turns) == 6


def test_evaluation_and_end_are_darknets_to_the_last_byte(capsys):
    text = golden("cli", "55_train_map_clear.stdout.txt").read_text()
    begin = text.index("\n calculation mAP")
    tail = text[text.index("\n mean_average_precision") :]
    lines = DarknetLines()
    lines(started(evaluating=True))
    capsys.readouterr()
    tell(lines, evaluated(6, 0.000444), Finished(6, False, 1.0))
    out = capsys.readouterr().out
    assert out.startswith(text[begin : text.index(" detections_count")])
    assert out.endswith(tail)


def test_log_of_a_file_is_that_of_a_terminal_without_the_screen_line(capsys):
    text = golden("cli", "54_train.stdout.txt").read_bytes()
    lines = DarknetLines()
    lines(started())
    capsys.readouterr()
    tell(lines, *turns_of(text))
    expected = re.sub(rb"\x1b\[H\x1b\[J[^\x07]*\x07", b"", text)
    assert capsys.readouterr().out.encode() == expected[expected.index(b"Loaded") : expected.index(b"If you want")]


def test_last_accuracy_and_slow_loading_are_said(capsys):
    lines = DarknetLines()
    lines(started())
    capsys.readouterr()
    lines(done(7, next_map=200, map=0.57, best_map=0.6, load_seconds=0.25, hours_left=0.4))
    out = capsys.readouterr().out
    assert "Loaded: 0.250000 seconds - performance bottleneck on CPU or Disk HDD/SSD\n" in out
    assert (
        "\n (next mAP calculation at 200 iterations) \n Last accuracy mAP@0.50 = 57.00 %, best = 60.00 % \n 7: " in out
    )
    tell(lines, Saved("backup/a_last.weights", 7), Saved("backup/a_ema.weights", 7))
    assert capsys.readouterr().err == (
        "Saving weights to backup/a_last.weights\n EMA weights are saved to the file: backup/a_ema.weights \n"
    )


@pytest.mark.parametrize("task", ["detector", "classifier"])
def test_averaging_is_said_between_loading_and_the_loss(capsys, task):
    """As `train_networks` prints it when it has called `sync_nets`."""
    lines = DarknetLines()
    lines(started(task=task))
    capsys.readouterr()
    tell(lines, done(4, averaged=True), done(6))
    out = capsys.readouterr().out
    assert out.startswith("Loaded: 0.010000 seconds\nSyncing... Done!\n")
    assert out.count("Syncing") == 1 and "4" in out.splitlines()[2 if task == "classifier" else 3]


def head_line(numbers: dict[str, float], cfg: str = "") -> list[str]:
    """What `printed` makes of the numbers of a mini-batch."""
    text = (
        "[net]\nwidth=64\nheight=64\nchannels=3\n[convolutional]\nfilters=255\nsize=1\nactivation=linear\n[yolo]\nclasses=80\n"
        f"mask=0,1,2\nnum=3\nanchors=1,2,3,4,5,6\n{cfg}"
    )
    Path("head.cfg").write_text(text)
    heads = read_structure("head.cfg").heads
    stats = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
    return printed(heads, {heads[0].index: HeadLoss(torch.zeros(1), torch.zeros(()), stats)})


def test_head_lines_are_darknets_to_the_last_byte(here):
    text = golden("cli", "54_train.stderr.txt").read_text()
    pattern = r"v3 .*Region 4 (Avg .*)\n total_bbox = (\d+), rewritten_bbox = ([\d.]+) %"
    found = re.findall(pattern, text)
    assert len(found) == 12
    for region, total, share in found:
        iou, count, *losses = map(float, re.findall(r"[\d.]+(?=\)|,| $)", region))
        names = ("class_loss", "iou_loss", "total_loss")
        numbers = dict(zip(names, losses, strict=True), avg_iou=iou, count=count, total_bbox=float(total))
        numbers["rewritten_bbox"] = float(share) * float(total) / 100
        lines = head_line(numbers, "iou_loss=mse\n")
        lines[0] = lines[0].replace("Region 1 ", "Region 4 ")
        assert "\n".join(lines) in text
    assert (
        "(iou loss, Normalizer: (iou: 0.07, obj: 0.40, cls: 0.50)"
        in head_line(numbers, "iou_loss=ciou\niou_normalizer=.07\nobj_normalizer=.4\ncls_normalizer=.5\n")[0]
    )


def test_a_batch_without_objects_prints_no_nan(here, capsys):
    """Empty labels: Darknet divides 0 by 0."""
    data_set(here)
    for label in Path("img").glob("*.txt"):
        label.write_text("")
    for kind in ("yolo", "Gaussian_yolo", "region"):
        cfg = Path("tiny.cfg").read_text()
        if kind == "Gaussian_yolo":
            cfg = cfg.replace("[yolo]", "[Gaussian_yolo]").replace("filters=21", "filters=33")
        if kind == "region":
            cfg = cfg[: cfg.index("[yolo]")] + "[region]\nclasses=2\nnum=3\ncoords=4\nanchors=1,1,2,2,3,3\nsoftmax=1\n"
        Path(f"{kind}.cfg").write_text(cfg)
        training.train(
            "obj.data", f"{kind}.cfg", workers=0, show_details=True, rehearse=False, evaluate=True,
            sinks=[DarknetLines(), Verdict(), CsvLog()],
        )  # fmt: skip
        out, err = capsys.readouterr()
        assert re.search("count: [01]", err) and "IOU: 0.000000" in err.replace("(IOU: ", "IOU: ")
        assert "nan" not in (out + err + Path("results.csv").read_text()).lower(), kind


# --- progress and verdict --------------------------------------------------------------------------------------------


def test_live_line_has_true_counts_and_significant_digits(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = Progress()
    tell(shown, started(), done(1), done(2, rate=1.25e-7, seconds=0.3, load_seconds=0.1, map=0.5, best_map=0.5))
    line = capsys.readouterr().err.splitlines()[-1]
    assert "lr 1.25e-07" in line and " 16 images," in line, "32 would be Darknet's count for two devices"
    assert "data wait 4%" in line and "mAP 50.00% best 50.00%" in line and "1:30:00 left" in line
    assert 15.5 < float(re.search(r"([\d.]+) images/s", line)[1]) < 16.5


def test_live_line_of_several_gpus_has_each_ones_share(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    two = [done(i, seconds=1.0, load_seconds=0.0, sync_seconds=0.25, memory=3 << 10) for i in (2, 4)]
    tell(Progress(), started(replicas=2), *two)
    line = capsys.readouterr().err.splitlines()[-1]
    assert "16 images/s (8 each), data wait 0%, sync 25%, 3.0 GiB," in line


def test_bar_where_the_log_goes_to_a_file(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = Progress()
    tell(shown, started(), *(done(i) for i in range(1, 4)), Finished(3, True, 1.0))
    err = capsys.readouterr().err
    assert "3/1000" in err and "loss 2" in err and "nan" not in err


def test_pace_of_nothing_is_zero():
    pace = progress.Pace(started())
    event = done(1, seconds=0.0, load_seconds=0.0, hours_left=-1.0, loss=float("inf"))
    assert "0 images/s, data wait 0%" in pace.text(event)
    pace.add(event)
    assert "0 images/s, data wait 0%" in pace.text(event) and "00:00 left" in pace.text(event)


@pytest.mark.parametrize(
    ("loading", "syncing", "device", "expected"),
    [(0.9, 0.0, "cuda:0", "the loader"), (0.0, 0.4, "cuda:0", "synchronisation"), (0.0, 0.0, "cuda:0", "the GPU"),
     (0.01, 0.02, "cpu", "the processor")],
)  # fmt: skip
def test_verdict_every_hundred_turns(capsys, loading, syncing, device, expected):
    judge = Verdict()
    tell(judge, started(device=device))
    tell(judge, *(done(i, load_seconds=loading, seconds=1.0, sync_seconds=syncing) for i in range(1, 251)))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[1].startswith(" iterations 101 to 200: ")
    assert f"Bound by {expected}; what helps: {verdict.REMEDIES[expected]}" in lines[0]
    shares = [int(n) for n in re.findall(r"(\d+)%", lines[0])]
    assert sum(shares) == pytest.approx(100, abs=1) and shares[0] == round(100 * loading / (1 + loading))


def test_the_larger_of_two_hindrances_is_named():
    assert limit(0.2, 0.4) == "synchronisation" and limit(0.4, 0.3) == "the loader" and limit(0.1, 0.1) == "the GPU"


# --- results.csv -----------------------------------------------------------------------------------------------------


def test_csv_has_a_row_an_iteration_with_its_evaluation(here):
    log = CsvLog()
    tell(log, started(), done(1, losses={"class_loss": 1.5, "iou_loss": 0.5}), done(2), evaluated(2, 0.625))
    assert [row["map"] for row in read("results.csv")] == ["", "0.625"], "at once, not with the next row"
    tell(log, Recovered('three; "quoted"\nlines', 2), done(3, rate=1.25e-9))
    first, second, third = read("results.csv")
    assert (first["class_loss"], first["iou_loss"], first["images"]) == ("1.5", "0.5", "8")
    assert (second["precision"], second["recall"], second["f1"]) == ("0.5", "0.25", "0.333333")
    assert second["note"] == 'three; "quoted"\nlines' and third["rate"] == "1.25e-09" and third["map"] == ""
    assert Path("results.csv").read_bytes().count(b"\r\n") == 4


def test_csv_forgets_iterations_that_are_undone(here):
    log = CsvLog()
    tell(log, started(), *(done(i) for i in range(1, 9)), Recovered("back to iteration 5", 5), done(6, loss=7.0))
    rows = read("results.csv")
    assert [int(row["iteration"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[4]["note"] == "back to iteration 5" and rows[5]["loss"] == "7"


@pytest.fixture
def room():
    """Limits how far files may grow from now on, as a full disk does; None takes the limit away."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))

    yield limit
    limit(None)


@pytest.mark.parametrize("end", ["turn", "finish"])
def test_a_full_disk_costs_no_row_and_tears_none(here, room, caplog, end):
    log = CsvLog()
    events = Events([log])
    for event in (started(), *(done(i) for i in range(1, 4))):
        events.emit(event)
    whole = Path("results.csv").stat().st_size
    room(whole + 20)
    for event in (done(4), evaluated(4, 0.5), done(5), Recovered("something", 5)):
        events.emit(event)
    assert [row["iteration"] for row in read("results.csv")] == list("12"), "the third is written again with the fourth"
    room(None)
    events.emit(done(6) if end == "turn" else Finished(5, False, 1.0))
    rows = read("results.csv")
    assert [row["iteration"] for row in rows] == list("123456" if end == "turn" else "12345")
    assert (rows[3]["map"], rows[4]["note"]) == ("0.5", "something")
    assert Path("results.csv").read_bytes().count(b"\r\n") == len(rows) + 1
    assert [text for text in caplog.messages if "CsvLog" in text] == [
        "CsvLog: [Errno 27] File too large; it is tried again"
    ]
    assert events.sinks == [log]


@pytest.mark.parametrize("older", [False, True], ids=["fresh", "older"])
def test_a_disk_that_is_full_at_the_start_costs_no_row(here, room, older):
    log = CsvLog()
    if older:
        tell(CsvLog(), started(), *(done(i, loss=9.0) for i in range(1, 9)))
    events = Events([log])
    room(0)
    for event in (started(), done(1), done(2)):
        events.emit(event)
    room(None)
    events.emit(done(3))
    assert [(row["iteration"], row["loss"]) for row in read("results.csv")] == [("1", "2"), ("2", "2"), ("3", "2")]


def test_rows_that_are_undone_while_the_disk_is_full_go_away(here, room):
    log = CsvLog()
    events = Events([log])
    for event in (started(), *(done(i) for i in range(1, 6))):
        events.emit(event)
    room(0)
    for event in (Recovered("back to iteration 3", 3), done(4, loss=7.0), Recovered("again", 3), done(4, loss=8.0)):
        events.emit(event)
    assert len(read("results.csv")) == 5, "as it was"
    room(None)
    events.emit(done(5, loss=8.0))
    rows = read("results.csv")
    assert [row["loss"] for row in rows] == ["2", "2", "2", "8", "8"]
    assert rows[2]["note"] == "back to iteration 3; again"


def test_a_file_that_was_removed_begins_anew_with_its_header(here):
    log = CsvLog()
    tell(log, started(), done(1), done(2))
    Path("results.csv").unlink()
    tell(log, done(3), done(4))
    assert [row["iteration"] for row in read("results.csv")] == ["2", "3", "4"]


def test_the_chart_waits_for_room(here, room, caplog):
    chart = Chart()
    events = Events([chart])
    room(100)
    for event in (started(max_batches=20), *(done(i, max_batches=20) for i in range(1, 12))):
        events.emit(event)
    assert not Path("chart_tiny-train.png").exists()
    room(None)
    for event in (*(done(i, max_batches=20) for i in range(12, 21)), Finished(20, False, 1.0)):
        events.emit(event)
    assert cv2.imread("chart_tiny-train.png") is not None
    assert len([text for text in caplog.messages if "it is tried again" in text]) <= 1


HISTORY = [
    {"iteration": i, "loss": 2.0, "avg_loss": 2.0, "rate": 0.00261, **({"map": i / 10} if i % 3 == 0 else {})}
    for i in range(1, 7)
]


def test_csv_goes_on_after_the_iteration_of_the_state(here):
    tell(CsvLog(), started(), *(done(i) for i in range(1, 9)))
    before = read("results.csv")
    log = CsvLog()
    log(started(6))
    log.resume(HISTORY)
    log(done(7, loss=3.0))
    rows = read("results.csv")
    assert rows[:6] == before[:6] and [row["iteration"] for row in rows] == list("1234567") and rows[6]["loss"] == "3"


def test_csv_is_made_anew_from_the_history(here):
    """The file is lost, or belongs to another run."""
    for content in (None, b"", b"something,else\n1,2\n\xff\xfe\x00", b"iteration,loss,images\n1,9,8\n2,2,16\nx,2,2\n"):
        if content is None:
            Path("results.csv").unlink(missing_ok=True)
        else:
            Path("results.csv").write_bytes(content)
        log = CsvLog()
        log(started(6))
        log.resume(HISTORY)
        rows = read("results.csv")
        assert [(row["iteration"], row["loss"]) for row in rows] == [(str(i), "2") for i in range(1, 7)]
        assert [row["map"] for row in rows] == ["", "", "0.3", "", "", "0.6"]
    assert rows[1]["images"] == "16" and rows[0]["images"] == "", "what fits is kept"


# --- chart and results.png -------------------------------------------------------------------------------------------


def test_chart_is_rebuilt_from_the_history(here):
    whole = Chart()
    tell(whole, started())
    for row in HISTORY:
        whole(done(100 * row["iteration"], hours_left=0.0))
        if "map" in row:
            whole(evaluated(100 * row["iteration"], row["map"]))
    Path("chart_tiny-train.png").write_bytes(b"no picture")
    resumed = Chart()
    resumed(started(600))
    resumed.resume([{**row, "iteration": 100 * row["iteration"]} for row in HISTORY])
    top = slice(0, 950)
    assert np.array_equal(resumed.image[top], whole.image[top])
    resumed(done(700, hours_left=0.0))
    assert Path("chart.png").read_bytes() == Path("chart_tiny-train.png").read_bytes()
    x, y = 60 + PLOT * 600 // 1000, int(PLOT * (1 - 0.6))
    assert tuple(cv2.imread("chart.png")[y, x]) == RED


def test_chart_of_a_run_without_a_state_goes_on_in_its_picture(here):
    first = Chart()
    tell(first, started(), done(100, loss=5.0))
    second = Chart()
    second(started(100))
    assert np.array_equal(second.image, first.image)
    fresh = Chart()
    fresh(started(0))
    assert not np.array_equal(fresh.image, first.image)


def test_a_named_chart_is_drawn_on(here):
    picture = np.full((1000, 1000, 3), 200, np.uint8)
    cv2.imwrite("older.png", picture)
    chart = Chart(previous="older.png")
    chart(started(100))
    chart.resume(HISTORY)
    assert np.array_equal(chart.image, picture)
    with pytest.raises(MissingFileError, match=r"older2\.png"):
        Chart(previous="older2.png")


def test_chart_takes_any_number(here):
    chart = Chart()
    tell(chart, started(), done(1, loss=float("nan")), done(2, loss=1e30), done(3, loss=float("inf")), done(5000))
    tell(chart, evaluated(4, 0.0), evaluated(5000, 1.0))
    assert cv2.imread("chart.png").shape == (1000, 1000, 3)


def numbers_of_run() -> list:
    events = [started()]
    for i in range(1, 21):
        events.append(
            done(i, loss=10 / i, avg_loss=12 / i, losses={"class_loss": 6 / i, "iou_loss": 4 / i, "total_loss": 10 / i})
        )
        if i % 5 == 0:
            events.append(evaluated(i, i / 40))
    return [*events, Finished(20, False, 1.0)]


@pytest.mark.parametrize("library", ["matplotlib", "opencv"])
def test_results_picture(here, monkeypatch, library):
    if library == "opencv":
        monkeypatch.setattr(figures, "have_matplotlib", lambda: False)
    else:
        pytest.importorskip("matplotlib")
    tell(Plots(), *numbers_of_run())
    image = cv2.imread("results.png")
    assert image.shape == (2 * figures.HEIGHT, 3 * figures.WIDTH, 3)
    rows, columns = np.split(image, 2), 3
    panels = [panel for row in rows for panel in np.split(row, columns, axis=1)]
    blue = [(np.abs(panel.astype(int) - (0xB4, 0x77, 0x1F)).max(-1) < 60).sum() for panel in panels]
    assert all(count > 100 for count in blue[:5]) and blue[5] == 0


def test_results_picture_goes_on_from_the_csv(here):
    tell(CsvLog(), *numbers_of_run())
    plots = Plots()
    plots(started(12))
    assert [row["iteration"] for row in plots.rows] == list(range(1, 13))
    assert plots.rows[9]["map"] == 0.25 and plots.rows[2]["iou_loss"] == pytest.approx(4 / 3, rel=1e-5)
    os.unlink("results.csv")
    plots.resume(HISTORY)
    assert [row["iteration"] for row in plots.rows] == [1, 2, 3, 4, 5, 6] and math.isnan(plots.rows[0]["iou_loss"])


@pytest.mark.parametrize("library", ["matplotlib", "opencv"])
def test_curves_and_matrix_of_an_evaluation(here, monkeypatch, library):
    from darknetpy.reporting.evaluation_plots import curves, save_plots

    if library == "opencv":
        monkeypatch.setattr(figures, "have_matplotlib", lambda: False)
    else:
        pytest.importorskip("matplotlib")
    result = score(matches_of_golden(), [*coco_names()[:-1], "$x_{ größer \\frac"], 0.5, 0.25, 0)
    assert save_plots(result, "a/b") == [os.path.join("a/b", name) for name in ("curves.png", "confusion.png")]
    for path in ("a/b/curves.png", "a/b/confusion.png"):
        image = cv2.imread(path)
        assert image is not None and (image < 200).mean() > 0.001
    precision, f1 = curves(result)
    assert len(precision.series) == len(f1.series) == sum(c.truths > 0 for c in result.classes)
    best = max(range(80), key=lambda i: result.classes[i].truths)
    c = result.classes[best]
    mine = next(s for s in f1.series if s.name == c.name)
    curve = result.curves[best]
    for level in (0.1, 0.25, 0.5):
        right = sum(curve.confidence >= level)
        p, r = (curve.precision[right - 1], curve.recall[right - 1]) if right else (0, 0)
        assert mine.y[round(200 * level)] == pytest.approx(2 * p * r / (p + r) if p + r else 0)
    figures.save_panels("none.png", [figures.Panel("empty", "x", [])])
    assert Path("none.png").stat().st_size > 500


# --- streams, TensorBoard, own sinks ---------------------------------------------------------------------------------


def test_chart_is_served_to_browsers(here):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    chart = ChartStream(port, "127.0.0.1")
    got = []

    def listen():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            assert answer.headers["Content-Type"] == "multipart/x-mixed-replace; boundary=mjpegstream"
            assert answer.readline() == b"--mjpegstream\r\n"
            answer.readline()
            length = int(answer.readline().split(b":")[1])
            answer.readline()
            got.append(answer.read(length))

    chart(started())
    listener = threading.Thread(target=listen)
    listener.start()
    while not chart.stream.listeners:
        threading.Event().wait(0.01)
    tell(chart, done(1, loss=5.0), Finished(1, False, 1.0))
    listener.join(10)
    image = cv2.imdecode(np.frombuffer(got[0], np.uint8), cv2.IMREAD_COLOR)
    assert image.shape == (1000, 1000, 3)
    assert not list(here.iterdir()), "the stream writes no file"
    with pytest.raises(UsageError, match="cannot be listened on"):
        ChartStream(port, "192.0.2.1")


def test_tensorboard(here):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tell(board.TensorBoard("logs"), *numbers_of_run())
    tell(board.TensorBoard("logs"), started(12), done(13, loss=9.0), Finished(13, False, 1.0))
    (folder,) = Path("logs").iterdir()
    found = EventAccumulator(str(folder))
    found.Reload()
    assert [e.step for e in found.Scalars("loss/iteration")] == list(range(1, 14)), "the run that goes on takes over"
    assert [round(e.value, 3) for e in found.Scalars("evaluation/mAP")] == [0.125, 0.25]


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"darknetpy\[track\]"):
        default_sinks(tensorboard="runs")


OWN = """
from darknetpy.reporting import sink
from darknetpy.training.events import Finished, TurnDone

@sink("mail")
class Mail:
    def __call__(self, event):
        if isinstance(event, TurnDone) and event.iteration == 2:
            raise RuntimeError("no network")
        with open("mail.txt", "a") as stream:
            stream.write(type(event).__name__ + " ")
"""


@pytest.fixture
def own_sinks():
    before = dict(registry._SINKS)
    yield
    registry._SINKS.clear()
    registry._SINKS.update(before)


def test_own_sink_fails_and_the_run_goes_on(here, own_sinks, caplog):
    data_set(here)
    Path("own.py").write_text(OWN)
    assert load("own.py") == ["mail"]
    result = training.train("obj.data", "tiny.cfg", workers=0, rehearse=False, sinks=[*make(["mail", "csv"])])
    assert result.iteration == 4 and len(read("results.csv")) == 4
    assert Path("mail.txt").read_text() == "Started TurnDone "
    assert "Mail failed and is switched off: RuntimeError: no network" in caplog.text


def test_sink_file_by_flag(here, own_sinks, capsys):
    from darknetpy.cli.main import main

    data_set(here)
    Path("own.py").write_text(OWN.replace("== 2", "== 99"))
    words = [
        "detector",
        "train",
        "obj.data",
        "tiny.cfg",
        "-dont_show",
        "-workers",
        "0",
        "-no_rehearsal",
        "-tensorboard",
    ]
    assert main([*words, "-sink", "own.py"]) == 0
    assert Path("mail.txt").read_text().split() == ["Started", *["TurnDone"] * 4, "Saved", "Finished"]
    assert len(list(Path("runs").iterdir())) == 1
    Path("bad.py").write_text("import nothing_of_that_name")
    Path("empty.py").write_text("")
    for name, text in (("bad.py", "nothing_of_that_name"), ("empty.py", "registers no sink"), ("none.py", "none.py")):
        assert main([*words, "-sink", name]) == 1
        assert text in capsys.readouterr().err.splitlines()[-1]


def test_the_sink_of_the_documentation_works(here, own_sinks):
    text = (TESTS.parent / "docs" / "training.md").read_text(encoding="utf-8")
    Path("notify.py").write_text(re.search(r"<!-- tested -->\n```python\n(.*?)```", text, re.S)[1])
    (notify,) = make(load("notify.py"))
    tell(notify, started(), done(1), evaluated(1, 0.625), Finished(1, False, 2.4))
    assert Path("notify.txt").read_text() == "iteration 1: mAP 62.50 %\nfinished after 2 seconds\n"


def test_every_column_is_documented():
    text = (TESTS.parent / "docs" / "training.md").read_text(encoding="utf-8")
    part = text[text.index("### Columns") :]
    assert not [name for name in COLUMNS if f"`{name}`" not in part]


def test_sink_that_cannot_resume_is_dropped(caplog):
    class Broken:
        def __call__(self, event): ...

        def resume(self, rows):
            raise ValueError("what is that")

    events = Events([Broken()])
    events.resume(HISTORY)
    assert not events.sinks and "Broken failed" in caplog.text


def test_an_unknown_sink_is_named(own_sinks):
    with pytest.raises(UsageError, match=r"known are .*csv"):
        make(["cvs"])

    @sink("mine")
    def mine(event): ...

    with pytest.raises(TypeError):
        make(["mine"])
    assert "mine" in registry.names()


def test_optional_folder_takes_no_other_word():
    from darknetpy.cli.parse import parse

    for words, folder in (
        ("detector -tensorboard train a.data b.cfg", ""), ("detector train -tensorboard a.data b.cfg", ""),
        ("detector train a.data -tensorboard logs b.cfg", "logs"), ("detector train a.data b.cfg -tensorboard", ""),
        ("detector train a.data b.cfg -tensorboard -map", ""), ("detector train a.data -tensorboard=x.cfg", "x.cfg"),
    ):  # fmt: skip
        line = parse(words.split())
        assert line.get("tensorboard") == folder
        assert line.words == [word for word in words.split() if not word.startswith("-") and word != "logs"]
    assert parse(["detector"]).get("tensorboard") is None


def test_csv_reads_like_any_csv(here):
    tell(CsvLog(), *numbers_of_run())
    with open("results.csv", newline="", encoding="utf-8") as stream:
        header, *rows = csv.reader(stream)
    assert len(rows) == 20 and {len(row) for row in rows} == {len(header)}
