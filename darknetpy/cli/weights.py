"""`partial`, `average`, `normalize` and their sisters: load a network, edit its weights, save them."""

from __future__ import annotations

import sys

from darknetpy.cli.common import lay_out, load_weights, pick_device, show_table
from darknetpy.cli.parse import Line
from darknetpy.config.numbers import atoi
from darknetpy.errors import UsageError


def partial(line: Line, words: list[str]) -> int:
    """`partial CFG WEIGHTS OUT N`"""
    cfg, weights, out, count = _words(words, "partial [cfg] [weights] [out] [number of layers]", 4)
    layers = _whole(count, "partial")
    from darknetpy.export.transforms import load_part

    network = _network(cfg, line)
    load_weights(network, weights, lambda path: load_part(network, path, layers, bool(line.get("strict"))))
    return _save(network, out, cutoff=layers)


def average(line: Line, words: list[str]) -> int:
    """`average CFG OUT WEIGHTS ...`"""
    cfg, out, *paths = _words(words, "average [cfg] [out] [weights] [weights] ...", 3, more=True)
    from darknetpy.export.transforms import average as mean

    network = _network(cfg, line)
    mean(network, paths, bool(line.get("strict")), lambda path: load_weights(network, path))
    return _save(network, out)


def rgbgr(line: Line, words: list[str]) -> int:
    """`rgbgr CFG WEIGHTS OUT`"""
    return _edit("rgbgr", "swap_red_and_blue", line, words)


def rescale(line: Line, words: list[str]) -> int:
    """`rescale CFG WEIGHTS OUT`"""
    return _edit("rescale", "rescale", line, words)


def reset(line: Line, words: list[str]) -> int:
    """`reset CFG WEIGHTS OUT`"""
    return _edit("reset", "reset_normalization", line, words)


def denormalize(line: Line, words: list[str]) -> int:
    """`denormalize CFG WEIGHTS OUT`"""
    return _edit("denormalize", "denormalize", line, words)


def normalize(line: Line, words: list[str]) -> int:
    """`normalize CFG WEIGHTS OUT`"""
    return _edit("normalize", "normalize", line, words)


def _edit(name: str, function: str, line: Line, words: list[str]) -> int:
    cfg, weights, out = _words(words, f"{name} [cfg] [weights] [out]", 3)
    from darknetpy.export import transforms

    network, strict = _network(cfg, line), bool(line.get("strict"))
    load_weights(network, weights)
    edited = getattr(transforms, function)(network, strict) or network
    _save(edited, out)
    if edited is not network:
        changed = transforms.normalization_words(network, name == "normalize", strict)
        print(f"It fits the cfg with -set {' '.join(changed)}", file=sys.stderr)
    return 0


def oneoff(line: Line, words: list[str]) -> int:
    """`oneoff CFG WEIGHTS OUT`"""
    cfg, weights, out = _words(words, "oneoff [cfg] [weights] [out]", 3)
    from darknetpy.export.transforms import head_from_classifier

    network = _network(cfg, line)
    load_weights(network, weights, lambda path: head_from_classifier(network, path, bool(line.get("strict"))))
    print(network.layers[-2].filters)
    return _save(network, out)


def statistics(line: Line, words: list[str]) -> int:
    """`statistics CFG [WEIGHTS]`"""
    cfg, *weights = _words(words, "statistics [cfg] [weights (optional)]", 1, more=True)
    from darknetpy.export import transforms

    network = _network(cfg, line)
    load_weights(network, next(iter(weights), None))
    if line.get("strict"):
        print(transforms.darknet_statistics(network))
        return 0
    from tabulate import tabulate

    headers = ("layer", "type", "tensor", "count", "rms", "mean", "variance", "min", "max")
    rows = [(r.layer, r.type, r.name, r.count, r.rms, r.mean, r.variance, r.least, r.most) for r in
            transforms.statistics(network)]  # fmt: skip
    print(tabulate(rows, headers, floatfmt=".6g"))
    return 0


def ops(line: Line, words: list[str]) -> int:
    """`ops CFG`"""
    from darknetpy.layers.operations import operations

    (cfg,) = _words(words, "ops [cfg]", 1)
    structure = lay_out(cfg, line)
    show_table(structure, line)
    counted, true = operations(structure), operations(structure, as_darknet=False)
    print(f"Floating Point Operations: {counted}\nFloating Point Operations: {counted / 1e9:.2f} Bn")
    if true != counted and not line.get("strict"):
        print(f"With channel groups and all recurrent layers counted: {true / 1e9:.2f} Bn", file=sys.stderr)
    return 0


def speed(line: Line, words: list[str]) -> int:
    """`speed CFG [TICS]`: Darknet's default is 1000 passes; here with real seconds, not whole ones."""
    cfg, *rest = _words(words, "speed [cfg] [tics (optional)]", 1, more=True)
    count = (_whole(rest[0], "speed") if rest else 0) or 1000
    structure = lay_out(cfg, line)
    show_table(structure, line)
    from darknetpy.inference.timing import seconds_of
    from darknetpy.network import Network

    seconds = seconds_of(Network.from_structure(structure, pick_device(line)), count)
    print(f"\n{count} evals, {seconds:f} Seconds\nSpeed: {seconds / count:f} sec/eval\nSpeed: {count / seconds:f} Hz")
    return 0


def _words(words: list[str], usage: str, least: int, more: bool = False) -> list[str]:
    """The first `least` words, with `more` all of them. Raises UsageError where there are fewer."""
    if len(words) < least or not all(words[:least]):
        raise UsageError(f"usage: darknetpy {usage}")
    return words if more else words[:least]


def _whole(word: str, command: str) -> int:
    if not word.isdecimal():
        raise UsageError(f"{command} takes a whole number, not {word[:40]!r}")
    return atoi(word)


def _network(cfg: str, line: Line):
    structure = lay_out(cfg, line)
    show_table(structure, line)
    from darknetpy.network import Network

    return Network.from_structure(structure)


def _save(network, out: str, cutoff: int | None = None) -> int:
    from darknetpy.weights import Header

    print(f"Saving weights to {out}", file=sys.stderr)
    network.save_weights(out, Header(seen=network.seen), cutoff)
    return 0
