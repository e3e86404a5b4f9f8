"""Failures that a test plans for the processes of a training: which one, where, on which replica, when."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from unittest import mock

KINDS = {
    "memory": (RuntimeError, "CUDA out of memory. Tried to allocate 2.00 GiB"),
    "refused": (RuntimeError, "cuDNN error: CUDNN_STATUS_BAD_PARAM"),
    "unsupported": (RuntimeError, "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
    "engine": (RuntimeError, "GET was unable to find an engine to execute this computation"),
    "illegal": (RuntimeError, "CUDA error: an illegal memory access was encountered"),
    "executed": (RuntimeError, "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    "internal": (RuntimeError, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    "full": (OSError, errno.ENOSPC, "No space left on device"),
    "exception": (ValueError, "a fault of the program"),
}


@dataclass
class Fault:
    """A failure of `kind` (of KINDS, or `nan`) at an iteration, so many times in a row.

    `place`: `turn` after its passes (`nan`: in a gradient), `weights` after the update (`nan` only), `snapshot` and
    `evaluation` before the copy and a pass (`nan`: in the pictures), `state` as it is collected for a save, `save`
    before a file is complete.
    """

    kind: str
    place: str
    rank: int
    iteration: int
    times: int = 1


def install(faults: list[Fault], rank: int) -> None:
    """Let what is planned for replica `rank` happen in this process."""
    import torch

    from darknetpy.inference import Detector
    from darknetpy.parallel import Single
    from darknetpy.training.checkpoint import Checkpoints
    from darknetpy.training.learner import Learner

    now = [0]

    def happens(place: str) -> bool:
        """Whether a number becomes non-finite here; other kinds are raised."""
        fault = next((f for f in faults if (f.place, f.rank, f.iteration) == (place, rank, now[0]) and f.times), None)
        if fault is None:
            return False
        fault.times -= 1
        if fault.kind != "nan":
            kind, *arguments = KINDS[fault.kind]
            raise kind(*arguments)
        return True

    def first(place: str, original):
        def wrapped(*args, **kwargs):
            happens(place)
            return original(*args, **kwargs)

        return wrapped

    def writing(original):
        def wrapped(*args, **kwargs):
            with mock.patch.object(os, "fsync", first("save", os.fsync)):
                return original(*args, **kwargs)

        return wrapped

    accumulate_all, update = Learner.accumulate_all, Learner.update
    predict, agreed = Detector.predict, Single.agreed

    def passes(self, batches):
        now[0] = self.iteration + self.replicas.size
        done = accumulate_all(self, batches)
        if happens("turn"):
            self.optimizer.slots[0].tensor.grad.view(-1)[0] = float("nan")
        return done

    def updated(self, images=None):
        rate = update(self, images)
        if happens("weights"):
            with torch.no_grad():
                self.optimizer.slots[0].tensor.view(-1)[0] = float("inf")
        return rate

    def predicted(self, batch, *args, **kwargs):
        return predict(self, batch * float("nan") if happens("evaluation") else batch, *args, **kwargs)

    Learner.accumulate_all, Learner.update = passes, updated
    Learner.state = first("state", Learner.state)
    Single.agreed = lambda self, work: agreed(self, first("snapshot", work))
    Detector.predict = predicted
    Checkpoints.save, Checkpoints.save_last = writing(Checkpoints.save), writing(Checkpoints.save_last)
