"""Real cfg files and handmade ones: the layer table that Darknet computes for each."""

from __future__ import annotations

import collections
import json
import os
import re

import pytest
import torch
from conftest import SHARED, shared

from darknetpy.cli.main import main
from darknetpy.config import read_cfg
from darknetpy.config.numbers import to_float32
from darknetpy.errors import ConfigError
from darknetpy.layers import read_structure, table
from darknetpy.network import Network

CORPUS = SHARED / "corpus"
NAMES = sorted(str(p.relative_to(CORPUS / "layers").with_suffix("")) for p in CORPUS.glob("layers/*/*.json"))
WANTED = {name: json.loads((CORPUS / "layers" / f"{name}.json").read_text()) for name in NAMES}

LOADED_BY_DEFAULT = ("parse_shortcut", "SIGFPE")
"""Darknet's reasons for refusing files that the default loads: shortcuts between maps of different size, RNNs."""
REFUSED_ANYWAY = {
    "handmade/only_net": "no layer",
    # its mismatch is no multiple: 161 is 13 x 13, 167 is 14 x 14
    "csp/csresnext50-elastic-panet-spp": "width and height of the input layers are different",
}
DEFAULT_REFUSES = {
    "handmade/unclosed_section": "unknown section [yolo; did you mean [yolo]?",
    "handmade/unknown_section_last": "unknown section [foo]",
    "handmade/upper_section": "unknown section [YOLO]; did you mean [yolo]?",
}
"""Files that Darknet loads and the default refuses, with what it says."""
DEFAULT_DIFFERS = {"handmade/inline_comment_section", "handmade/inline_comment_string"}
"""A blank and `#` end a section name or a value by default, so the table is another one."""
PUT_OFF = {
    "alexeyab/cspx-p7-mish": "mask=16 is outside num=16",
    "alexeyab/cspx-p7-mish_hp": "anchors= has 31 numbers, num=16 needs 32",
    "rotate-darknet/yolov4-tiny-t12@fdeed95": "anchors= has 12 numbers, num=9 needs 18",
    "handmade/line_continuation": "anchors= has 5 numbers, num=3 needs 6",
    "handmade/yolo_num_too_small": "mask=2 is outside num=2",
    "handmade/groups_not_dividing": "groups=3 must divide 8 input channels",
    "handmade/route_forward": "layers=7 names layer 7, which does not come before it",
}
"""Files that are laid out as Darknet does, but refuse to run by default."""


@pytest.fixture(autouse=True)
def beside_the_data(tmp_path, monkeypatch):
    """Trees are read relative to the working directory."""
    (tmp_path / "data").mkdir()
    for file in CORPUS.glob("data/alexeyab/*"):
        os.symlink(file, tmp_path / "data" / file.name)
    monkeypatch.chdir(tmp_path)


def _lay_out(name: str, strict: bool):
    return read_structure(CORPUS / "cfg" / f"{name}.cfg", strict, batch=1)


def test_the_corpus_is_here() -> None:
    shared("corpus")
    assert len(NAMES) == 257


@pytest.mark.parametrize("name", [name for name in NAMES if WANTED[name]["darknet"] == "ok"])
def test_strict_gives_darknets_table(name: str) -> None:
    want = WANTED[name]
    structure = _lay_out(name, strict=True)
    _compare(structure, want)
    unused = collections.Counter(
        f"{key} = {'(null)' if value is None else value}"
        for layer in structure.layers
        for key, value, _ in layer.notes.unused
    )
    defaults = collections.Counter(
        f"{key} = {value}"
        for notes in (structure.net_notes, *(layer.notes for layer in structure.layers))
        for key, value in notes.defaults
    )
    messages = want.get("messages", {})
    assert unused == collections.Counter(messages.get("unused", {}))
    assert defaults == collections.Counter(messages.get("defaults", {}))


@pytest.mark.parametrize("name", NAMES)
def test_the_default_gives_the_same_table_or_says_why_not(name: str) -> None:
    want = WANTED[name]
    reason = REFUSED_ANYWAY.get(name) or DEFAULT_REFUSES.get(name)
    loads = want["darknet"] == "ok" or name == "handmade/bom" or any(r in want["error"] for r in LOADED_BY_DEFAULT)
    if reason or not loads:
        with pytest.raises(ConfigError) as caught:
            _lay_out(name, strict=False)
        assert (reason or "") in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    structure = _lay_out(name, strict=False)
    if "layers" in want and name not in DEFAULT_DIFFERS:
        _compare(structure, want)


