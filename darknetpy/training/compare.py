"""Whether replicas are as equal as they should be (`-check_replicas`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from darknetpy.errors import warn

if TYPE_CHECKING:
    from darknetpy.training.learner import Learner


def compare(learner: Learner, what: str) -> None:
    """Warn of `parameters` or `gradients` whose norms differ between replicas; reads the device."""
    tensors = [slot.tensor.grad if what == "gradients" else slot.tensor for slot in learner.optimizer.slots]
    norms = [0.0 if tensor is None else float(tensor.detach().double().norm()) for tensor in tensors]
    found = learner.replicas.gather(norms)
    differ = [i for i, column in enumerate(zip(*found, strict=True)) if len(set(column)) > 1]
    if differ:
        slot, column = learner.optimizer.slots[differ[0]], [norms[differ[0]] for norms in found]
        shown = ", ".join(f"{norm:.9g}" for norm in column)
        warn(
            f"iteration {learner.iteration}: {what} differ between replicas in {len(differ)} of {len(norms)} tensors, "
            f"first in layer {slot.layer.index} [{slot.layer.type}] {slot.spec.name}: norms {shown}"
        )
