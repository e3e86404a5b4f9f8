"""`.weights` and `.pt` files: the same bytes back, and one sentence for what doesn't fit or would do harm."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SHARED, shared

from darknetpy import Network, ptfile
from darknetpy.config import parse_cfg
from darknetpy.errors import MissingFileError, WeightsError
from darknetpy.layers import read_structure, registry
from darknetpy.layers.base import Layer
from darknetpy.ptfile import load_plain, load_pt, read_pt, write_pt
from darknetpy.weights import Block, Header, read_header, read_weights

NET = "[net]\nwidth=8\nheight=8\nchannels=3\n"
BN = ("biases", "scales", "rolling_mean", "rolling_variance")
CONV, DENSE = (*BN, "weights"), ("biases", "weights", "scales", "rolling_mean", "rolling_variance")


def parts(names: str, tensors: tuple[str, ...]) -> list[str]:
    return [f"{part}.{tensor}" for part in names.split() for tensor in tensors]


CASES = {
    "convolutional": ("[conv]\nbatch_normalize=1\nfilters=4\nsize=3\n", list(CONV)),
    "convolutional groups": ("[conv]\nfilters=6\ngroups=3\nsize=3\nantialiasing=1\n", ["biases", "weights"]),
    "convolutional xnor": ("[conv]\nfilters=6\nsize=3\nxnor=1\nbatch_normalize=1\n", list(CONV)),
    "connected": ("[connected]\noutput=5\nbatch_normalize=1\n", list(DENSE)),
    "connected plain": ("[connected]\noutput=5\n", ["biases", "weights"]),
    "local": ("[local]\nfilters=2\nsize=3\nstride=2\n", ["biases", "weights"]),
    "batchnorm": ("[batchnorm]\n", list(BN)),
    "shortcut": ("[empty]\n[empty]\n[shortcut]\nfrom=-2\nweights_type=per_channel\nweights_normalization=softmax\n",
                 ["weights"]),
    "implicit": ("[implicit]\nfilters=6\natoms=2\n", ["weights"]),
    "rnn": ("[rnn]\noutput=3\nhidden=4\nbatch_normalize=1\n", parts("input_layer self_layer output_layer", DENSE)),
    "gru": ("[gru]\noutput=3\nbatch_normalize=1\n", parts("input_z input_r input_h state_z state_r state_h", DENSE)),
    "lstm": ("[lstm]\noutput=3\nbatch_normalize=1\n", parts("wf wi wg wo uf ui ug uo", DENSE)),
    "crnn": ("[crnn]\noutput=3\nhidden=4\npad=1\nbatch_normalize=1\n",
             parts("input_layer self_layer output_layer", CONV)),
    "conv_lstm": ("[conv_lstm]\noutput=3\npad=1\npeephole=1\n",
                  parts("vf vi vo wf wi wg wo uf ui ug uo", ("biases", "weights"))),
    "conv_lstm bottleneck": ("[conv_lstm]\noutput=3\npad=1\npeephole=1\nbottleneck=1\nbatch_normalize=1\n",
                             parts("vf vi vo wf uf ui ug uo", CONV)),
}  # fmt: skip
"""Cfg of a layer with tensors, and the order of its arrays in a file."""
SMALL = CASES["convolutional"][0] + "[maxpool]\nstride=2\n" + CASES["connected"][0]
HEADERS = [
    Header(0, 1, 0, 7), Header(0, 2, 5, 2**40 + 3), Header(), Header(0, 1, -1, 2**32 - 1), Header(1, 0, 0, 2**64 - 1),
    Header(0, 2000, 5, 9), Header(2000, 0, 0, 9),
]  # fmt: skip


def network(text: str = SMALL, **options) -> Network:
    return Network(parse_cfg(NET + text, "a.cfg", options.get("strict", False)), **options)


def content(net: Network, header: Header, seed: int = 1) -> bytes:
    """A file of random numbers for a network."""
    rng = np.random.default_rng(seed)
    return header.encode() + rng.standard_normal(net.structure.parameters_stored).astype("<f4").tobytes()


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Write bytes to a file of the working directory, and give its name."""
    monkeypatch.chdir(tmp_path)

    def write(data: bytes, name: str = "a.weights") -> str:
        Path(name).write_bytes(data)
        return name

    return write


