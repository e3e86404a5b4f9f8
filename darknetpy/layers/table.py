"""The load table, as Darknet prints it while it reads a cfg."""

from __future__ import annotations

from darknetpy.layers.base import Layer
from darknetpy.layers.build import Structure

HEADER = "   layer   filters  size/strd(dil)      input                output"


def table(structure: Structure) -> str:
    """All lines from `mini_batch = ...` to `avg_outputs = ...`, with Darknet's remarks between the rows."""
    net = structure.net
    batch = structure.batch * max(1, net.subdivisions)
    lines = list(structure.net_notes.lines)
    lines.append(
        f"mini_batch = {structure.batch}, batch = {batch}, time_steps = {structure.time_steps}, "
        f"train = {int(structure.training)} "
    )
    lines.append(HEADER)
    for layer in structure.layers:
        lines.append(_row(layer))
        lines += _unused(layer)
    lines.append(f"Total BFLOPS {structure.total_bflops:5.3f} ")
    lines.append(f"avg_outputs = {structure.average_outputs} ")
    return "\n".join(lines)


def _row(layer: Layer) -> str:
    late = [line for line in layer.notes.lines if line.split(":", 1)[0] in layer.notes_after_row]
    early = [line for line in layer.notes.lines if line not in late]
    return "\n".join([f"{layer.index:4d} " + "\n".join([*early, layer.row()]), *late])


def _unused(layer: Layer) -> list[str]:
    return [f"Unused field: '{name} = {'(null)' if value is None else value}'" for name, value, _ in layer.notes.unused]
