"""Batch normalisation as cuDNN has it: biased variance to normalise, unbiased for the running one, momentum .01."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from darknetpy.lazy import torch

if TYPE_CHECKING:
    from darknetpy.layers.base import ForwardContext, Layer

BN_EPSILON = 1e-5
BN_MOMENTUM = 0.01


def fold(tensors: Any) -> Any:
    """Weights and biases that do what a layer does with its batch normalisation at inference."""
    t = tensors
    scale = t.scales.double() / torch.sqrt(t.rolling_variance.double() + BN_EPSILON)
    weights = t.weights.double() * scale.view(-1, *[1] * (t.weights.dim() - 1))
    return SimpleNamespace(
        weights=weights.float(), biases=(t.biases.double() - t.rolling_mean.double() * scale).float()
    )


def batch_norm(layer: Layer, y, tensors: Any, context: ForwardContext):
    """Normalise the output of a convolution; `cbn` and, in strict training, shared statistics have their own rules."""
    t = tensors
    training = context.training and not context.adversarial
    if training and layer.batch_normalize == 2:
        return _cross_iteration(y.float() if context.mixed else y, t, context)
    if training and context.strict and _shares_buffers(layer, context):
        return _shared_statistics(y.float() if context.mixed else y, t)
    return normalize(y, t, training, context)


def normalize(y, tensors: Any, training: bool, context: ForwardContext):
    """Batch normalisation of (B, C, ...) by statistics of the batch, of all replicas' batches, or the running ones."""
    t = tensors
    if training and context.sum_over_replicas is not None:
        return _across_replicas(y.float() if context.mixed else y, t, context.sum_over_replicas)
    mean, variance = t.rolling_mean, t.rolling_variance
    if training and context.repeated:
        mean, variance = mean.clone(), variance.clone()
    return torch.nn.functional.batch_norm(y, mean, variance, t.scales, t.biases, training, BN_MOMENTUM, BN_EPSILON)


def _across_replicas(y, t, add_up: Callable):
    """Statistics over the mini-batches of all replicas, as if they were one; the variance takes a second pass."""
    dims = [0, *range(2, y.dim())]
    sums = add_up(torch.cat([y.sum(dims), y.new_full((1,), y.numel() / y.shape[1])]))
    count, shape = sums[-1].detach(), (1, -1, *[1] * (y.dim() - 2))
    mean = sums[:-1] / count
    centred = y - mean.view(shape)
    variance = add_up((centred * centred).sum(dims)) / count
    with torch.no_grad():
        _roll(t, mean, variance * (count / (count - 1).clamp(min=1)))
    return centred * (torch.rsqrt(variance + BN_EPSILON) * t.scales).view(shape) + t.biases.view(shape)


def _shares_buffers(layer: Layer, context: ForwardContext) -> bool:
    """Layers joined by share_index, and the time steps of a recurrent layer, use one pair of statistics in Darknet."""
    return layer.shares is not None or layer.shared_by_others or (layer.is_part and context.time_steps > 1)


@functools.cache
def _functions():
    class SharedStatistics(torch.autograd.Function):
        """Training-mode batch norm whose backward uses the statistics of the *last* forward through its buffers."""

        @staticmethod
        def forward(ctx, x, scales, biases, box):
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            box["mean"], box["inverse"] = mean, torch.rsqrt(variance + BN_EPSILON)
            ctx.save_for_backward(x, scales)
            ctx.box = box
            return _affine((x - _wide(mean)) * _wide(box["inverse"]), scales, biases)

        @staticmethod
        def backward(ctx, gradient):
            x, scales = ctx.saved_tensors
            mean, inverse = ctx.box["mean"], ctx.box["inverse"]
            hat = (x - _wide(mean)) * _wide(inverse)
            return (*_backward(gradient, hat, inverse, scales), gradient.sum((0, 2, 3)), None)

    class CrossIteration(torch.autograd.Function):
        """Batch norm with given statistics, differentiated as if they were the batch's own."""

        @staticmethod
        def forward(ctx, x, scales, biases, mean, variance):
            inverse = torch.rsqrt(variance + BN_EPSILON)
            ctx.save_for_backward(x, scales, mean, inverse)
            return _affine((x - _wide(mean)) * _wide(inverse), scales, biases)

        @staticmethod
        def backward(ctx, gradient):
            x, scales, mean, inverse = ctx.saved_tensors
            hat = (x - _wide(mean)) * _wide(inverse)
            return (*_backward(gradient, hat, inverse, scales), gradient.sum((0, 2, 3)), None, None)

    return SharedStatistics, CrossIteration


def _wide(v):
    return v.view(1, -1, 1, 1)


def _affine(hat, scales, biases):
    return hat * _wide(scales) + _wide(biases)


def _backward(gradient, hat, inverse, scales):
    """Gradients of input and scales of batch normalisation."""
    inner = gradient * _wide(scales)
    spread = inner.mean((0, 2, 3)), (inner * hat).mean((0, 2, 3))
    return (inner - _wide(spread[0]) - hat * _wide(spread[1])) * _wide(inverse), (gradient * hat).sum((0, 2, 3))


def _roll(t, mean, variance) -> None:
    t.rolling_mean.mul_(1 - BN_MOMENTUM).add_(mean, alpha=BN_MOMENTUM)
    t.rolling_variance.mul_(1 - BN_MOMENTUM).add_(variance, alpha=BN_MOMENTUM)


def _shared_statistics(y, t):
    box = t.__dict__.setdefault("statistics", {})
    result = _functions()[0].apply(y, t.scales, t.biases, box)
    count = y.numel() // y.shape[1]
    with torch.no_grad():
        _roll(t, box["mean"], y.detach().var((0, 2, 3), unbiased=count > 1))
    return result


def _cross_iteration(y, t, context: ForwardContext):
    """`cbn`: statistics averaged over the mini-batches of the turn so far (Darknet: `fast_v_cbn_kernel`)."""
    box, share = t.__dict__.setdefault("statistics", {}), 1.0 / (context.subdivision + 1)
    with torch.no_grad():
        count = y.numel() // y.shape[1]
        mean = y.mean((0, 2, 3))
        square = torch.maximum((y * y).sum((0, 2, 3)) / max(count - 1, 1), mean * mean)
        if context.subdivision and "cbn" in box:
            mean = share * mean + (1 - share) * box["cbn"][0]
            square = share * square + (1 - share) * box["cbn"][1]
        box["cbn"] = mean, square
        variance = (square - mean * mean).clamp(min=0)
        _roll(t, mean, variance)
    return _functions()[1].apply(y, t.scales, t.biases, mean, variance)
