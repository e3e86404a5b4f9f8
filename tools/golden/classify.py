"""Classifiers: stored inputs and outputs, what `classifier predict` and `valid` print."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tempfile
from pathlib import Path

import numpy as np
import torch

from darknetpy import Classifier
from darknetpy.cli.main import main
from darknetpy.images import load_image
from tools.golden.common import Outcome, Places, Worst, inside

OUTPUT = 1e-5
DECODER = 0.02
"""Darknet decoded JPEGs with another decoder: inputs differ by so much, probabilities by less."""
GUESS = 2e-3
_GUESS = re.compile(r"^(?:(\d+), )?(.+): (\d\.\d{6})(?:, parent: (.+) )?$")
_RUNNING = re.compile(r"^(\d+): top 1: (\d\.\d+), top (\d+): (\d\.\d+)$", re.M)


def is_case(folder: Path) -> bool:
    return (folder / "golden.npz").exists() and any(folder.glob("predict_*.stdout.txt"))


def check(folder: Path, places: Places) -> list[Outcome]:
    """Numbers by the Python API, then every command of `commands.txt` that is about this folder."""
    outcomes = [_numbers(folder, places)]
    with tempfile.TemporaryDirectory() as place, inside(Path(place)):
        _lay_out(folder, places)
        for line in (folder.parent / "commands.txt").read_text().splitlines():
            name, _, command = line.partition(": ")
            if name.startswith(f"{folder.name}/"):
                outcomes.append(_command(folder, name.partition("/")[2], shlex.split(command)))
    return outcomes


def _lay_out(folder: Path, places: Places) -> None:
    """The working directory of the commands: the case's files, the list, pictures."""
    for file in folder.iterdir():
        if file.suffix in (".cfg", ".data", ".names", ".tree", ".weights"):
            Path(file.name).symlink_to(file)
    Path("valid.txt").symlink_to(folder.parent / "valid.txt")
    Path("dataset").symlink_to(folder.parent.parent / "map" / "dataset")
    picture = places.image(folder, "dog.jpg")
    if picture is None:
        raise FileNotFoundError("pictures not found")
    Path("images").symlink_to(picture.parent)


def _numbers(folder: Path, places: Places) -> Outcome:
    worst, stored = Worst(), np.load(folder / "golden.npz")
    with inside(folder):
        cfg = f"{folder.name}.cfg"
        classifier = Classifier(cfg, f"{folder.name}.weights", f"{folder.name}.names")
    for key in (key for key in stored.files if key.endswith("_input")):
        name = key.removesuffix("_input")
        given = stored[key].reshape(1, *classifier.prepare(np.zeros((3, 64, 64), np.float32)).shape)
        picture = places.image(folder, f"{name}.jpg")
        if picture is not None:
            prepared = classifier.prepare(load_image(picture))
            worst.see(key, np.abs(prepared - given[0]).max(), DECODER)
        conditional = classifier.network.layer_outputs(torch.from_numpy(given))[classifier.output.index]
        worst.see(
            f"{name} softmax", np.abs(conditional.numpy().ravel() - stored[f"{name}_softmax"].ravel()).max(), OUTPUT
        )
        down = f"{name}_hierarchy_predictions"
        if down in stored.files:
            found = classifier.probabilities(torch.from_numpy(given)).numpy().ravel()
            worst.see(down, np.abs(found - stored[down].ravel()).max(), OUTPUT)
    return worst.outcome(f"classify/{folder.name}")


def _command(folder: Path, name: str, words: list[str]) -> Outcome:
    worst, out = Worst(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        status = main(words[1:])
    if status:
        worst.fail(f"exit status {status}")
    compare = _running if name == "valid" else _guesses
    compare(out.getvalue(), (folder / f"{name}.stdout.txt").read_text(), worst)
    return worst.outcome(f"classify/{folder.name}/{name}")


def _guesses(mine: str, stored: str, worst: Worst) -> None:
    """The same classes, parents and order; probabilities as near as the decoders are."""
    found, want = (text[text.index(" classes = ") :].splitlines() for text in (mine, stored))
    plain = lambda lines: [re.sub(r"\d+\.\d+", "#", line) for line in lines]  # noqa: E731
    if plain(found) != plain(want):
        worst.fail(f"{found} instead of {want}"[:300])
        return
    for a, b in zip(found, want, strict=True):
        if _GUESS.match(b):
            worst.see(b, abs(float(_GUESS.match(a)[3]) - float(_GUESS.match(b)[3])), GUESS)


def _running(mine: str, stored: str, worst: Worst) -> None:
    found, want = _RUNNING.findall(mine), _RUNNING.findall(stored)
    if not want or mine[mine.index(" TOP") :] != stored[stored.index(" TOP") :]:
        first = next((f"{a} instead of {b}" for a, b in zip(found, want, strict=False) if a != b), "other lines")
        worst.fail(first)
    worst.see("lines", 0.0, 0.0)
