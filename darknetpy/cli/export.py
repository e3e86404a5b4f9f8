"""`export CFG WEIGHTS OUT` between file formats, and `verify A B` between files."""

from __future__ import annotations

import os
import sys

from darknetpy.cli.common import lay_out, load_weights, show_table
from darknetpy.cli.parse import Line, files_of
from darknetpy.config.datafile import read_data, read_names
from darknetpy.errors import UsageError


def export(line: Line, words: list[str]) -> int:
    """Convert a network; OUT is complete, and computes the same, or is not written at all."""
    if len(words) not in (3, 4):
        raise UsageError(
            "usage: darknetpy export [cfg] [weights] [out] [names or data (optional)]",
            remedy="OUT ends in .pt, .weights, .onnx, .torchscript or .safetensors",
        )
    files = files_of(words[:2], ["cfg", "weights"])
    names = _names(words[3]) if len(words) == 4 else []
    if os.path.exists(words[2]) and os.path.exists(files["weights"]) and os.path.samefile(words[2], files["weights"]):
        raise UsageError("OUT is the file that is converted", value=words[2], remedy="name another one")
    structure = lay_out(files["cfg"], line)
    show_table(structure, line)

    from darknetpy.export import Options, export_file, format_of
    from darknetpy.export.wild import is_foreign, read_foreign
    from darknetpy.network import Network
    from darknetpy.ptfile import is_pt

    contents = "nms" if "nms" in line.values else line.get("outputs")
    format_of(words[2], contents)
    network = Network.from_structure(structure)
    if is_pt(files["weights"]) and is_foreign(files["weights"]):
        _show_matches(read_foreign(network, files["weights"]))
    else:
        load_weights(network, files["weights"])
    options = Options(contents, names, bool(line.get("dynamic_size")), line.get("thresh", 0.25), line.get("nms", 0.45))
    comparison = export_file(network, words[2], options)
    if comparison is not None:
        print(f"Verified: largest difference {comparison.worst:.2g} of 1 + its size")
    print(f"Saved {words[2]}")
    return 0


def verify(line: Line, words: list[str]) -> int:
    """Compare what two files compute; exit status 1 where it is not the same."""
    from tabulate import tabulate

    from darknetpy import export as room

    models = _pairs([word for word in words if os.path.splitext(word)[1].lower() in MODELS])
    images = [*(word for word in words if os.path.splitext(word)[1].lower() not in MODELS), *(line.get("images") or [])]
    if len(models) != 2:
        raise UsageError(
            "usage: darknetpy verify [A] [B] [images (optional)]",
            remedy="A and B are .pt, .onnx or .torchscript, or a .cfg followed by its .weights",
        )
    result = room.verify(*models, images)
    rows = [
        (row.name, "x".join(map(str, row.shape)), f"{row.absolute:.3g}", f"{row.relative:.3g}") for row in result.rows
    ]
    print(tabulate(rows, headers=["output", "shape", "largest difference", "of 1 + its size"]))
    pictures = f"{result.pictures} {'pictures' if images else 'random pictures'}"
    a, b = result.detections
    if max(a, b):
        print(f"scores above .25: {a} and {b}")
    print(f"On {pictures} they give {'the same' if result.same else 'NOT the same'}")
    return 0 if result.same else 1


MODELS = (".cfg", ".weights", ".pt", ".pth", ".onnx", ".torchscript")


def _pairs(words: list[str]) -> list[str]:
    """A cfg and the weights after it are one thing."""
    result: list[str] = []
    for word in words:
        if word.lower().endswith(".weights") and result and result[-1].lower().endswith(".cfg"):
            result[-1] += f",{word}"
        else:
            result.append(word)
    return result


def _names(path: str) -> list[str]:
    return read_names(read_data(path).names) if path.lower().endswith(".data") else read_names(path)


def _show_matches(matches) -> None:
    from tabulate import tabulate

    rows = [(m.layer, m.type, "x".join(map(str, m.shape)), m.keys[0], len(m.keys)) for m in matches]
    print(tabulate(rows, headers=["layer", "type", "weights", "first tensor", "tensors"]), file=sys.stderr)
