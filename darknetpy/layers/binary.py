"""Binarised convolutions: `binary=1` (weights) and `xnor=1` (weights and inputs)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from darknetpy.layers.gradients import pass_through
from darknetpy.lazy import torch

if TYPE_CHECKING:
    from darknetpy.layers.base import ForwardContext
    from darknetpy.layers.convolutional import Convolutional


def binary_weights(weights):
    """Each filter's weights become plus or minus the mean of their absolute values; gradients pass straight through."""
    mean = weights.detach().abs().mean((1, 2, 3), keepdim=True)
    return pass_through(weights, torch.where(weights > 0, mean, -mean))


def _signs(x):
    """Inputs become plus or minus 1; the gradient passes where |x| < 1."""
    signs = torch.where(x >= 0, 1.0, -1.0).to(x.dtype)
    if not (torch.is_grad_enabled() and x.requires_grad):
        return signs
    return pass_through(x * (x.abs() < 1), signs)


def convolve(layer: Convolutional, x, weights, context: ForwardContext):
    """The convolution of a binarised layer, before biases.

    Packed xnor inference (after fusing) counts padding as -1; the float path pads with 0
    (Darknet: `forward_convolutional_layer_gpu`, `gemm_nn_custom_bin_mean_transposed`).
    """
    weights = binary_weights(weights)
    if not layer.xnor:
        return layer.convolve(x, weights)
    signs = _signs(x)
    if context.fused and layer.pad and _packs(layer):
        margin = layer.pad * layer.dilation
        signs = torch.nn.functional.pad(signs, (margin,) * 4, value=-1.0)
        return layer.convolve(signs, weights, pad=0)
    return layer.convolve(signs, weights)


def _packs(layer: Convolutional) -> bool:
    """Whether Darknet packs bits: from 32 channels on, or for whole bytes of them in a plain 3x3 layer."""
    plain = layer.c % 8 == 0 and (layer.size, layer.stride_x, layer.pad) == (3, 1, 1)
    return layer.stride_x == layer.stride_y and (layer.c >= 32 or plain)