def refused(read, *words) -> str:
    with pytest.raises(WeightsError) as caught:
        read(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- round trips -------------------------------------------------------------------------------------------------


def test_every_type_with_tensors_has_a_case() -> None:
    with_tensors = {name for name, cls in registry.all_types().items() if cls.tensors is not Layer.tensors}
    assert {case.split()[0] for case in CASES} == with_tensors


@pytest.mark.parametrize("case", CASES)
def test_arrays_stand_in_darknets_order(case: str) -> None:
    text, names = CASES[case]
    assert [spec.name for spec in network(text).layers[-1].tensors() if spec.stored] == names


@pytest.mark.parametrize("header", HEADERS, ids=lambda h: f"{h.major}.{h.minor}.{h.revision}")
@pytest.mark.parametrize("case", CASES)
def test_a_file_that_was_read_is_written_with_the_same_bytes(case: str, header: Header, put) -> None:
    net = network(CASES[case][0])
    data = content(net, header)
    name = put(data)
    assert read_header(name) == header
    loaded = net.load_weights(name)
    assert loaded.layers == len(net.layers)
    net.save_weights("b.weights")
    assert Path("b.weights").read_bytes() == data
    net.save_weights("b.pt")
    other = network(CASES[case][0], weights="b.pt")
    assert other.header == header
    other.save_weights("c.weights")
    assert Path("c.weights").read_bytes() == data


@pytest.mark.parametrize("case", [case for case in CASES if case.split()[0] in ("connected", "rnn", "gru", "lstm")])
def test_old_files_hold_dense_matrices_transposed(case: str, put) -> None:
    text = CASES[case][0]
    old, new = network(text), network(text)
    old.load_weights(put(content(old, Header(0, 1001, 0))))
    new.load_weights(put(content(new, Header())))
    for (_, spec, a), (_, _, b) in zip(old.named_tensors(), new.named_tensors(), strict=True):
        want = b.reshape(tuple(reversed(b.shape))).T if spec.name.endswith("weights") else b
        assert torch.equal(a, want), spec.name


def test_flipped_weights_are_turned_when_a_weights_file_is_read_but_not_a_pt(put) -> None:
    net = network("[conv]\nfilters=4\nsize=3\nflipped=1\n")
    data = content(net, Header())
    net.load_weights(put(data))
    stored = torch.frombuffer(bytearray(data[20 + 16 :]), dtype=torch.float32)
    assert torch.equal(net.slots[0].weights.flatten(1), stored.view(27, 4).T)
    net.save_weights("a.pt")
    other = network("[conv]\nfilters=4\nsize=3\nflipped=1\n", weights="a.pt")
    assert torch.equal(other.slots[0].weights, net.slots[0].weights)


@pytest.mark.parametrize("case", ["shared", "dontload", "dontloadscales"])
def test_what_a_file_does_not_give(case: str, put) -> None:
    conv = "[conv]\nbatch_normalize=1\nfilters=3\nsize=3\npad=1\n"
    line = {"shared": "share_index=0\n"}.get(case, f"{case}=1\n")
    net = network(conv + conv + line)
    own, second = (3 * 4 + 81), {"shared": 0, "dontload": 0, "dontloadscales": 3 + 81}[case]
    net.load_weights(put(Header().encode() + np.arange(own + second, dtype="<f4").tobytes()))
    assert net.slots[0].weights.flatten()[-1] == own - 1
    if case == "dontloadscales":
        assert net.slots[1].weights.flatten()[-1] == own + second - 1
        assert net.slots[1].scales.tolist() == [1, 1, 1]
    net.save_weights("a.pt")
    network(conv + conv + line, weights="a.pt")


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_cut_files_leave_later_layers_as_they_were(cut: int, put, caplog) -> None:
    net, other = network(), network()
    net.save_weights(f"a.conv.{cut}", cutoff=cut)
    loaded = other.load_weights(f"a.conv.{cut}")
    last = {0: 0, 1: 2, 2: 2, 3: 3}[cut]
    assert loaded.layers == last
    assert torch.equal(net.slots[0].weights, other.slots[0].weights) == (cut > 0)
    assert torch.equal(net.slots[2].weights, other.slots[2].weights) == (cut > 2)
    assert any("keep their initial values" in message for message in caplog.messages) == (cut < 3)
    assert os.path.getsize(f"a.conv.{cut}") == 20 + 4 * sum(layer.parameters_stored for layer in net.layers[:cut])


def _smallest() -> dict[str, tuple[int, str]]:
    """For each layer type with parameters in the corpus, the smallest weights file: its size and the cfg."""
    best: dict[str, tuple[int, str]] = {}
    for path in sorted(SHARED.glob("corpus/layers/*/*.json")):
        row = json.loads(path.read_text())
        for layer in row.get("layers", ()):
            found = row["weights_file_bytes"], str(path.relative_to(SHARED / "corpus/layers").with_suffix(".cfg"))
            if layer.get("params"):
                best[layer["type"]] = min(found, best.get(layer["type"], found))
    return best


def test_sizes_are_those_of_darknets_files(tmp_path) -> None:
    folder = shared("corpus", "cfg")
    best = _smallest()
    assert {case.split()[0] for case in CASES} == set(best)
    for size, name in best.values():
        structure = read_structure(folder / name, batch=1)
        assert 20 + 4 * structure.parameters_stored == size, name
        if size < 1 << 20:
            Network(folder / name).save_weights(tmp_path / "a.weights")
            assert (tmp_path / "a.weights").stat().st_size == size, name


# --- .weights that do not fit ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is 0 bytes long, too short for a header of 16 or 20 bytes"),
        (b"\0" * 15, "is 15 bytes long, too short for a header of 16 or 20 bytes"),
        (struct.pack("<iiiI", 0, 2, 5, 0), "is 16 bytes long, too short for a header of 20 bytes"),
        (struct.pack("<iiiQ", -1, 2, 5, 0), "has the impossible version -1.2.5; is it damaged?"),
        (struct.pack("<iiiQ", 2**31 - 1, 2**31 - 1, 2**31 - 1, 2**64 - 1), "has the impossible version 2147483647."),
        (b"\xff" * 20, "has the impossible version -1.-1.-1"),
        (b"<!DOCTYPE html>......", "is a web page (HTML), not a .weights file"),
        (b"PK\x03\x04" + b"\0" * 40, "is a zip archive (a .pt file?), not a .weights file"),
        (b"[net]\nwidth=416\nheight=416\n", "is text (a cfg?), not a .weights file"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_headers_that_are_none(data: bytes, sentence: str, strict: bool, put) -> None:
    net = network(strict=strict)
    assert refused(net.load_weights, put(data)).startswith(f"a.weights: {sentence}")


def test_paths_that_are_no_file(put) -> None:
    for path in ("/dev/zero", "."):
        assert "is no ordinary file" in refused(network().load_weights, path)
    for path in ("no.weights", "a\0b", "no.pt"):
        with pytest.raises(MissingFileError, match="Couldn't open file"):
            network().load_weights(path)


@pytest.mark.parametrize("extra", [-400, -41, -4, -3, -1, 1, 3, 4, 400])
def test_a_file_of_another_length_is_refused_by_default_and_nothing_is_changed(extra: int, put, caplog) -> None:
    net = network()
    data = content(net, Header())
    before = [tensor.detach().clone() for _, _, tensor in net.named_tensors()]
    sentence = refused(net.load_weights, put((data + b"\0" * 400)[: len(data) + extra]))
    want = "is longer than the network" if extra > 0 else "ends inside layer 2 [connected]"
    assert want in sentence
    assert f"expected {len(data)} bytes for this cfg, the file has {len(data) + extra}" in sentence
    assert all(torch.equal(a, b) for a, (_, _, b) in zip(before, net.named_tensors(), strict=True))
    strict = network(strict=True)
    strict.load_weights("a.weights")
    assert want in caplog.text
    values = np.frombuffer((data + b"\0" * 400)[20 : len(data) + extra // 4 * 4], "<f4")
    flat = torch.cat([tensor.detach().flatten() for _, _, tensor in strict.named_tensors()]).numpy()
    count = min(len(values), len(flat))
    np.testing.assert_array_equal(flat[:count], values[:count])


def test_some_bytes_behind_a_cut_at_a_layer_are_no_cut_at_a_layer(put) -> None:
    net = network()
    net.save_weights("a.conv.1", cutoff=1)
    data = Path("a.conv.1").read_bytes()
    assert "ends inside layer 2" in refused(net.load_weights, put(data + b"\0"))


def test_sizes_are_compared_before_anything_is_allocated(put) -> None:
    layout = [Block(0, "convolutional", [("weights", (1 << 20, 1 << 20))])]
    assert "ends inside layer 0" in refused(read_weights, put(Header().encode() + b"\0" * 8), layout)
    with open("a.weights", "r+b") as stream:
        stream.truncate(1 << 42)
    assert f"the file has {1 << 42}" in refused(network().load_weights, "a.weights")
    loaded = read_weights("a.weights", [Block(0, "x", [("weights", ((1 << 40) - 5,))])], strict=True)
    assert not loaded.cut_inside, "4 TiB of holes, mapped and not read"


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_none_are_said_and_kept(number: float, put, caplog) -> None:
    net = network()
    data = bytearray(content(net, Header()))
    data[-8:-4] = data[40:44] = struct.pack("<f", number)
    net.load_weights(put(bytes(data)))
    assert "a.weights: layer 0: 1 of 4 scales are inf or nan" in caplog.text
    net.save_weights("b.weights")
    assert Path("b.weights").read_bytes() == bytes(data)
    assert "tensor 0.scales holds inf or nan" in refused(net.save_weights, "b.pt")
    assert not os.path.exists("b.pt")


def test_large_numbers_whose_sum_overflows_are_numbers(put, caplog) -> None:
    net = network()
    count = net.structure.parameters_stored
    net.load_weights(put(Header().encode() + np.full(count, 3e38, "<f4").tobytes()))
    assert not caplog.messages


# --- .pt ---------------------------------------------------------------------------------------------------------


def saved(value) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def good() -> dict:
    """The content of a .pt file of the small network."""
    net = network()
    return {
        "format": "darknetpy", "version": 1, "cfg": NET + SMALL, "header": [0, 2, 5, 0],
        "tensors": {f"{layer.index}.{spec.name}": t.detach().clone() for layer, spec, t in net.named_tensors()},
    }  # fmt: skip


def changed(key: str, value) -> dict:
    held = good()
    if key in held:
        held[key] = value
    elif value is None:
        del held["tensors"][key]
    else:
        held["tensors"][key] = value
    return held


def test_a_pt_file_comes_back_with_the_same_bytes_and_is_plain(put) -> None:
    net = network()
    net.save_weights("a.pt", Header(seen=12345))
    held = torch.load("a.pt", weights_only=True)
    assert (held["format"], held["header"], held["cfg"]) == ("darknetpy", [0, 2, 5, 12345], NET + SMALL)
    other = network(weights="a.pt")
    assert other.seen == 12345
    os.mkdir("b")  # the archive names its file
    other.save_weights("b/a.pt")
    assert Path("b/a.pt").read_bytes() == Path("a.pt").read_bytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_types_are_converted(dtype: torch.dtype, put) -> None:
    held = good()
    held["tensors"] = {name: tensor.to(dtype) for name, tensor in held["tensors"].items()}
    net = network(weights=put(saved(held), "a.pt"))
    assert torch.equal(net.slots[2].weights, held["tensors"]["2.weights"].float())


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function, *words):
        self.call = function, words

    def __reduce__(self):
        return self.call


HARM = Call(os.system, "touch harm")
WIDE = torch.zeros(1).expand(1 << 40)
BAD = {
    "missing tensor": (changed("2.weights", None), "has no tensor 2.weights for layer 2 [connected]"),
    "extra layer": (changed("9.weights", torch.zeros(1)), "has a tensor 9.weights that has no place in this cfg"),
    "extra array": (changed("2.more", torch.zeros(1)), "has a tensor 2.more that has no place"),
    "shape": (changed("0.biases", torch.zeros(5)), "tensor 0.biases is (5,), this cfg needs (4,)"),
    "expanded": (changed("0.biases", WIDE), "tensor 0.biases is (1099511627776,), this cfg needs (4,)"),
    "expanded and extra": (changed("x", WIDE), "has a tensor x that has no place"),
    "whole numbers": (changed("0.biases", torch.zeros(4, dtype=torch.int64)), "0.biases holds int64, not floating"),
    "complex": (changed("0.biases", torch.zeros(4, dtype=torch.complex64)), "it names torch.ComplexFloatStorage"),
    "sparse": (changed("0.biases", torch.zeros(4).to_sparse()), "is no plain-tensor PyTorch file"),
    "meta": (changed("0.biases", torch.zeros(4, device="meta")), "is no plain-tensor PyTorch file"),
    "parameter": (changed("0.biases", torch.nn.Parameter(torch.zeros(4))), "parts missing or damaged"),
    "inf": (changed("0.biases", torch.full((4,), torch.inf)), "layer 0: 4 of 4 biases are inf or nan"),
    "nan": (changed("0.biases", torch.full((4,), torch.nan)), "layer 0: 4 of 4 biases are inf or nan"),
    "too large": (changed("0.biases", torch.full((4,), 1e300, dtype=torch.float64)), "4 of 4 biases are inf or nan"),
    "no dict": (
        [1, 2],
        "is a PyTorch file, but not one of darknetpy's; `darknetpy export CFG FILE.pt OUT.weights` turns",
    ),
    "a tensor": (torch.zeros(3), "is a PyTorch file, but not one of darknetpy's"),
    "another format": ({**good(), "format": "x"}, "is a PyTorch file, but not one of darknetpy's"),
    "tensors is a list": (changed("tensors", [torch.zeros(1)]), "with parts missing or damaged"),
    "nested": (changed("tensors", {"0.biases": {"a": [{}]}}), "with parts missing or damaged"),
    "named by numbers": (changed("tensors", {0: torch.zeros(4)}), "with parts missing or damaged"),
    "no cfg": (changed("cfg", 3), "with parts missing or damaged"),
    "names of numbers": ({**good(), "names": ["cat", 1]}, "with parts missing or damaged"),
    "names that are none": ({**good(), "names": "cat"}, "with parts missing or damaged"),
    "too many names": ({**good(), "names": ["cat"] * 100_001}, "with parts missing or damaged"),
    "short header": (changed("header", [0, 2, 5]), "with parts missing or damaged"),
    "header of words": (changed("header", ["a"] * 4), "with parts missing or damaged"),
    "header of nan": (changed("header", [0, 2, 5, float("nan")]), "with parts missing or damaged"),
    "huge header": (changed("header", [2**40, 2, 5, 0]), "with parts missing or damaged"),
    "huge seen": (changed("header", [0, 1, 0, 2**32]), "with parts missing or damaged"),
    "negative seen": (changed("header", [0, 2, 5, -1]), "with parts missing or damaged"),
    "a command": (changed("cfg", HARM), "is no plain-tensor PyTorch file: it names posix.system"),
    "python": (Call(eval, "open('harm', 'w')"), "it names"),
    "memory": (changed("cfg", Call(bytearray, 1 << 40)), "bytearray"),
    "copies": (changed("cfg", [Call(dict, [(1, 2)])]), "is no plain-tensor PyTorch file"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_pt_file_that_does_not_fit_is_refused_in_one_sentence(case: str, put) -> None:
    value, sentence = BAD[case]
    assert sentence in refused(network().load_weights, put(saved(value), "a.pt"))
    assert not os.path.exists("harm")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", [HARM, {"format": "darknetpy", "cfg": HARM}], ids=["bare", "nested"])
def test_nothing_in_a_raw_pickle_runs(value, protocol: int, put) -> None:
    data = pickle.dumps(value, protocol)
    for name in ("a.pt", "a.pth"):
        assert "is no PyTorch file (not a zip archive)" in refused(network().load_weights, put(data, name))
    assert "is no PyTorch file" in refused(load_plain, put(archive({"a/data.pkl": data}).removeprefix(b"PK"), "b.pt"))
    assert refused(load_plain, put(archive({"a/data.pkl": data, "a/version": b"3"}), "c.pt"))
    assert not os.path.exists("harm")


def test_an_old_kind_of_torch_file_is_refused(put) -> None:
    stream = io.BytesIO()
    torch.save(good(), stream, _use_new_zipfile_serialization=False)
    assert "not a zip archive" in refused(load_pt, put(stream.getvalue(), "a.pt"))


def archive(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as target:
        for name, data in files.items():
            target.writestr(name, data)
    return stream.getvalue()


def files_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        return {entry.filename: source.read(entry) for entry in source.infolist()}


def _double(text: bytes) -> bytes:
    """A pickle of 40 lists, each of which holds the one before twice."""
    steps = b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(40))
    return b"\x80\x02X" + struct.pack("<I", len(text)) + text + b"q\0" + steps + b"."


def text(word: str) -> bytes:
    """The step of a pickle that puts a text on the stack."""
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def aliases(data: bytes) -> bytes:
    """An archive of one large part, which its description names in 60 ways: torch's reader takes any case."""
    names = ["".join(letters) for letters in itertools.product("aA", repeat=6)][:60]
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n%s" + text("cpu")
    storage += b"J" + struct.pack("<i", len(data) // 4) + b"tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(%sK\0K\4\x85K\1\x85\x89ccollections\nOrderedDict\n)RtR"
    steps = b"".join(tensor.replace(b"%s", storage.replace(b"%s", text(name))) for name in names)
    return archive({"a/data.pkl": b"\x80\x02](" + steps + b"e.", "a/data/aaaaaa": data, "a/version": b"3"})


COPIES = b"\x80\x02](}q\1(%su" % b"".join(text(str(i)) + b"N" for i in range(20_000))
COPIES += b"ccollections\nOrderedDict\n)Rh\1b" * 500 + b"e."
"""A pickle that gives the same large dict to 500 others as attributes."""


def archives() -> dict[str, tuple[bytes, str]]:
    whole = saved(good())
    files = files_of(whole)
    pickled = files["archive/data.pkl"]
    zeros = bytes(1 << 25)
    larger = pickled.replace(b"K\x04tq", b"J\xff\xff\xff\x7ftq", 1)
    assert larger != pickled
    ordered = b"\x80\x02ccollections\nOrderedDict\nq\0](K\1K\2\x86e\x85R."
    return {
        "empty": (b"", "not a zip archive"),
        "text": (b"[net]\n", "not a zip archive"),
        "cut": (whole[:-200], "is cut off or followed by something else"),
        "followed": (whole + b"\0", "is cut off or followed by something else"),
        "in front": (b"\x80\x02" + whole, "not a zip archive"),
        "no description": (archive({"a/version": b"3"}), "its parts are not those of one"),
        "two descriptions": (archive({**files, "archive/DATA.PKL": pickled}), "its parts are not those of one"),
        "no archive inside": (b"PK\x03\x04" + b"\0" * 50 + b"PK\x05\x06" + b"\0" * 18, "its parts are not"),
        "compressed": (archive(files, zipfile.ZIP_DEFLATED), "claims to unpack to"),
        "bomb": (archive({**files, "archive/data/0": zeros}, zipfile.ZIP_DEFLATED), "claims to unpack to"),
        "long description": (archive({"a/data.pkl": zeros}), "has a description longer than that of any network"),
        "torn description": (archive({**files, "archive/data.pkl": pickled[:-30]}), "is no plain-tensor PyTorch file"),
        "underflow": (archive({**files, "archive/data.pkl": b"\x80\x02RRR."}), "is no plain-tensor PyTorch file"),
        "unmarked": (archive({**files, "archive/data.pkl": b"\x80\x02]e."}), "is no plain-tensor PyTorch file"),
        "unremembered": (archive({**files, "archive/data.pkl": b"\x80\x02h\x07."}), "is no plain-tensor PyTorch file"),
        "doubled lists": (archive({**files, "archive/data.pkl": _double(b"a" * 1000)}), "not one of darknetpy's"),
        "dicts of lists": (archive({**files, "archive/data.pkl": ordered}), "it calls what torch.save does not"),
        "no storages": (archive({n: d for n, d in files.items() if "/data/" not in n}), "whose storage is missing"),
        "short storage": (
            archive({**files, "archive/data.pkl": larger}),
            "whose storage is missing or of another size",
        ),
        "one storage by many names": (aliases(zeros), "whose storage is missing or of another size"),
        "copied containers": (archive({**files, "archive/data.pkl": COPIES}), "it copies a container"),
    }


ARCHIVES = archives()


@pytest.mark.parametrize("case", ARCHIVES)
def test_archives_that_torch_did_not_write_are_refused_in_one_sentence(case: str, put) -> None:
    data, sentence = ARCHIVES[case]
    assert sentence in refused(network().load_weights, put(data, "a.pt"))


def test_a_description_of_more_steps_than_any_network_takes_is_not_read_to_its_end(put, monkeypatch) -> None:
    monkeypatch.setattr(ptfile, "_MOST_STEPS", 1000)
    name = put(archive({"a/data.pkl": b"\x80\x02(" + b"N" * 2000 + b"l."}), "a.pt")
    assert refused(load_plain, name) == "a.pt: is no plain-tensor PyTorch file (step 1001: NONE)"


def test_an_archive_written_again_without_compression_is_read(put) -> None:
    assert load_pt(put(archive(files_of(saved(good()))), "a.pt"))["format"] == "darknetpy"


@pytest.mark.parametrize("claim", [(1 << 40,), (1 << 20, 1 << 20)])
@pytest.mark.parametrize("stride", [0, 1])
def test_tensors_larger_than_their_storage_take_no_memory(claim: tuple, stride: int, put) -> None:
    """The file says a shape of terabytes over 16 bytes; only a stride of 0 makes a tensor of them."""
    held = good()
    held["tensors"]["0.biases"] = torch.zeros(4).as_strided(claim, (0,) * len(claim))
    data = saved(held)
    files = files_of(data)
    if stride:
        steps = b"K\0" * len(claim)
        pickled = files["archive/data.pkl"]
        end = {1: b"K\0\x85", 2: b"K\0K\0\x86"}[len(claim)]
        assert steps in pickled
        files["archive/data.pkl"] = pickled.replace(end, end.replace(b"K\0", b"K\1"), 1)
    assert "a.pt: " in refused(network().load_weights, put(archive(files), "a.pt"))


def test_tensors_are_read_from_the_mapped_file(put) -> None:
    """64 MiB of numbers that nobody looks at stay on disk; the worst files cost little, mapped or not."""
    worst = {f"{i}.pt": data for i, (data, _) in enumerate(ARCHIVES.values())}
    worst |= {f"{case.replace(' ', '_')}.pt": saved(BAD[case][0]) for case in ("expanded", "memory", "copies")}
    worst["large.pt"] = saved({"format": "darknetpy", "tensors": {"0.x": torch.zeros(1 << 24)}})
    for name, data in worst.items():
        put(data, name)
    put(saved(torch.zeros(1)), "small.pt")
    code = (
        "import resource, sys, torch\n"
        "from darknetpy.errors import WeightsError\n"
        "from darknetpy.ptfile import load_plain\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "load_plain('small.pt', True); before = peak()\n"
        "load_plain('large.pt', True)\n"
        "assert peak() - before < 32, peak() - before\n"
        "for name in sys.argv[1:]:\n"
        "    for mapped in (False, True):\n"
        "        try: load_plain(name, mapped)\n"
        "        except WeightsError: pass\n"
        "        assert peak() - before < 250, (name, mapped, peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *worst], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_failed_write_leaves_the_old_file(put) -> None:
    put(b"old", "a.pt")
    with pytest.raises(WeightsError, match=r"a.pt: is not written: tensor 0.x holds inf or nan"):
        write_pt("a.pt", "", Header(), {"0.x": torch.tensor([torch.nan])})
    assert Path("a.pt").read_bytes() == b"old"
    assert os.listdir(".") == ["a.pt"]


def test_text_of_another_encoding_is_kept_readable(put) -> None:
    write_pt("a.pt", b"[net]\n# gr\xf6\xdfe\n".decode("utf-8", "surrogateescape"), Header(), {})
    assert load_pt("a.pt")["cfg"] == "[net]\n# gr\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}e\n"
    assert read_pt("a.pt", []).arrays == {}
