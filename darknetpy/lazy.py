"""torch, loaded when it is first used.

Reading a cfg, printing a layer table or refusing a bad file needs no tensor, and importing torch takes seconds.
`from darknetpy.lazy import torch` gives the real module object; its first attribute access loads it.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING


def lazy_module(name: str) -> ModuleType:
    """The module `name`, executed on first attribute access. Raises ModuleNotFoundError if it isn't installed."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    import torch
else:
    torch = lazy_module("torch")

__all__ = ["lazy_module", "torch"]
