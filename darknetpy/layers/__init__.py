"""Layer types. Importing this package registers all of them."""

from darknetpy.layers import convolutional
from darknetpy.layers.base import BuildContext, ForwardContext, Layer, LayerOptions, TensorSpec
from darknetpy.layers.build import Structure, read_structure
from darknetpy.layers.registry import register
from darknetpy.layers.table import table

__all__ = [
    "BuildContext", "ForwardContext", "Layer", "LayerOptions", "Structure", "TensorSpec", "convolutional",
    "read_structure", "register", "table",
]  # fmt: skip
