"""The network files in cfg/: Darknet's numbers for each layer, and templates that do what their comments say."""

from __future__ import annotations

import json

import pytest
from conftest import TESTS, shared

from darknetpy.config import read_cfg
from darknetpy.config.datafile import read_data, read_names
from darknetpy.layers import read_structure, table

ROOT = TESTS.parent
FILES = sorted(path.stem for path in (ROOT / "cfg").glob("*.cfg"))
PARITY = [name for name in FILES if name not in ("yolov4-tiny-digits", "yolov3-custom")]
"""Files that Darknet has under the same name."""
TEMPLATES = [name for name in FILES if name.endswith("-custom")]

NO_SETTINGS = {"i", "type", "in", "out", "bflops", "params", "background"}
"""Fields of a reference row that are compared elsewhere (background: a key that none of these files has)."""
KEYS = {"max_boxes": "max"}
"""Reference fields that a cfg spells otherwise."""


def _file(name: str):
    return ROOT / "cfg" / f"{name}.cfg"


def _reference(name: str):
    return shared("corpus", "cfg", "alexeyab", f"{name}.cfg")


def _rows(name: str) -> dict:
    return json.loads(shared("corpus", "layers", "alexeyab", f"{name}.json").read_text())


@pytest.mark.parametrize("name", FILES)
def test_lays_out_without_a_remark(name: str, caplog) -> None:
    structure = read_structure(_file(name)).check()
    assert structure.heads
    assert not caplog.records
    assert not any(layer.notes.unused for layer in structure.layers)


@pytest.mark.parametrize("name", PARITY)
def test_layers_are_darknets(name: str) -> None:
    want = _rows(name)
    structure = read_structure(_file(name), batch=1)
    assert [_shape(layer) for layer in structure.layers] == [_reference_shape(row) for row in want["layers"]]
    for layer, row in zip(structure.layers, want["layers"], strict=True):
        assert layer.bflops == pytest.approx(row.get("bflops", 0), rel=2e-5), layer.index
    assert 4 * structure.parameters_stored + want["weights_header_bytes"] == want["weights_file_bytes"]
    assert f"{structure.total_bflops:.3f}" == want["total_bflops"].strip()


@pytest.mark.parametrize("name", PARITY)
def test_heads_have_darknets_settings(name: str) -> None:
    structure = read_structure(_file(name), batch=1)
    rows = [row for row in _rows(name)["layers"] if row["type"] in ("yolo", "region")]
    assert len(structure.heads) == len(rows)
    for head, row in zip(structure.heads, rows, strict=True):
        for key in row.keys() - NO_SETTINGS:
            assert _setting(head, key) == _approximate(row[key]), (row["i"], key)


@pytest.mark.parametrize("name", PARITY)
def test_training_settings_are_darknets(name: str) -> None:
    ours, theirs = read_cfg(_file(name)), read_cfg(_reference(name))
    assert _values(ours.net) == _values(theirs.net)
    net = read_structure(_file(name), batch=1).net
    for key, value in _rows(name)["net"].items():
        if key in ("learning_rate", "momentum", "decay", "max_batches", "burn_in", "policy", "subdivisions"):
            assert getattr(net, key) == _approximate(value), key


@pytest.mark.parametrize("name", PARITY)
def test_each_section_says_what_darknets_says(name: str) -> None:
    ours, theirs = read_cfg(_file(name)), read_cfg(_reference(name))
    assert [section.type for section in ours.layers] == [section.type for section in theirs.layers]
    for index, (mine, other) in enumerate(zip(ours.layers, theirs.layers, strict=True)):
        assert _values(mine) == _values(other), index


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", PARITY)
def test_load_table_is_that_of_darknets_file(name: str, strict: bool) -> None:
    reference = _reference(name)
    assert table(read_structure(_file(name), strict, batch=1)) == table(read_structure(reference, strict, batch=1))


def test_yolov3_template_is_yolov3_with_a_batch_to_train_with() -> None:
    custom, plain = read_cfg(_file("yolov3-custom")), read_cfg(_file("yolov3"))
    assert [_values(section) for section in custom.layers] == [_values(section) for section in plain.layers]
    assert _values(custom.net) == {**_values(plain.net), "batch": "64", "subdivisions": "16"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_following_the_arrows_is_enough(name: str, tmp_path) -> None:
    """Two classes: change what stands below an arrow, nothing else."""
    new = {"max_batches": "6000", "steps": "4800,5400", "classes": "2", "filters": "21"}
    lines = _file(name).read_text().split("\n")
    places = [number + 1 for number, line in enumerate(lines) if line.startswith("# <- change")]
    keys = [lines[place].split("=")[0] for place in places]
    for place, key in zip(places, keys, strict=True):
        lines[place] = f"{key}={new[key]}"
    path = tmp_path / "mine.cfg"
    path.write_text("\n".join(lines))
    structure = read_structure(path).check()
    assert keys == ["max_batches", "steps"] + ["filters", "classes"] * len(structure.heads)
    assert [head.options.classes for head in structure.heads] == [2] * len(structure.heads)
    assert (structure.net.max_batches, list(structure.net.steps)) == (6000, [4800, 5400])


@pytest.mark.parametrize(("name", "classes"), [("coco", 80), ("voc", 20)])
def test_data_files_name_their_classes(name: str, classes: int, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    data = read_data(f"data/{name}.data")
    assert data.number("classes", 0) == len(read_names(data.names)) == classes
    assert data.values["eval"] == name
    assert data.backup == "backup"


@pytest.mark.parametrize("name", ["coco", "voc"])
def test_names_are_in_the_order_of_the_published_weights(name: str) -> None:
    reference = shared("corpus", "data", "alexeyab", f"{name}.names")
    assert read_names(ROOT / "data" / f"{name}.names") == read_names(reference)


def _values(section) -> dict[str, str | None]:
    """Key to value; the first of two lines wins, as in Darknet."""
    return {option.key: option.value for option in reversed(section.options)}


def _shape(layer) -> tuple:
    return layer.type, layer.w, layer.h, layer.c, layer.out_w, layer.out_h, layer.out_c, layer.parameters_stored


def _reference_shape(row: dict) -> tuple:
    return row["type"], *row["in"], *row["out"], row.get("params", 0)


def _setting(head, key: str):
    key = KEYS.get(key, key)
    return getattr(head, key) if hasattr(head, key) else getattr(head.options, key)


def _approximate(value):
    numeric = isinstance(value, int | float) or (isinstance(value, list) and value and not isinstance(value[0], str))
    return pytest.approx(value, rel=1e-5) if numeric else value
