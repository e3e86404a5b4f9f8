"""docs/layers.md is current, and its layer type from outside the package works."""

from __future__ import annotations

import dataclasses
import re
import sys
from dataclasses import dataclass

import pytest
import torch
from conftest import TESTS

sys.path.insert(0, str(TESTS.parent))

from darknetpy.layers import Layer, LayerOptions, key, register, registry
from darknetpy.training.learner import Learner
from tools import build_layer_docs

PAGE = build_layer_docs.PAGE.read_text(encoding="utf-8")
EXAMPLE = re.findall(r"(?<!<!-- not run -->\n)```python\n(.+?)```", PAGE, re.S)


def test_the_tables_are_current() -> None:
    assert build_layer_docs.page(PAGE) == PAGE, "run python tools/build_layer_docs.py"


def test_every_type_alias_and_key_is_there() -> None:
    for cls in registry.all_types().values():
        if cls.__module__.startswith("darknetpy."):
            assert all(f"`[{name}]`" in PAGE for name in registry.names_of(cls))
            rows = PAGE.partition(f"\n## {cls.type}\n")[2].partition("\n## ")[0]
            own = [item for item in dataclasses.fields(cls.Options) if item.name not in build_layer_docs.COMMON]
            assert all(f"| `{item.metadata.get('key') or item.name}` |" in rows for item in own), cls.type


@pytest.fixture
def outside():
    """A registry that forgets what a test adds."""
    before = dict(registry._CLASSES)
    yield
    registry._CLASSES.clear()
    registry._CLASSES.update(before)


def test_the_page_shows_a_type_that_runs_learns_and_is_saved(tmp_path, monkeypatch, outside) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "example"}
    assert len(EXAMPLE) == 2
    for block in EXAMPLE:
        exec(compile(block, str(build_layer_docs.PAGE), "exec", dont_inherit=True), names)
    network, again = names["network"], names["again"]
    assert network.layers[1].row() == "myblock   16 x  16 x   8"
    assert torch.equal(names["outputs"][1], torch.relu(0.5 * names["outputs"][0]))
    with torch.no_grad():
        network.slots[1].scales.uniform_(0, 1)
    network.save_weights("myblock.weights")
    again.load_weights("myblock.weights")
    assert all(
        torch.equal(a, b) for (_, _, a), (_, _, b) in zip(network.named_tensors(), again.named_tensors(), strict=True)
    )
    trained = names["Network"]("myblock.cfg", "myblock.weights", training=True)
    truth = torch.zeros(2, 90, 6)
    truth[:, 0] = torch.tensor([0.5, 0.5, 0.4, 0.4, 1, 0])
    before = trained.slots[1].scales.clone()
    Learner(trained).turn([(torch.rand(2, 3, 32, 32), truth)] * 2)
    assert not torch.equal(trained.slots[1].scales, before)


def test_annotations_that_are_no_text_are_read(outside, tmp_path) -> None:
    """The example's file has no `from __future__ import annotations`."""
    options = dataclasses.make_dataclass(
        "Options", [("many", list[int] | None, key(None, "numbers")), ("one", int, key(1, "number"))],
        bases=(LayerOptions,),
    )  # fmt: skip
    register("numbers")(type("Numbers", (Layer,), {"Options": options, "forward": lambda self, x, context: x}))
    from darknetpy.layers import read_structure

    (tmp_path / "n.cfg").write_text("[net]\nwidth=4\nheight=4\nchannels=1\n[numbers]\nmany=1, 2\none=3\n")
    layer = read_structure(tmp_path / "n.cfg", batch=1).layers[0]
    assert (layer.options.many, layer.options.one, layer.outputs) == ([1, 2], 3, 16)


def test_options_that_cannot_be_read_are_refused(outside) -> None:
    @dataclass
    class Foreign:
        one: int = 1

    @dataclass
    class WithoutKey(LayerOptions):
        one: int = 1

    class Undecorated(LayerOptions):
        one: int = key(1, "number")

    for options in (Foreign, WithoutKey, Undecorated):
        with pytest.raises(TypeError, match=r"Options must be a @dataclass class Options\(LayerOptions\)"):
            register("wrong")(type("Wrong", (Layer,), {"Options": options}))
    with pytest.raises(ValueError, match="registered already"):
        register("maxpool")(type("Mine", (Layer,), {}))
    assert registry.find("wrong") is None
