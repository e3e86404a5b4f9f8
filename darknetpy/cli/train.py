"""`detector train DATA CFG [WEIGHTS]`"""

from __future__ import annotations

from darknetpy.cli.common import lay_out
from darknetpy.cli.parse import Line, files_of
from darknetpy.cli.training import check, devices_of, picture_options, run, share
from darknetpy.data.sets import open_data
from darknetpy.errors import UsageError


def train(line: Line, words: list[str]) -> int:
    """Train a detector on one device or several; the exit status."""
    files = files_of(words, ["data", "cfg", "weights"])
    if "data" not in files or "cfg" not in files:
        raise UsageError("usage: darknetpy detector train [data] [cfg] [weights (optional)]")
    devices = devices_of(line)
    data = open_data(files["data"], bool(line.get("strict")))
    structure = lay_out(files["cfg"], line, training=True)
    check(structure)
    weights = files.get("weights")

    def task(**options):
        from darknetpy import training

        return training.train(
            data,
            structure,
            weights,
            evaluate=bool(line.get("map")),
            map_epochs=line.get("mAP_epochs"),
            thresh=line.get("thresh", 0.25),
            iou_thresh=line.get("iou_thresh"),
            save_every=line.get("save_every"),
            stop_map=share(line.get("stop_map")),
            show_details=bool(line.get("show_details")),
            subdivisions=line.get("subdivisions"),
            **picture_options(line),
            **options,
        )

    return run(line, structure, weights, data.backup, devices, task)
