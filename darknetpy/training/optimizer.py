"""Darknet's update of the weights, on top of `torch.optim` (Darknet: `update_convolutional_layer_gpu` and its sisters).

Gradients arrive summed over the images of a turn. With `n` images, Darknet's accumulator U and torch's buffer v obey
`v = -U / n`, so `torch.optim.SGD` on `grad / n` is the same rule; decay acts on weights only, shortcuts excepted. What
differs from plain SGD is listed in `_before_step` and `_after_step`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from darknetpy.layers import Layer, TensorSpec
from darknetpy.network import Network
from darknetpy.training.deform import Deformation, deformation_of

NEVER_TRAINED = frozenset({"connected", "local", "implicit", "rnn", "gru", "lstm"})
"""Types whose `train` flag Darknet forgets to set: strict leaves them as they are."""
CLAMPED = frozenset({"shortcut"})
"""Types whose accumulated update is clamped to [-1, 1] before the step."""


@dataclass
class Slot:
    """One trained tensor: its layer, its role, and the rules that apply to it."""

    layer: Layer
    spec: TensorSpec
    tensor: Tensor
    repeats: int = 1

    @property
    def decays(self) -> bool:
        return self.spec.role == "weight" and self.layer.type != "shortcut"

    @property
    def adam(self) -> bool:
        return self.layer.type == "convolutional"


class Optimizer:
    """All trained tensors of a network and the two `torch.optim` optimizers that move them.

    Args:
        network: in training layout.
        strict: with Darknet's omissions (types never trained, shared tensors stepped twice).
    """

    def __init__(self, network: Network, strict: bool = False):
        self.network, self.net, self.strict = network, network.net, strict
        self.images = self.net.images_per_update
        self.slots = list(self._slots())
        self.gated = _gated(network.layers)
        self.deformations = {
            i: rule
            for i, slot in enumerate(self.slots)
            if slot.spec.name == "weights" and (rule := deformation_of(slot.layer)) is not None
        }
        self.sgd, self.adam = self._optimizers()

    def _slots(self) -> Iterable[Slot]:
        sharers: dict[int, int] = {}
        for layer in self.network.layers:
            if layer.shares is not None:
                sharers[layer.shares] = sharers.get(layer.shares, 0) + 1
        for layer, spec, tensor in self.network.named_tensors():
            frozen = layer.index < self.network.frozen_before
            if spec.trained and not frozen and not (self.strict and layer.type in NEVER_TRAINED):
                repeats = 1 + sharers.get(layer.index, 0) if self.strict else 1
                yield Slot(layer, spec, tensor, repeats)

    def _optimizers(self):
        """SGD for everything; with `adam=1` Adam for the convolutions, decay on biases and scales included."""
        groups: dict[tuple, list[Tensor]] = {}
        for slot in self.slots:
            adam = bool(self.net.adam) and slot.adam
            decay = self.net.decay if slot.decays or adam else 0.0
            groups.setdefault((adam, slot.layer.options.learning_rate, decay), []).append(slot.tensor)
        made: dict[bool, list[dict]] = {True: [], False: []}
        for (adam, factor, decay), tensors in groups.items():
            made[adam].append({"params": tensors, "factor": factor, "weight_decay": decay})
        sgd = torch.optim.SGD(made[False], lr=0.0, momentum=self.net.momentum, foreach=True) if made[False] else None
        adam = None
        if made[True]:
            betas, eps = (self.net.B1, self.net.B2), self.net.eps / self.images
            adam = torch.optim.Adam(made[True], lr=0.0, betas=betas, eps=eps, foreach=True)
        return sgd, adam

    @torch.no_grad()
    def step(self, rate: float, n: int, iteration: int, images: int | None = None) -> None:
        """One update and cleared gradients.

        Args:
            rate: the schedule's learning rate.
            n: the schedule's counter, which the gates and Adam's bias correction read.
            iteration: finished iterations, which ends kernel deformation.
            images: how many the gradients are the sum of; None: as the cfg says.
        """
        self._divide_by(images or self.net.images_per_update)
        held = self._hold(n)
        self._before_step(iteration)
        for optimizer in (self.sgd, self.adam):
            if optimizer is not None:
                for group in optimizer.param_groups:
                    group["lr"] = rate * group["factor"]
        if self.adam is not None:
            self._set_adam_time(n)
            self.adam.step()
        if self.sgd is not None:
            self.sgd.step()
            self._repeat_shared()
        self._after_step(iteration)
        for optimizer in (self.sgd, self.adam):
            if optimizer is not None:
                optimizer.zero_grad(set_to_none=False)
        for slot, gradient in held:
            slot.tensor.grad = gradient

    def _divide_by(self, images: int) -> None:
        """Change the number of images of an update. Darknet's accumulator is a sum over images, so its carried momentum
        weighs more or less among fewer or more of them."""
        if images == self.images:
            return
        ratio, self.images = self.images / images, images
        if self.strict and self.sgd is not None:
            buffers = [b for slot in self.slots if (b := self.momentum_of(slot.tensor)) is not None]
            if buffers:
                torch._foreach_mul_(buffers, ratio)
        if self.adam is not None:
            for group in self.adam.param_groups:
                group["eps"] = self.net.eps / images

    def gradients(self) -> list[Tensor]:
        """The gradients that there are, in the order of `slots`."""
        return [slot.tensor.grad for slot in self.slots if slot.tensor.grad is not None]

    def held_gradients(self) -> dict[int, Tensor]:
        """Gradients that wait for the gate of their layer to open, by the position of their tensor in `slots`."""
        return {
            i: slot.tensor.grad
            for i, slot in enumerate(self.slots)
            if slot.layer.index in self.gated and slot.tensor.grad is not None
        }

    def hold_gradients(self, gradients: dict[int, Tensor]) -> None:
        """Bring back what `held_gradients` gave."""
        for i, gradient in gradients.items():
            self.slots[i].tensor.grad = gradient

    def _hold(self, n: int) -> list[tuple[Slot, Tensor]]:
        """Take the gradients of gated layers aside: they keep accumulating until the gate opens."""
        held = []
        for slot in self.slots:
            if slot.layer.index in self.gated and not may_update(slot.layer, self.gated, n, self.net.burn_in):
                held.append((slot, slot.tensor.grad))
                slot.tensor.grad = None
            elif slot.tensor.grad is None:
                slot.tensor.grad = torch.zeros_like(slot.tensor)
        return held

    def _before_step(self, iteration: int) -> None:
        live = [slot for slot in self.slots if slot.tensor.grad is not None]
        if not live:
            return
        torch._foreach_div_([slot.tensor.grad for slot in live], self.images * self.net.loss_scale)
        for i, slot in enumerate(self.slots):
            gradient = slot.tensor.grad
            if gradient is None:
                continue
            if slot.layer.type in ("convolutional", "shortcut"):
                torch.nan_to_num_(gradient, nan=0.0, posinf=0.0, neginf=0.0)
            rule = self.deformations.get(i)
            if rule is not None and self._deforms(iteration):
                self._on_accumulator(slot, rule.average_update)
            if self._centralised(slot):
                self._on_accumulator(slot, lambda u: u - u.mean(dim=(1, 2, 3), keepdim=True))
            if slot.layer.type in CLAMPED:
                bound = 1.0 / self.images
                self._on_accumulator(slot, lambda u, bound=bound: u.clamp(-bound, bound))

    def _on_accumulator(self, slot: Slot, change) -> None:
        """Apply `change` to what Darknet accumulates, gradient plus carried momentum, by adjusting the gradient."""
        buffer = self.momentum_of(slot.tensor)
        if buffer is None:
            slot.tensor.grad.copy_(change(slot.tensor.grad))
        else:
            carried = self.net.momentum * buffer
            slot.tensor.grad.copy_(change(carried + slot.tensor.grad) - carried)

    def room_to_come(self) -> list[Tensor]:
        """Memory as large as what the first update will take for good: momentum, or Adam's two moments."""
        room = []
        for optimizer, each in ((self.sgd, 1), (self.adam, 2)):
            for group in optimizer.param_groups if optimizer is not None else ():
                fresh = [tensor for tensor in group["params"] if not optimizer.state.get(tensor)]
                room += [torch.empty_like(tensor) for tensor in each * fresh]
        return room

    def momentum_of(self, tensor: Tensor) -> Tensor | None:
        """SGD's buffer of a tensor, if it has one yet."""
        return self.sgd.state.get(tensor, {}).get("momentum_buffer") if self.sgd is not None else None

    def _centralised(self, slot: Slot) -> bool:
        options = slot.layer.options
        wanted = slot.layer.type == "convolutional" and options.grad_centr and slot.layer.batch_normalize
        return bool(wanted) and slot.spec.name == "weights" and slot.tensor[0].numel() % 32 == 0

    def _deforms(self, iteration: int) -> bool:
        return iteration <= self.net.max_batches // 2

    def _set_adam_time(self, n: int) -> None:
        """Darknet's bias correction counts with the schedule, also after a resume that starts from empty moments."""
        for group in self.adam.param_groups:
            for tensor in group["params"]:
                state = self.adam.state[tensor]
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(tensor), torch.zeros_like(tensor)
                state["step"] = torch.tensor(float(max(n, 1) - 1))

    def _repeat_shared(self) -> None:
        """Strict: each layer that shares tensors steps them once more, with momentum and decay but no new gradient."""
        for slot in self.slots:
            for _ in range(slot.repeats - 1):
                group = next(g for g in self.sgd.param_groups if any(p is slot.tensor for p in g["params"]))
                buffer = self.sgd.state[slot.tensor]["momentum_buffer"]
                buffer.mul_(self.net.momentum).add_(slot.tensor, alpha=group["weight_decay"])
                slot.tensor.add_(buffer, alpha=-group["lr"])

    def _after_step(self, iteration: int) -> None:
        for i, slot in enumerate(self.slots):
            clip = slot.layer.options.clip
            if clip and slot.spec.role == "weight" and slot.layer.type in ("convolutional", "implicit"):
                slot.tensor.clamp_(-clip, clip)
            rule: Deformation | None = self.deformations.get(i)
            if rule is not None and self._deforms(iteration):
                slot.tensor.copy_(rule.copy_weights(slot.tensor))

    def zero_grad(self) -> None:
        """Forget accumulated gradients."""
        for slot in self.slots:
            slot.tensor.grad = None

    def state_dict(self) -> dict:
        return {name: opt.state_dict() for name, opt in (("sgd", self.sgd), ("adam", self.adam)) if opt is not None}

    def load_state_dict(self, state: dict) -> None:
        for name, optimizer in (("sgd", self.sgd), ("adam", self.adam)):
            if optimizer is not None:
                optimizer.load_state_dict(state[name])


def _gated(layers: list[Layer]) -> dict[int, bool]:
    """Layers that are not updated always: index -> whether `train_only_bn` of it or a later layer forbids it."""
    only_bn = max((layer.index for layer in layers if layer.options.train_only_bn), default=-1)
    return {
        layer.index: layer.index <= only_bn
        for layer in layers
        if layer.index <= only_bn or layer.options.dont_update or layer.options.burnin_update
    }


def may_update(layer: Layer, gated: dict[int, bool], n: int, burn_in: int) -> bool:
    """Whether a gated layer takes part in update `n`."""
    options = layer.options
    if gated[layer.index] or options.burnin_update * burn_in > n:
        return False
    return options.dont_update < n
