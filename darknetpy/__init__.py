"""Darknet, executed by PyTorch.

    from darknetpy import Detector, Network, evaluate, train

Names are loaded on first use, so that `import darknetpy` costs nothing.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_WHERE = {
    "Network": "darknetpy.network",
    "Detector": "darknetpy.inference",
    "Detections": "darknetpy.detections",
    "train": "darknetpy.training",
    "evaluate": "darknetpy.evaluation",
    "register": "darknetpy.layers",
    "DarknetpyError": "darknetpy.errors",
}
__all__ = [*_WHERE, "__version__"]


def __getattr__(name: str):
    if name in _WHERE:
        value = getattr(importlib.import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'darknetpy' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
