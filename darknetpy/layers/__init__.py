"""Layer types. Importing this package registers all of them.

What a layer type from outside the package needs is here too; docs/layers.md shows one.
"""

from darknetpy.config import key
from darknetpy.layers import (  # noqa: F401 - importing registers
    connected,
    contrastive,
    conv_recurrent,
    convolutional,
    crop,
    detection,
    dropout,
    gaussian,
    local,
    normalization,
    pooling,
    recurrent,
    region,
    reorg,
    route,
    scale,
    shortcut,
    simple,
    softmax,
    upsample,
    yolo,
)
from darknetpy.layers.activations import activate, known_activation
from darknetpy.layers.base import BuildContext, ForwardContext, Layer, LayerOptions, TensorSpec
from darknetpy.layers.build import Structure, read_structure
from darknetpy.layers.registry import register
from darknetpy.layers.table import table

__all__ = [
    "BuildContext", "ForwardContext", "Layer", "LayerOptions", "Structure", "TensorSpec", "activate", "key",
    "known_activation", "read_structure", "register", "table",
]  # fmt: skip
