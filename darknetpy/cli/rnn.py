"""`rnn train`, `generate`, `generatetactic` and `valid`: texts, symbol by symbol."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable

from darknetpy.cli.common import lay_out, load_weights, pick_device, show_table
from darknetpy.cli.parse import Line, files_of
from darknetpy.cli.training import check, devices_of, refuse_auto, run
from darknetpy.errors import UsageError
from darknetpy.files import base_name
from darknetpy.layers.trainable import TARGET_HEADS

BACKUP = "backup"
SEED = "\n\n"
"""What `generate` begins with."""
END = ".\n"
"""With this a text of `generatetactic` is complete."""


def _files(words: list[str], command: str) -> dict[str, str]:
    files = files_of(words, ["cfg", "weights"])
    if "cfg" not in files:
        raise UsageError(f"usage: darknetpy rnn {command} [cfg] [weights (optional)]")
    return files


def train(line: Line, words: list[str]) -> int:
    """`rnn train CFG [WEIGHTS] -file TEXT`: learn to foresee the next symbol."""
    files = _files(words, "train")
    refuse_auto(line)
    devices = devices_of(line)
    structure = lay_out(files["cfg"], line, training=True)
    check(structure, TARGET_HEADS)
    weights = files.get("weights")

    def task(**options):
        from darknetpy.training.text import train_rnn

        return train_rnn(
            line.get("file"),
            structure,
            weights,
            tokenized=bool(line.get("tokenized")),
            backup=BACKUP,
            seed=line.get("srand", 0),
            save_every=line.get("save_every", 1000),
            **options,
        )

    return run(line, structure, weights, BACKUP, devices, task)


def _network(line: Line, words: list[str], command: str, temperature: float | None = None):
    """The network with its weights; standard output is left to its text."""
    files = _files(words, command)
    structure = lay_out(files["cfg"], line)
    with contextlib.redirect_stdout(sys.stderr):
        print(base_name(files["cfg"]))
        show_table(structure, line)

        from darknetpy.inference.text import TextNetwork

        strict = bool(line.get("strict"))
        text = TextNetwork(structure, temperature=temperature, device=pick_device(line), strict=strict)
        load_weights(text.network, files.get("weights"))
    return text


def generate(line: Line, words: list[str]) -> int:
    """Write a text that begins with `-seed`."""
    text = _network(line, words, "generate", line.get("temp"))
    names = _names(line)
    begin = _symbols(line.get("seed", SEED), names)
    _print(begin, names)
    _print(text.write(begin, line.get("len"), line.get("srand")), names)
    print()
    return 0


def generatetactic(line: Line, words: list[str]) -> int:
    """Read standard input and go on with it, to the end of a sentence that ends its line."""
    text = _network(line, words, "generatetactic", line.get("temp"))
    names, last = _names(line), ""
    for symbol in text.write(_symbols(_stdin(), names), line.get("len"), line.get("srand")):
        shown = _shown(symbol, names)
        if last + shown.decode("latin-1") == END:
            break
        last = shown.decode("latin-1")
        _print([symbol], names)
    print()
    return 0


def valid(line: Line, words: list[str]) -> int:
    """Perplexity of standard input, or of `-file`, after `-seed` was read."""
    import numpy as np

    text = _network(line, words, "valid")
    from darknetpy.data.text import read_symbols

    if "file" in line.values:
        symbols = read_symbols(line.get("file"), text.inputs, bool(line.get("tokenized")))
    else:
        symbols = np.frombuffer(_stdin(), np.uint8).astype(np.int64)
    text.read(_symbols(line.get("seed", SEED), None))
    for found in text.perplexity(symbols):
        print(found.line(), flush=True)
    return 0


def _stdin() -> bytes:
    return sys.stdin.buffer.read()


def _names(line: Line) -> list[str] | None:
    if not line.get("tokens"):
        return None

    from darknetpy.inference.text import read_tokens

    return read_tokens(line.get("tokens"))


def _symbols(text: str | bytes, names: list[str] | None) -> list[int]:
    """Bytes of a text, or with names the numbers of its words. Raises UsageError for an unknown word."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    if names is None:
        return list(data)
    numbers = {name: number for number, name in reversed(list(enumerate(names)))}
    words = data.decode("utf-8", "surrogateescape").split()
    unknown = next((word for word in words if word not in numbers), None)
    if unknown is not None:
        raise UsageError(f"`{unknown[:60]}` is none of the -tokens", remedy="begin with words of that file")
    return [numbers[word] for word in words]


def _shown(symbol: int, names: list[str] | None) -> bytes:
    if names is None:
        return bytes([symbol % 256])
    name = names[symbol] if symbol < len(names) else str(symbol)
    return f"{name} ".encode("utf-8", "surrogateescape")


def _print(symbols: Iterable[int], names: list[str] | None) -> None:
    """Write symbols as they come; bytes go through as they are, whatever the terminal's encoding."""
    sys.stdout.flush()
    for symbol in symbols:
        sys.stdout.buffer.write(_shown(symbol, names))
        sys.stdout.buffer.flush()
