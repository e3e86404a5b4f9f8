"""One turn of training: S mini-batches forward and backward, then one update (Darknet: `train_network`).

The losses give Darknet's deltas; they are fed back into each head's input, so autograd only ever differentiates the
network itself. Counters move as in Darknet: `seen` before each forward pass, `iteration` before the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from darknetpy.layers import ForwardContext
from darknetpy.layers.trainable import BOX_HEADS
from darknetpy.losses import HeadLoss, LossContext, head_loss, propagated
from darknetpy.network import Network, Pass
from darknetpy.training.ema import MovingAverage
from darknetpy.training.optimizer import Optimizer
from darknetpy.training.schedule import Schedule

TRUTH_SIZE = 6


@dataclass
class MiniBatch:
    """What one forward and backward pass gave.

    Attributes:
        cost: mean over the layers with a cost, a scalar tensor; heads: losses by layer.
        outputs: by layer, with their gradients where all were kept; raw: outputs of convolutions before BN and bias.
    """

    cost: Tensor
    heads: dict[int, HeadLoss]
    outputs: list[Tensor | None]
    raw: dict[int, Tensor] = field(default_factory=dict)

    def delta(self, index: int) -> Tensor | None:
        """Darknet's delta of a layer, minus the gradient: of a convolution with respect to its raw output."""
        if index in self.heads:
            return self.heads[index].delta
        tensor = self.raw.get(index, self.outputs[index])
        return None if tensor is None or tensor.grad is None else -tensor.grad


@dataclass
class Turn:
    """One turn: `loss` per image (scalar tensor, on the device), the rate of its update, the heads' statistics."""

    loss: Tensor
    rate: float
    mini_batches: list[MiniBatch] = field(default_factory=list)


class Learner:
    """A network, its optimizer and its counters.

    Args:
        network: in training layout; `network.seen` sets the counters.
        strict: Darknet's quirks.
        replicas: devices that train side by side; multiplies rate and iterations.

    `num_boxes` is Darknet's value of that name, which its training command sets on one copy of the network only, so
    that strict assisted excitation is without effect on further replicas, after a resize and in a bare turn.
    """

    def __init__(self, network: Network, strict: bool = False, replicas: int = 1):
        self.network, self.net, self.strict = network, network.net, strict
        self.schedule = Schedule(self.net, replicas)
        self.optimizer = Optimizer(network, strict)
        self.average = MovingAverage(network, self.optimizer, strict)
        self.rows, self.subdivisions = self.net.mini_batch, max(1, self.net.subdivisions)
        self.images = self.net.images_per_update
        self.seen = network.seen
        self.iteration = self.seen // self.images
        self.head_states: dict[int, dict] = {layer.index: {} for layer in network.structure.heads}
        self.net_state: dict = {}
        self.num_boxes = 0

    def turn(self, mini_batches: Sequence[tuple[Tensor, Tensor]]) -> Turn:
        """Train on S mini-batches of (images, truth) and update once."""
        done = [self.accumulate(x, truth, k) for k, (x, truth) in enumerate(mini_batches)]
        rate = self.update()
        rows = sum(len(x) for x, _ in mini_batches)
        return Turn(torch.stack([mini.cost for mini in done]).sum() / rows, rate, done)

    def accumulate(self, x: Tensor, truth: Tensor, subdivision: int = 0, keep_all: bool = False) -> MiniBatch:
        """Forward and backward of one mini-batch; gradients add up. `keep_all` keeps every layer's output and grad."""
        self.network.train(True)
        self.seen += len(x)
        truth = self._rows(truth)
        context = self._forward_context(truth, subdivision)
        context.probe = {} if keep_all else None
        passed = self.network.run(x, context, keep_all=keep_all)
        if keep_all:
            for output in passed.outputs:
                if output.requires_grad:
                    output.retain_grad()
        heads = self._head_losses(passed, truth, len(x), context)
        self._backward(passed, heads)
        costs = [heads[layer.index].cost for layer in self.network.structure.heads if layer.has_cost]
        cost = torch.stack([c.reshape(()) for c in costs]).mean() if costs else x.new_zeros(())
        return MiniBatch(cost, heads, passed.outputs, context.probe or {})

    def update(self) -> float:
        """One update of all weights from the accumulated gradients; returns the learning rate used."""
        self.iteration += 1
        n = self.seen // self.images if self.strict else self.iteration
        rate = self.schedule.rate(n)
        self.optimizer.step(rate, n, self.iteration)
        self.average.update(self.iteration)
        return rate

    def _rows(self, truth: Tensor) -> Tensor:
        """Box truths as (B, M, 6), other targets as (B, n)."""
        boxes = any(layer.type in BOX_HEADS for layer in self.network.structure.heads)
        return truth.reshape(len(truth), -1, TRUTH_SIZE) if boxes else truth.reshape(len(truth), -1)

    def _forward_context(self, truth: Tensor, subdivision: int) -> ForwardContext:
        return ForwardContext(
            training=True,
            truth=truth,
            iteration=self.iteration,
            max_batches=self.net.max_batches,
            burn_in=self.net.burn_in,
            seen=self.seen,
            num_boxes=self.num_boxes,
            subdivision=subdivision,
        )

    def _head_losses(self, passed: Pass, truth: Tensor, rows: int, context: ForwardContext) -> dict[int, HeadLoss]:
        losses: dict[int, HeadLoss] = {}
        for layer in self.network.structure.heads:
            loss_context = LossContext(
                net_w=context.net_w,
                net_h=context.net_h,
                iteration=self.iteration,
                max_batches=self.net.max_batches,
                seen=self.seen,
                batch=rows,
                strict=self.strict,
                state=self.head_states[layer.index],
                net_state=self.net_state,
                losses=losses,
                net=self.net,
                input=passed.inputs[layer.index].detach(),
            )
            output = passed.outputs[layer.index].detach()
            losses[layer.index] = head_loss(layer, output, truth, loss_context)
        return losses

    def _backward(self, passed: Pass, heads: dict[int, HeadLoss]) -> None:
        inputs, gradients = [], []
        for layer in self.network.structure.heads:
            x = passed.inputs[layer.index]
            if x.requires_grad and not layer.options.onlyforward:
                factor = propagated(layer, self.net)
                inputs.append(x)
                delta = layer.to_input(heads[layer.index].delta)
                gradients.append((delta * -factor).reshape(x.shape))
        if inputs:
            torch.autograd.backward(inputs, gradients)
