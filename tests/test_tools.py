"""The measuring tools: what they call equal and what they call different."""

from __future__ import annotations

import random
import sys

import pytest
from conftest import TESTS, golden

sys.path.insert(0, str(TESTS.parent))

from tools.check_curve import Golden, by_range, by_standard_error, row
from tools.training_runs import Job, device_words


def test_darknets_runs_are_those_of_its_readme():
    darknet = Golden.read(golden("curve", "runs.json").parent, 1, False)
    means = {at: sum(values) / len(values) for at, values in darknet.accuracy.items()}
    assert {at: round(mean, 3) for at, mean in means.items()} == {"600": 0.624, "1000": 0.706, "final": 0.74}
    for at, low, high in ((200, 3.17, 3.38), (300, 1.97, 2.09), (400, 0.77, 0.88)):
        assert (
            len(darknet.loss[at]) == 5 and low - 0.005 <= min(darknet.loss[at]) <= max(darknet.loss[at]) <= high + 0.005
        )
    several = Golden.read(golden("curve", "runs.json").parent, 4, True)
    assert sorted(several.accuracy["final"]) == [0.74938, 0.770421] and not several.loss[200]


def test_standard_errors_tell_equal_from_different():
    draw = random.Random(1)
    darknet = [draw.gauss(0.74, 0.02) for _ in range(5)]
    seeds = [draw.gauss(0.74, 0.02) for _ in range(5)]
    assert by_standard_error(darknet, seeds)[1]
    assert not by_standard_error(darknet, [value - 0.05 for value in seeds])[1]
    assert by_standard_error([0.7, 0.8], [0.7, 0.8]) == ("±0.1414", True)  # 2 sqrt(.005/2 + .005/2)
    assert by_standard_error([0.7], [0.7, 0.8]) == ("-", None), "a single run says nothing of its deviation"


def test_range_is_widened_by_its_width():
    assert by_range([1.0, 2.0], [0.1, 2.9]) == ("0 to 3", True)
    assert not by_range([1.0, 2.0], [1.5, 3.1])[1]
    assert row("x", [1.0, 2.0], [], by_range)[-2:] == ["-", None]


def test_devices_as_flags():
    assert device_words("cpu") == ["-nogpu"]
    assert device_words("cpu", 2) == ["-nogpu", "-gpus", "0,1"]
    assert device_words("cuda:1") == ["-i", "1"]
    assert device_words("cuda:0", 2) == ["-gpus", "0,0"]
    assert device_words("cuda:0,cuda:1", 4) == ["-gpus", "0,1,0,1"]


def test_a_training_that_fails_shows_its_log(tmp_path):
    job = Job(tmp_path / "a", ["no.data", "no.cfg"])
    job.start(1)
    job.process.wait(60)
    with pytest.raises(SystemExit, match=r"no\.data[\s\S]*exit status 1"):
        job.ended()
    assert job.rows() == []