@pytest.mark.parametrize("name", [n for n in NAMES if WANTED[n]["darknet"] != "ok" and "layers" not in WANTED[n]])
def test_strict_refuses_what_darknet_refuses(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _lay_out(name, strict=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "sentence"), PUT_OFF.items())
def test_a_useless_head_is_laid_out_but_does_not_run(name: str, sentence: str) -> None:
    shared("corpus")
    assert _lay_out(name, strict=False).layers
    with pytest.raises(ConfigError, match="layer") as caught:
        Network(CORPUS / "cfg" / f"{name}.cfg")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("words", [["test"], ["map"], ["train"]], ids=lambda words: words[0])
@pytest.mark.parametrize("name", ["alexeyab/cspx-p7-mish", "handmade/route_forward", "handmade/line_continuation"])
def test_commands_refuse_a_useless_network_in_one_sentence(name: str, words: list[str], tmp_path, capfd) -> None:
    shared("corpus")
    (tmp_path / "list.txt").write_text("a.jpg\n")
    (tmp_path / "a.names").write_text("one\n")
    (tmp_path / "a.data").write_text("classes=1\ntrain=list.txt\nvalid=list.txt\nnames=a.names\nbackup=b\n")
    assert main(["detector", *words, "a.data", str(CORPUS / "cfg" / f"{name}.cfg"), "-dont_show", "-nogpu"]) == 1
    last = capfd.readouterr().err.strip().split("\n")[-1]
    assert PUT_OFF[name] in last
    assert re.search(r"layer \d+, line \d+: .*; ", last), "names layer and line, and ends with a remedy"
    assert not (tmp_path / "b").exists() or not list((tmp_path / "b").iterdir())


def test_strict_lays_out_a_reference_to_a_later_layer_but_cannot_run_it() -> None:
    shared("corpus")
    network = Network(CORPUS / "cfg/handmade/route_forward.cfg", strict=True)
    with pytest.raises(ConfigError, match="layer 2: layers=7 names a layer that does not come before it"):
        network.layer_outputs(torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize("path", sorted(CORPUS.glob("tables/*.txt")), ids=lambda p: p.stem)
def test_the_load_table_is_darknets_text(path) -> None:
    name = path.stem.removesuffix(".ndebug")
    cfg = next(iter(sorted(CORPUS.glob(f"cfg/alexeyab/{name}.cfg"))), None) or CORPUS / f"cfg/yolo-fastest/{name}.cfg"
    structure = read_structure(cfg, strict=".ndebug" not in path.name, batch=1)
    assert table(structure).rstrip("\n").split("\n") == path.read_text().rstrip("\n").split("\n")


def test_utf8_mark_is_repaired_by_default_only() -> None:
    shared("corpus")
    assert _lay_out("handmade/bom", strict=False).layers
    with pytest.raises(ConfigError, match="before the first section"):
        read_cfg(CORPUS / "cfg/handmade/bom.cfg", strict=True)


def _compare(structure, want: dict) -> None:
    assert len(structure.layers) == want["n_layers"]
    for layer, row in zip(structure.layers, want["layers"], strict=True):
        size = [*getattr(layer, "host_size", (layer.out_w, layer.out_h)), layer.out_c]
        mine = {
            "type": layer.type,
            "out": size,
            "in": [layer.w, layer.h, layer.c],
            "params": layer.parameters_stored,
        }
        assert mine == {"type": row["type"], "out": row["out"], "in": row["in"], "params": row.get("params", 0)}, layer
        assert f"{to_float32(layer.bflops):.6g}" == f"{row.get('bflops', 0):.6g}", layer
        _compare_fields(layer, row)
    assert 20 + 4 * structure.parameters_stored == want["weights_file_bytes"]
    assert f"{structure.total_bflops:5.3f}".strip() == want["total_bflops"].strip()
    if "avg_outputs" in want:
        assert structure.average_outputs == want["avg_outputs"]


FIELDS = {
    "convolutional": ("filters", "size", "groups", "dilation", "activation"),
    "maxpool": ("size",),
    "route": ("layers", "groups", "group_id"),
    "upsample": ("stride",),
    "yolo": ("classes", "mask"),
    "Gaussian_yolo": ("classes", "mask"),
    "region": ("classes", "num", "coords"),
}
OPTIONS = (
    "ignore_thresh",
    "iou_thresh",
    "iou_normalizer",
    "scale_x_y",
    "jitter",
    "resize",
    "random",
    "iou_loss",
    "beta_nms",
)


def _compare_fields(layer, row: dict) -> None:
    for field in FIELDS.get(layer.type, ()):
        if field in row and hasattr(layer, field):
            assert getattr(layer, field) == row[field], (layer, field)
    if layer.type in ("yolo", "Gaussian_yolo"):
        assert (
            layer.anchors[: len(row["anchors"])] == pytest.approx(row["anchors"], rel=1e-5)
            or layer.options.anchors is None
        )
        for field in OPTIONS:
            if field in row and isinstance(row[field], int | float):
                assert getattr(layer.options, field) == pytest.approx(row[field], rel=1e-5), field
