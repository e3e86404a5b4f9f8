"""`export CFG WEIGHTS OUT`: between file formats, by the suffix of OUT."""

from __future__ import annotations

from darknetpy.cli.common import lay_out, load_weights, show_table
from darknetpy.cli.parse import Line, files_of
from darknetpy.errors import UsageError


def export(line: Line, words: list[str]) -> int:
    """Convert a network; OUT is complete or not written at all."""
    if len(words) != 3:
        raise UsageError("usage: darknetpy export [cfg] [weights] [out]", remedy="OUT ends in .pt or .weights")
    files = files_of(words[:2], ["cfg", "weights"])
    structure = lay_out(files["cfg"], line)
    show_table(structure, line)

    from darknetpy.export import export_file
    from darknetpy.network import Network

    network = Network.from_structure(structure)
    load_weights(network, files["weights"])
    export_file(network, words[2])
    print(f"Saved {words[2]}")
    return 0
