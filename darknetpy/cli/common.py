"""What several commands do in the same way: lay out a cfg, print its table, load weights, pick a device."""

from __future__ import annotations

import sys
from collections.abc import Callable

from darknetpy.cli.parse import Line
from darknetpy.config.datafile import DataConfig, read_names
from darknetpy.layers import Structure, read_structure, table

_ON_STDOUT = ("mini_batch = ", "nms_kind: ")


def lay_out(cfg: str, line: Line, training: bool = False) -> Structure:
    """Read a cfg with the command line's `-set` words, `-strict`, and in training `-subdivisions N`."""
    words, batch = list(line.get("set") or ()), 1
    if training:
        batch, count = None, str(line.get("subdivisions") or "")
        words += [f"net.subdivisions={count}"] if count.isdecimal() else []
    return read_structure(cfg, bool(line.get("strict")), words, batch=batch).check()


def show_table(structure: Structure, line: Line) -> None:
    """Darknet's load table on stderr, its first line and those of NMS on stdout; nothing with `-quiet`."""
    if line.get("quiet"):
        return
    for text in table(structure).splitlines():
        print(text, file=sys.stdout if text.startswith(_ON_STDOUT) else sys.stderr)
    sys.stdout.flush()
    net = structure.net
    if structure.heads and (net.width % 32 or net.height % 32):
        print(
            f"\n Warning: width={net.width} and height={net.height} in cfg-file must be divisible by 32 "
            "for default networks Yolo v1/v2/v3!!! \n",
            file=sys.stderr,
        )


def names_for(files: dict[str, str], data: DataConfig | None) -> list[str]:
    """Class names from a `.names` file on the command line, or from the `.data` file."""
    return read_names(files["names"]) if data is None else data.class_names()


def pick_device(line: Line):
    """The device that `-i`, `-nogpu` and the machine allow."""
    from darknetpy.runtime import choose_device

    return choose_device(line.get("i"), bool(line.get("nogpu")))


def load_weights(network, path: str | None, read: Callable | None = None, speak: bool = True) -> None:
    """Load a file with Darknet's messages, by `read` where that is special; no path leaves random weights."""
    if not path:
        return
    if not speak:
        network.load_weights(path)
        return
    print(f"Loading weights from {path}...", end="", file=sys.stderr, flush=True)
    try:
        loaded = (read or network.load_weights)(path)
    except BaseException:
        print(file=sys.stderr)
        raise
    batches = loaded.header.seen // 64
    bits = 64 if loaded.header.wide else 32
    print(f"\n seen {bits}, trained: {loaded.header.seen // 1000} K-images ({batches // 1000} Kilo-batches_64) ")
    print(f"Done! Loaded {loaded.layers} layers from weights-file ", file=sys.stderr)
