"""The README's commands do what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from conftest import TESTS, shared
from small import picture

README = (TESTS.parent / "README.md").read_text(encoding="utf-8")
EXPORT = (TESTS.parent / "docs" / "export.md").read_text(encoding="utf-8")
COMMANDS = dict(re.findall(r"<!-- command: (\w+) -->\n```\n(.+?)\n```", README, re.S))
FEWER = ["-set", "net.max_batches=330", "net.steps=240,300", "-map_every", "165", "-quiet"]
"""Less than a minute of the README's training: enough to see that it learns."""
REACHED = 0.15
"""mAP@0.50 after so little training; the whole run ends above 0.90."""


def _run(words: list[str], folder) -> subprocess.CompletedProcess:
    done = subprocess.run([sys.executable, "-m", "darknetpy", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def _words(name: str) -> list[str]:
    """The command's own words, without what sets the environment up."""
    last = COMMANDS[name].split("&&")[-1].strip()
    words = shlex.split(last)
    assert words[0] == "darknetpy"
    return words[1:]


def test_both_main_commands_set_everything_up() -> None:
    assert COMMANDS["train"].startswith(
        "python3 -m venv .venv && . .venv/bin/activate && pip install -e . && darknetpy "
    )
    assert COMMANDS["test"] == "python3 -m venv .venv && . .venv/bin/activate && pip install -e '.[test]' && pytest"
    assert (TESTS.parent / ".ci" / "run").read_text().rstrip().split("\n")[-1].startswith("pytest")


def test_the_settings_for_own_classes_fit_the_network_that_they_name() -> None:
    from darknetpy.layers import read_structure

    line = re.search(r"`-set (yolo\.classes[^`]+)`", README)[1]
    structure = read_structure(TESTS.parent / "cfg/yolov4-tiny-custom.cfg", overrides=line.split(), batch=1).check()
    assert [head.classes for head in structure.heads] == [2, 2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which the first command ran, shortened."""
    folder = tmp_path_factory.mktemp("readme")
    log = _run([*_words("train"), *FEWER], folder).stdout
    return folder, [float(v) for v in re.findall(r"mean_average_precision \(mAP@0.50\) = ([\d.]+)", log)]


@pytest.mark.slow
def test_training_learns_and_leaves_its_files(trained) -> None:
    folder, maps = trained
    assert len(maps) == 2
    assert maps[-1] > REACHED
    for name in ("best", "last", "final"):
        assert (folder / f"backup/yolov4-tiny-digits_{name}.weights").stat().st_size > 1_000_000
    assert (folder / "chart.png").stat().st_size > 10_000
    assert len((folder / "results.csv").read_text().splitlines()) == 331


@pytest.mark.slow
def test_the_other_commands_work_on_what_was_trained(trained) -> None:
    folder, maps = trained
    assert "data/digits/valid/0001.jpg: Predicted in" in _run([*_words("detect"), "-quiet"], folder).stdout
    assert (folder / "predictions.jpg").stat().st_size > 1000
    text = _run([*_words("map"), "-quiet"], folder).stdout
    measured = float(re.search(r"mean average precision \(mAP@0.50\) = ([\d.]+)", text)[1])
    assert measured == pytest.approx(max(maps), abs=2e-3)
    _run([*_words("export"), "-quiet"], folder)
    _run(["export", "cfg/yolov4-tiny-digits.cfg", "digits.pt", "back.weights", "-quiet"], folder)
    best = folder / "backup/yolov4-tiny-digits_best.weights"
    assert (folder / "back.weights").read_bytes() == best.read_bytes()


@pytest.mark.slow
def test_opencv_runs_what_was_exported(trained) -> None:
    """The commands and the program of docs/export.md, as they stand there."""
    folder, _ = trained
    command = re.search(r"<!-- command: opencv -->\n```\ndarknetpy (.+?)\n```", EXPORT, re.S)[1]
    _run([*shlex.split(command), "-quiet"], folder)
    (folder / "data").symlink_to(TESTS.parent / "data")
    program = re.search(r"```python\n(.+?)```", EXPORT, re.S)[1].replace("0.25, 0.45", "0.01, 0.45")
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows and all(len(row) == 6 and 0 <= int(row[0]) <= 9 for row in rows)


@pytest.mark.slow
def test_the_python_of_the_readme_runs(trained) -> None:
    folder, _ = trained
    code = re.search(r"```python\n(.+?)```", README, re.S)[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_reported_network_evaluates_three_times_and_survives(tmp_path) -> None:
    """Three yolo heads, random=1 and -map: the case whose every run on four GPUs died at the first evaluation."""
    import cv2

    cfg = shared("seed", "yolov4-tiny-3l-2class.cfg")
    names = []
    for i in range(8):
        cv2.imwrite(str(tmp_path / f"{i}.jpg"), picture(i))
        (tmp_path / f"{i}.txt").write_text(f"{i % 2} 0.4375 0.4167 0.375 0.3333\n")
        names.append(f"{i}.jpg\n")
    (tmp_path / "list.txt").write_text("".join(names))
    (tmp_path / "obj.names").write_text("a\nb\n")
    (tmp_path / "obj.data").write_text("classes=2\ntrain=list.txt\nvalid=list.txt\nnames=obj.names\nbackup=backup\n")
    settings = "net.width=96 net.height=96 net.batch=4 net.subdivisions=2 net.burn_in=0 net.max_batches=3"
    words = shlex.split(f"-set {settings} -map -map_every 1")
    log = _run(["detector", "train", "obj.data", str(cfg), *words], tmp_path).stdout
    assert log.count("mean_average_precision (mAP@0.50) = ") == 3
    assert (tmp_path / "backup/yolov4-tiny-3l-2class_final.weights").is_file()
