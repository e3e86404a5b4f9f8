"""Darknet, executed by PyTorch.

    from darknetpy import Detector, Network, evaluate, train

Names are loaded on first use, so that `import darknetpy` costs nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings

__version__ = "0.1.0"

_WHERE = {
    "Network": "darknetpy.network",
    "Detector": "darknetpy.inference",
    "Classifier": "darknetpy.inference",
    "Detections": "darknetpy.detections",
    "TextNetwork": "darknetpy.inference.text",
    "train": "darknetpy.training",
    "train_classifier": "darknetpy.training.classifier",
    "train_rnn": "darknetpy.training.text",
    "evaluate": "darknetpy.evaluation",
    "register": "darknetpy.layers",
    "Policy": "darknetpy.runtime",
    "DarknetpyError": "darknetpy.errors",
}
_FIRST = dict.fromkeys(("train", "train_classifier", "train_rnn"), "darknetpy.reporting")
"""What must be loaded before a name is of use: training shows itself through the reporting room."""
__all__ = [*_WHERE, "__version__"]


def __getattr__(name: str):
    if name in _WHERE:
        if name in _FIRST:
            importlib.import_module(_FIRST[name])
        value = getattr(importlib.import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'darknetpy' has no attribute {name!r}")


def _namesake() -> str | None:
    """Version of another project's distribution that stands where this one is expected, or None.

    The name `darknetpy` on the public package index belongs to another project (4.x).
    """
    try:
        version = importlib.metadata.version("darknetpy")
    except importlib.metadata.PackageNotFoundError:
        return None
    return version if version.split(".")[0].isdigit() and int(version.split(".")[0]) >= 4 else None


if (_other := _namesake()) is not None:
    warnings.warn(
        f"darknetpy {_other} of the public package index, another project, is installed under this name: "
        "run `pip uninstall darknetpy` and install from the clone (pip install -e .)",
        stacklevel=2,
    )


def __dir__():
    return sorted(__all__)
