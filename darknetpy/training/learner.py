"""One turn of training: S mini-batches forward and backward, then one update (Darknet: `train_network`).

The losses give Darknet's deltas; they are fed back into each head's input, so autograd only ever differentiates the
network itself. Counters move as in Darknet: `seen` before each forward pass, `iteration` before the update.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from darknetpy.errors import UsageError
from darknetpy.layers import ForwardContext
from darknetpy.layers.trainable import BOX_HEADS
from darknetpy.losses import HeadLoss, LossContext, head_loss, propagated
from darknetpy.network import Network
from darknetpy.parallel import Single
from darknetpy.parallel.shares import split
from darknetpy.passes import Pass
from darknetpy.runtime import Policy
from darknetpy.training.compare import compare
from darknetpy.training.ema import MovingAverage
from darknetpy.training.optimizer import Optimizer
from darknetpy.training.scale import LossScale
from darknetpy.training.schedule import Schedule
from darknetpy.training.similar import replace_similar_filters, similar_filters_due
from darknetpy.training.tensors import copy_tensors, random_state, set_random_state
from darknetpy.training.turn import MiniBatch, Turn, mean_loss

TRUTH_SIZE = 6
ADVERSARIAL_SHARE = 0.5
AVERAGED_EVERY = 4
"""Iterations between two averagings of strict replicas."""


class Learner:
    """A network, its optimizer and its counters.

    Args:
        network: in training layout; `network.seen` sets the counters.
        strict: Darknet's quirks.
        replicas: those that train side by side; their number multiplies rate and iterations.
        policy: how it computes.

    `splits` parts of each mini-batch are worked off one after the other where memory is short. `check` compares the
    replicas after each synchronisation. `num_boxes` is Darknet's value of that name, which its training command sets on
    one copy of the network only, so that strict assisted excitation is without effect on further replicas, after a
    resize and in a bare turn.
    """

    def __init__(
        self, network: Network, strict: bool = False, replicas: Single | None = None, policy: Policy | None = None
    ):
        self.network, self.net, self.strict = network, network.net, strict
        self.replicas, self.policy = replicas or Single(), policy or Policy()
        self.scale = LossScale(self.policy.precision == "fp16", self.net.loss_scale)
        network.checkpointing = self.policy.checkpointing
        if strict and self.replicas.shares:
            raise UsageError("-gpu_share does not go together with -strict")
        self.check = False
        self.schedule = Schedule(self.net, self.replicas.size)
        self.subdivisions = max(1, self.net.subdivisions)
        self.images = self.net.images_per_update
        self.replicas.weight = self.parts(self.net.mini_batch)[self.replicas.rank] / (
            self.net.mini_batch * self.subdivisions
        )
        self.num_boxes = 0
        self.splits = 1
        self.begin()

    def begin(self) -> None:
        """Go on from the network's weights and `seen` alone, as Darknet does: nothing else is remembered."""
        network = self.network
        self.optimizer = Optimizer(network, self.strict)
        self.optimizer.zero_grad()
        self.average = MovingAverage(network, self.optimizer, self.strict)
        self.seen = network.seen
        self.iteration = self.clock = self.seen // self.images
        self.head_states: dict[int, dict] = {layer.index: {} for layer in network.structure.heads}
        self.net_state: dict = {}
        network.reset_state()

    def parts(self, rows: int) -> list[int]:
        """Images of a turn for each replica, with mini-batches of so many rows; sequences and contrastive pairs stay
        together."""
        size, whole = self.replicas.size, self.net.time_steps > 1 or self.net.contrastive or self.net.track
        total = rows * self.subdivisions * size
        return split(total, self.replicas.shares or [1] * size, rows if whole else 1)

    def turn(self, mini_batches: Sequence[tuple[Tensor, ...]]) -> Turn:
        """Train on S mini-batches of (images, truth) and update once; see `accumulate_all`."""
        done = self.accumulate_all(mini_batches)
        rate = self.update(sum(mini.rows for mini in done))
        return Turn(mean_loss(done), rate, done)

    def accumulate_all(self, mini_batches: Sequence[tuple[Tensor, ...]]) -> list[MiniBatch]:
        """Forward and backward of all mini-batches of a turn, each in `splits` parts where it can be parted.

        A third tensor (sequences,) says which sequences begin anew: recurrent layers forget what they know of these.
        """
        done = []
        self.scale.multiply(self.optimizer.held_gradients().values())
        for number, (x, truth, *fresh) in enumerate(mini_batches):
            for which in fresh:
                self.network.forget(which)
            parts = self._parts(len(x))
            for part_x, part_truth in zip(x.chunk(parts), truth.chunk(parts), strict=True):
                done.append(self.accumulate(part_x, part_truth, number))
        self.scale.multiply(self.optimizer.gradients(), up=False)
        return done

    def _parts(self, rows: int) -> int:
        """Parts of a mini-batch: sequences and contrastive pairs stay together."""
        whole = self.net.time_steps > 1 or self.net.contrastive
        return 1 if whole else min(self.splits, rows)

    def can_split(self) -> bool:
        """Whether mini-batches can be made smaller still."""
        return self._parts(self.net.mini_batch) == self.splits and 2 * self.splits <= self.net.mini_batch

    def accumulate(self, x: Tensor, truth: Tensor, subdivision: int = 0, keep_all: bool = False) -> MiniBatch:
        """Forward and backward of one mini-batch; gradients add up. `keep_all` keeps every layer's output and grad."""
        self.network.train(True)
        self.seen += len(x)
        truth = self._rows(truth)
        if self._adversarial_turn():
            x = self._hide_objects(x, truth, subdivision)
        context = self._forward_context(truth, subdivision)
        context.probe = {} if keep_all else None
        passed = self._run(x, context, keep_all)
        if keep_all:
            for output in passed.outputs:
                if output.requires_grad:
                    output.retain_grad()
        heads = self._head_losses(passed, truth, len(x), context)
        self._backward(passed, heads)
        costs = [heads[layer.index].cost for layer in self.network.structure.heads if layer.has_cost]
        cost = torch.stack([c.reshape(()) for c in costs]).mean() if costs else x.new_zeros(())
        return MiniBatch(cost, heads, passed.outputs, len(x), context.probe or {})

    def _run(self, x: Tensor, context: ForwardContext, keep_all: bool = False) -> Pass:
        with self.policy.forward(self.network.device):
            return self.network.run(x, context, keep_all=keep_all)

    def update(self, images: int | None = None) -> float:
        """One update of all weights from the gradients of so many images; returns the learning rate used.

        All replicas count alike, by as many iterations as there are replicas. Strict ones do not: but for the first
        they count turns, and the schedule follows `seen`, which `synchronise` shifts.
        """
        images, size = images or self.images, self.replicas.size
        if self.replicas.gradients and self.replicas.shares:
            images = round(self.replicas.total(images)[0] / size)
        clock = self.clock + 1 if self.strict else self.iteration + size
        n = self.seen // images if self.strict else clock
        rate = self.schedule.rate(n)
        self.replicas.before_update(self.optimizer.gradients())
        if self.check and self.replicas.gradients:
            compare(self, "gradients")
        self.optimizer.step(rate, n, clock, images * self.schedule.sequence(clock))
        self.average.update(clock)
        self.scale.count()
        if similar_filters_due(self.net, clock):
            replace_similar_filters(self.network, clock)
        self._count(clock, images)
        return rate

    def skip(self) -> None:
        """Count a turn whose gradients are thrown away."""
        self.optimizer.zero_grad()
        self.seen += self.images
        self._count(self.clock + 1, self.images)

    def _count(self, clock: int, images: int) -> None:
        several = self.replicas.size > 1
        self.iteration += self.replicas.size
        self.clock = clock if self.strict and not self.replicas.main else self.iteration
        if (several and not self.strict) or (self.replicas.main and (several or images != self.images)):
            self.seen = self.iteration * self.images

    # --- replicas ------------------------------------------------------------------------------------------------

    def averaging_due(self, turns: int) -> bool:
        """Whether the replicas' weights are averaged after so many turns of the run."""
        if self.replicas.size == 1 or self.replicas.gradients:
            return False
        return self.iteration % AVERAGED_EVERY == 0 if self.strict else turns % self.replicas.turns == 0

    def synchronise(self, shift: int = 0) -> None:
        """Average the replicas' weights (Darknet: `sync_nets`); strict shifts `seen` by `shift` iterations of each."""
        if self.replicas.size == 1:
            return
        if not self.replicas.gradients:
            self.replicas.average(self._averaged())
        if self.replicas.sync_statistics:
            self.replicas.average(self._statistics())
        if self.check:
            compare(self, "parameters")
        if self.strict and not self.replicas.gradients:
            mains = self.replicas.total(self.seen if self.replicas.main else 0)[0]
            self.seen = int(mains) + self.images * shift * (self.replicas.size - 1)

    def snapshot(self) -> dict[str, Tensor]:
        """The network's tensors as they are measured and saved: averaged, with the first replica's statistics.

        The training goes on with its own. Strict does not average for it. Raises ReplicaFailed at all replicas where
        one has no memory for it.
        """
        state = self.network.state_dict()
        if self.replicas.size == 1:
            return state
        state = self.replicas.agreed(lambda: {name: tensor.clone() for name, tensor in state.items()})
        averaged = {id(t) for t in self._averaged()} if not (self.strict or self.replicas.gradients) else set()
        if self.replicas.sync_statistics:
            averaged |= {id(t) for t in self._statistics()}
        live = self.network.state_dict(keep_vars=True)
        self.replicas.average([state[name] for name, tensor in live.items() if id(tensor) in averaged])
        self.replicas.from_main([state[name] for name, tensor in live.items() if id(tensor) not in averaged])
        return state

    def _averaged(self) -> list[Tensor]:
        """All that is trained; strict only weights, biases and scales of [convolutional], and of [connected] without
        the scales."""
        if not self.strict:
            return [slot.tensor for slot in self.optimizer.slots]
        roles = {"convolutional": ("weight", "bias", "scale"), "connected": ("weight", "bias")}
        return [
            tensor
            for layer, spec, tensor in self.network.named_tensors()
            if spec.trained and spec.role in roles.get(layer.type, ())
        ]

    def _statistics(self) -> list[Tensor]:
        return [t for _, spec, t in self.network.named_tensors() if spec.role in ("mean", "variance")]

    # --- self-adversarial training -------------------------------------------------------------------------------

    def _adversarial_turn(self) -> bool:
        """Whether this mini-batch is changed against the network first: a fair coin after the burn-in."""
        wanted = self.net.adversarial_lr and self.clock > self.net.burn_in
        return bool(wanted) and bool(torch.rand(()) < ADVERSARIAL_SHARE)

    def _hide_objects(self, x: Tensor, truth: Tensor, subdivision: int) -> Tensor:
        """The pictures one step further in the direction that hides their objects (Darknet: `adversarial` pass).

        Batch normalisation uses its running statistics and keeps them, recurrent layers forget the pass. With `strict`
        the biases of convolutions without batch normalisation take the gradient of this pass along.
        """
        x = x.detach().requires_grad_()
        empty = torch.zeros_like(truth)
        context = self._forward_context(empty, subdivision)
        context.adversarial, context.sum_over_replicas = True, None
        remembered = self.network.states
        self.network.states = copy_tensors(remembered)
        passed = self._run(x, context)
        self.network.states = remembered
        inputs, gradients = self._head_gradients(passed, self._head_losses(passed, empty, len(x), context))
        if not inputs:
            return x.detach()
        biases = self._bare_biases() if self.strict else []
        found = torch.autograd.grad(inputs, [x, *biases], gradients, allow_unused=True)
        for bias, gradient in zip(biases, found[1:], strict=True):
            if gradient is not None:
                bias.grad = gradient if bias.grad is None else bias.grad + gradient
        with torch.no_grad():
            step = self.net.adversarial_lr * self.clock / max(1, self.net.max_batches) / self.scale.factor
            changed = x if found[0] is None else (x - step * found[0]).clamp_(0, 1)
            if self.net.contrastive:
                changed = torch.stack((changed[0::2], x[1::2]), 1).flatten(0, 1)
        return changed.detach()

    def _bare_biases(self) -> list[Tensor]:
        return [
            tensor
            for layer, spec, tensor in self.network.named_tensors()
            if layer.type == "convolutional" and not layer.batch_normalize and spec.role == "bias"
        ]

    def _rows(self, truth: Tensor) -> Tensor:
        """Box truths as (B, M, 6), other targets as (B, n)."""
        boxes = any(layer.type in BOX_HEADS for layer in self.network.structure.heads)
        return truth.reshape(len(truth), -1, TRUTH_SIZE) if boxes else truth.reshape(len(truth), -1)

    def _forward_context(self, truth: Tensor, subdivision: int) -> ForwardContext:
        return ForwardContext(
            training=True,
            truth=truth,
            iteration=self.clock,
            max_batches=self.net.max_batches,
            burn_in=self.net.burn_in,
            seen=self.seen,
            num_boxes=self.num_boxes,
            subdivision=subdivision,
            mixed=self.policy.mixed,
            sum_over_replicas=self.replicas.sum_through if self.replicas.sync_bn else None,
        )

    def _head_losses(self, passed: Pass, truth: Tensor, rows: int, context: ForwardContext) -> dict[int, HeadLoss]:
        losses: dict[int, HeadLoss] = {}
        for layer in self.network.structure.heads:
            loss_context = LossContext(
                net_w=context.net_w,
                net_h=context.net_h,
                iteration=self.clock,
                max_batches=self.net.max_batches,
                seen=self.seen,
                batch=rows,
                strict=self.strict,
                state=self.head_states[layer.index],
                net_state=self.net_state,
                losses=losses,
                net=self.net,
                adversarial=context.adversarial,
                input=passed.inputs[layer.index].detach(),
            )
            output = passed.outputs[layer.index].detach()
            losses[layer.index] = head_loss(layer, output, truth, loss_context)
        return losses

    def _backward(self, passed: Pass, heads: dict[int, HeadLoss]) -> None:
        inputs, gradients = self._head_gradients(passed, heads)
        if inputs:
            torch.autograd.backward(inputs, gradients)

    def _head_gradients(self, passed: Pass, heads: dict[int, HeadLoss]) -> tuple[list[Tensor], list[Tensor]]:
        """The heads' inputs and what flows back into them: minus Darknet's delta."""
        inputs, gradients = [], []
        for layer in self.network.structure.heads:
            x = passed.inputs[layer.index]
            if x.requires_grad and not layer.options.onlyforward:
                factor = propagated(layer, self.net) * self.scale.factor
                inputs.append(x)
                delta = layer.to_input(heads[layer.index].delta)
                gradients.append((delta * -factor).reshape(x.shape))
        return inputs, gradients

    # --- state ---------------------------------------------------------------------------------------------------

    def state(self) -> dict:
        """All that a run goes on from, as plain containers of tensors and numbers."""
        return {
            "network": self.network.state_dict(),
            "trained": [name for name, _ in self.network.named_parameters()],
            "optimizer": self.optimizer.state_dict(),
            "images": self.optimizer.images,
            "held": self.optimizer.held_gradients(),
            "average": self.average.state(),
            "recurrent": self.network.states,
            "heads": self.head_states,
            "net": self.net_state,
            "random": random_state(self.network.device),
            "counters": [self.seen, self.iteration, self.clock, self.num_boxes, self.splits],
            "factor": self.schedule.factor,
            "scale": self.scale.state,
        }

    def load_state(self, state: dict) -> None:
        """Go on from what `state` gave, on any device. Raises RuntimeError or KeyError where it does not fit."""
        device = self.network.device
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.images = state["images"]
        self.optimizer.zero_grad()
        self.optimizer.hold_gradients(copy_tensors(state["held"], device))
        self.average.load_state(copy_tensors(state["average"], device))
        self.network.states = copy_tensors(state["recurrent"], device)
        self.head_states, self.net_state = copy_tensors(state["heads"], device), copy_tensors(state["net"], device)
        set_random_state(state["random"], device)
        self.seen, self.iteration, self.clock, self.num_boxes, self.splits = state["counters"]
        self.schedule.factor = state["factor"]
        self.scale.load(state.get("scale"))
