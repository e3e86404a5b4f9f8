"""What is installed from the project: complete by itself, and not confused with another project of its name."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys

import pytest
from conftest import TESTS

import darknetpy

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


def run(folder, *words: str, **environment: str) -> str:
    """What a command that succeeds in a folder prints."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    process = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
    if "No matching distribution found for hatchling" in process.stderr and not os.environ.get("CI"):
        pytest.skip("hatchling, which builds the wheel, cannot be had from here")
    assert process.returncode == 0, process.stderr
    return process.stdout + process.stderr


@pytest.mark.slow
def test_the_wheel_trains_and_detects_in_an_empty_folder(tmp_path):
    """With the cfg and data inside it, far from the clone."""
    wheels, site, place = tmp_path / "wheels", tmp_path / "site", tmp_path / "empty"
    place.mkdir()
    run(tmp_path, *PIP, "wheel", "--no-deps", "-w", str(wheels), str(TESTS.parent))
    run(tmp_path, *PIP, "install", "--no-deps", "--no-index", "--target", str(site), *map(str, wheels.iterdir()))
    command = [sys.executable, "-m", "darknetpy", "detector"]
    common = ["data/digits.data", "cfg/yolov4-tiny-digits.cfg"]
    words = ["-map", "-nogpu", "-dont_show", "-no_rehearsal", "-workers", "0", "-quiet"]
    words += ["-set", "net.max_batches=3", "net.burn_in=0", "net.batch=4", "net.subdivisions=2"]
    output = run(place, *command, "train", *common, *words, PYTHONPATH=str(site))
    assert "using the one that comes with darknetpy" in output and " mean average precision (mAP@0.50) = " in output
    (weights,) = (place / "backup").glob("*_final.weights")
    picture = next((site / "darknetpy" / "assets" / "data" / "digits" / "valid").glob("*.jpg"))
    test = ["test", *common, str(weights), str(picture), "-dont_show", "-nogpu"]
    output = run(place, *command, *test, PYTHONPATH=str(site))
    assert f"{picture}: Predicted in" in output


@pytest.mark.parametrize(("version", "warned"), [("4.5.1", True), ("0.1.0", False), (None, False)])
def test_a_namesake_is_warned_of(monkeypatch, recwarn, version, warned):
    """The name on the public index is another project's, at 4.x."""

    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    importlib.reload(darknetpy)
    said = [str(warning.message) for warning in recwarn]
    assert bool(said) == warned
    if warned:
        assert said[0].startswith("darknetpy 4.5.1 of the public package index, another project") and len(said) == 1
        assert "pip uninstall darknetpy" in said[0]
