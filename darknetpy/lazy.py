"""torch, loaded when it is first used.

Reading a cfg, printing a layer table or refusing a bad file needs no tensor, and importing torch takes seconds.
`from darknetpy.lazy import torch` gives a module whose first attribute access loads the real one and takes over all
that is in it; the standard library's `LazyLoader` would do, but it breaks packages that import themselves in circles.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class LazyModule(ModuleType):
    """Stands for a module that is loaded on first access of one of its attributes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):  # asking about the module itself must not load it
            raise AttributeError(name)
        module = importlib.import_module(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

__all__ = ["LazyModule", "torch"]
