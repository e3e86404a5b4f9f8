"""`-hier`: how likely a class of a class tree must be to be shown instead of its parent."""

from __future__ import annotations

import shutil

import cv2
import pytest
import torch
from conftest import golden
from small import picture

from darknetpy import Detector, Network
from darknetpy.cli.main import main
from darknetpy.inference.postprocess import detections_of

THRESH = 0.1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The golden network with a class tree, and what the command line needs beside it."""
    case = golden("forward", "region_tree")
    for name in ("net.cfg", "net.weights", "tree.txt"):
        shutil.copy(case / name, tmp_path)
    lines = (case / "tree.txt").read_text().splitlines()
    (tmp_path / "tree.names").write_text("".join(f"{line.split()[0]}\n" for line in lines))
    (tmp_path / "tree.data").write_text("classes=11\nnames=tree.names\n")
    cv2.imwrite(str(tmp_path / "noise.png"), picture())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _walked(tree, conditional: list[float], hier: float) -> int | None:
    """From the roots to the likeliest child, as long as the whole way is likelier than `hier` (scalar reference)."""
    here, likely = None, 1.0
    while True:
        children = [i for i, parent in enumerate(tree.parents) if parent == (-1 if here is None else here)]
        if not children:
            return here
        best = max(children, key=lambda i: (conditional[i], -i))
        if not likely * conditional[best] > hier:
            return here
        here, likely = best, likely * conditional[best]


@pytest.mark.parametrize("hier", [0.0, 0.05, 0.2, 0.35, 0.5, 0.7, 0.95])
def test_the_likeliest_branch_is_followed(folder, hier: float) -> None:
    network = Network("net.cfg", "net.weights")
    head = network.layers[-1]
    outputs = network.layer_outputs(torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)))
    found = detections_of([head], outputs, (32, 32), [(32, 32)] * 2, THRESH, hier)
    cells = head.cells(outputs[-1]).reshape(2, -1, head.entries)
    shown = set()
    for image in range(2):
        for row, probs in zip(cells[image], found[image].probs, strict=True):
            conditional = row[5:].tolist()
            wanted = _walked(head.tree, conditional, hier) if row[4] > THRESH else None
            assert torch.nonzero(probs).flatten().tolist() == ([] if wanted is None else [wanted])
            if wanted is not None:
                chain, likely = wanted, 1.0
                while chain >= 0:
                    likely, chain = likely * conditional[chain], head.tree.parents[chain]
                assert float(probs[wanted]) == pytest.approx(likely, rel=1e-5)
                shown.add(wanted)
    assert shown or hier > 0.9


def test_equals_are_decided_by_order() -> None:
    from darknetpy.layers.tree import Tree

    tree = Tree()
    for name, parent in (("a", -1), ("b", -1), ("c", 0), ("d", 0), ("e", 1)):
        tree.add(name, parent)
    assert tree.preferred(torch.tensor([0.5, 0.5, 0.5, 0.5, 1.0])).tolist() == [True, False, True, False, False]


def test_strict_has_darknets_threshold_always(folder) -> None:
    x = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    names = [f"{i}" for i in range(11)]
    default = Detector("net.cfg", "net.weights", names)
    strict = Detector("net.cfg", "net.weights", names, strict=True)
    at = lambda detector, hier: detector.predict(x, [(32, 32)], THRESH, 0, hier)[0].probs  # noqa: E731
    assert torch.equal(at(strict, 0.05), at(default, 0.5))
    assert torch.equal(at(strict, 0.95), at(default, 0.5))
    assert not torch.equal(at(default, 0.05), at(default, 0.5))


def test_the_flag_reaches_the_head(folder, capsys) -> None:
    def shown(*flags: str) -> list[str]:
        words = ["detector", "test", "tree.data", "net.cfg", "net.weights", "noise.png", "-thresh", "0.1"]
        assert main([*words, "-dont_show", "-quiet", *flags]) == 0
        return [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if line.endswith("%")]

    assert shown() == shown("-hier", "0.5") == shown("-hier", "0.01", "-strict")
    assert shown("-hier", "0.01") != shown()
    assert set(shown("-hier", "0")) <= {"cat", "bird", "car", "bus", "rose", "puppy", "hound"}  # leaves only
