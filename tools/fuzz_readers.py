"""Give the readers of cfg, `.data`, names, labels, weights and `.pt` files anything, for as long as you like.

python tools/fuzz_readers.py [--minutes N] [-k READER]

Whatever the bytes, a reader returns a value or raises one of the errors that become a sentence, in little time and
memory. What breaks that rule is printed with the smallest input that shows it, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import logging
import os
import resource
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from darknetpy.config import parse_cfg  # noqa: E402
from darknetpy.config.datafile import read_data, read_list, read_names  # noqa: E402
from darknetpy.data.labels import read_labels  # noqa: E402
from darknetpy.errors import DarknetpyError  # noqa: E402
from darknetpy.layers import read_structure, registry, table  # noqa: E402
from darknetpy.network import Network  # noqa: E402
from darknetpy.ptfile import load_plain  # noqa: E402

SLOWEST = 2.0
"""Seconds of a processor that no input may take."""
LARGEST = 400 << 10
"""KiB by which the process may grow over a call of `fuzz`."""
NET = "[net]\nwidth=16\nheight=16\nchannels=3\n"
SMALL = NET + "[convolutional]\nbatch_normalize=1\nfilters=4\nsize=3\n[connected]\noutput=5\n"
TYPES = sorted({*registry.all_types(), "net", "network", "nothing", "Convolutional"})
KEYS = sorted(
    {"width", "height", "channels", "batch", "subdivisions", "time_steps"}
    | {field.name for cls in registry.all_types().values() for field in dataclasses.fields(cls.Options)}
)
NUMBERS = [
    *("0", "1", "-1", "2", "3", "8", "1e9", "2147483647", "-2147483648", "4294967296"),
    *("1e400", "nan", ".5", "1,2,3", "x"),
]

numbers = st.sampled_from(NUMBERS) | st.integers(-(2**33), 2**33).map(str) | st.floats().map(str)
values = numbers | st.lists(numbers, max_size=8).map(",".join) | st.text(max_size=12)
options = st.tuples(st.sampled_from(KEYS) | st.text(max_size=8), values).map("=".join)
sections = st.tuples(st.sampled_from(TYPES).map("[{}]".format) | st.text(max_size=8), st.lists(options, max_size=6))
cfgs = st.lists(sections, max_size=12).map(
    lambda parts: NET + "\n".join("\n".join([head, *lines]) for head, lines in parts)
)


def mutated(data: bytes) -> st.SearchStrategy[bytes]:
    """A good file with some bytes replaced, cut out or added."""

    def apply(edits) -> bytes:
        result = bytearray(data)
        for at, length, new in edits:
            at %= len(result) + 1
            result[at : at + length] = new
        return bytes(result)

    return st.lists(
        st.tuples(st.integers(0, 1 << 20), st.integers(0, 64), st.binary(max_size=16)), min_size=1, max_size=6
    ).map(apply)


GOOD_CFG = (ROOT / "cfg/yolov4-tiny.cfg").read_bytes()
cfg_bytes = st.binary(max_size=400) | cfgs.map(lambda text: text.encode("utf-8", "surrogatepass")) | mutated(GOOD_CFG)
words = st.tuples(
    st.sampled_from(TYPES), st.sampled_from(["", "#0", "#7", "[1]", "#"]) | st.text(max_size=4), options
).map(lambda parts: "{}{}.{}".format(*parts)) | st.text(max_size=20)


def _good_files() -> tuple[bytes, bytes]:
    with tempfile.TemporaryDirectory() as place:
        network, paths = Network(parse_cfg(SMALL)), [os.path.join(place, name) for name in ("a.weights", "a.pt")]
        for path in paths:
            network.save_weights(path)
        return tuple(Path(path).read_bytes() for path in paths)


WEIGHTS, PT = _good_files()


def _pickled(data: bytes) -> bytes:
    """A `.pt` archive with another pickle inside."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(PT)) as old, zipfile.ZipFile(stream, "w") as new:
        for entry in old.infolist():
            new.writestr(entry.filename, data if entry.filename.endswith("data.pkl") else old.read(entry))
    return stream.getvalue()


with zipfile.ZipFile(io.BytesIO(PT)) as _archive:
    _PICKLE = next(_archive.read(entry) for entry in _archive.infolist() if entry.filename.endswith("data.pkl"))


def _lay_out(path: str, strict: bool = False) -> None:
    """Lay a network out as inference and as training do, and print it."""
    table(read_structure(path, strict, batch=1))
    read_structure(path, strict)


def _override(path: str) -> None:
    """Apply the lines of a file as words of `-set`."""
    table(read_structure(ROOT / "cfg/yolov4-tiny.cfg", overrides=Path(path).read_text().split("\n"), batch=1))


def _tree(path: str) -> None:
    read_structure(parse_cfg(f"{NET}[softmax]\ntree={path}\n"), batch=1)


READERS: dict[str, tuple[st.SearchStrategy[bytes], Callable[[str], object]]] = {
    "cfg": (cfg_bytes, _lay_out),
    "strict cfg": (cfg_bytes, lambda path: _lay_out(path, True)),
    "set": (words.map(lambda text: text.encode("utf-8", "replace")), _override),
    "tree": (st.binary(max_size=300) | st.text("ab 0123-\n", max_size=100).map(str.encode), _tree),
    "data": (st.binary(max_size=300) | st.text(max_size=300).map(str.encode), read_data),
    "names": (st.binary(max_size=300), read_names),
    "list": (st.binary(max_size=300), read_list),
    "labels": (st.binary(max_size=300) | st.text("0123456789.e-+ \n", max_size=200).map(str.encode), read_labels),
    "strict labels": (st.binary(max_size=300), lambda path: read_labels(path, True)),
    "weights": (
        st.binary(max_size=300) | mutated(WEIGHTS),
        lambda path: Network(parse_cfg(SMALL)).load_weights(path),
    ),
    "pt": (
        st.binary(max_size=300) | mutated(PT) | mutated(_PICKLE).map(_pickled),
        lambda path: (load_plain(path), Network(parse_cfg(SMALL)).load_weights(path)),
    ),
}
SUFFIX = {"cfg": ".cfg", "strict cfg": ".cfg", "data": ".data", "weights": ".weights", "pt": ".pt"}


def _peak() -> int:
    """The largest size that this process had, KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def fuzz(name: str, examples: int, same: bool = False) -> None:
    """Try so many inputs on a reader, the `same` every time or new ones. Raises whatever it should not have raised."""
    strategy, read = READERS[name]
    before = _peak()
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, f"input{SUFFIX.get(name, '.txt')}")

        @settings(
            max_examples=examples, derandomize=same, deadline=None, database=None, print_blob=False,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(strategy)
        def attempt(data: bytes) -> None:
            Path(path).write_bytes(data)
            began = time.process_time()
            try:
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    read(path)
            except DarknetpyError as error:
                assert "\n" not in str(error), "an error is one sentence"
                assert len(str(error)) < 4000, "an error is a sentence that can be read"
            assert time.process_time() - began < SLOWEST, "too slow"
            assert _peak() - before < LARGEST, "too much memory"

        attempt()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("-k", default="", help="only readers whose name contains this")
    arguments = parser.parse_args()
    logging.getLogger("darknetpy").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    end, rounds = time.monotonic() + 60 * arguments.minutes, 0
    while time.monotonic() < end:
        for name in READERS:
            if arguments.k in name:
                fuzz(name, 500)
        rounds += 1
        print(f"{rounds} rounds of 500 inputs for each reader, nothing found", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
