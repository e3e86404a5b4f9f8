"""Gradients that Darknet defines by a rule of its own."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from darknetpy.lazy import torch


@functools.cache
def _functions():
    """The autograd functions; made on first use because torch is loaded late."""

    class ClampGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.clamp(-1.0, 1.0)

    class PassThrough(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return y.view_as(y)

        @staticmethod
        def backward(ctx, gradient):
            return gradient, None

    class ScaleGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.factor, None

    class Replace(torch.autograd.Function):
        """y with dL/dx = rule(dL/dy, saved tensors)."""

        @staticmethod
        def forward(ctx, x, y, rule, *saved):
            ctx.rule = rule
            ctx.save_for_backward(*saved)
            return y.view_as(y)

        @staticmethod
        def backward(ctx, gradient):
            return ctx.rule(gradient, *ctx.saved_tensors), None, None, *[None] * len(ctx.saved_tensors)

    class StaleGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.shape = x.shape
            return y.view_as(y)

        @staticmethod
        def backward(ctx, gradient):
            stale = gradient.new_zeros(ctx.shape)
            stale.view(-1)[: gradient.numel()] = gradient.reshape(-1)
            return stale, gradient

    return ClampGradient, PassThrough, ScaleGradient, Replace, StaleGradient


def clamp_gradient(x):
    """x; the gradient that comes back is clamped to [-1, 1]."""
    return _functions()[0].apply(x)


def pass_through(x, y):
    """y; its gradient goes to x unchanged."""
    return _functions()[1].apply(x, y.detach().reshape(x.shape)) if torch.is_grad_enabled() and x.requires_grad else y


def scale_gradient(x, factor: float):
    """x; the gradient that comes back is multiplied by `factor`."""
    if factor == 1.0 or not torch.is_grad_enabled():
        return x
    return _functions()[2].apply(x, factor)


def add_stale_gradient(x, y):
    """y, computed from x; besides y's own gradient, the incoming one is added to x's, flat from the start."""
    return _functions()[4].apply(x, y)


def replace_gradient(x, y, rule, *saved):
    """y, computed from x; dL/dx = rule(dL/dy, *saved)."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return y
    return _functions()[3].apply(x, y.detach(), rule, *(s.detach() for s in saved))


def saved_as(early: Mapping, late: Mapping, missing):
    """While entered, a tensor of `early` that is kept for a gradient is exchanged in the backward pass.

    Args:
        early: tensors and the names under which the backward pass finds others in their place.
        late: by name, filled after the forward pass; `missing` stands in for a name that never came.
    """
    names = {tensor.data_ptr(): name for tensor, name in early.items()}

    def pack(tensor):
        return names.get(tensor.data_ptr(), tensor)

    def unpack(kept):
        return late.get(kept, missing) if isinstance(kept, str) else kept

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
