"""Layer types. Importing this package registers all of them."""

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
from darknetpy.layers.base import BuildContext, ForwardContext, Layer, LayerOptions, TensorSpec
from darknetpy.layers.build import Structure, read_structure
from darknetpy.layers.registry import register
from darknetpy.layers.table import table

__all__ = [
    "BuildContext", "ForwardContext", "Layer", "LayerOptions", "Structure", "TensorSpec", "read_structure", "register",
    "table",
]  # fmt: skip
