"""What replicas of a network have to do with each other, behind one interface.

`Single` is alone. `Averaging` trains each replica by itself and averages weights now and then, as Darknet does. `Ddp`
adds up gradients before every update. A trainer never asks which one it holds.

Numbers that decide what happens next are agreed on by all replicas through `total`; no collective is entered by some of
them only. A replica that dies is the launcher's business: it ends the others, wherever they wait.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from darknetpy.errors import DarknetpyError, UsageError
from darknetpy.network import Network
from darknetpy.parallel.shares import read_shares
from darknetpy.runtime import trouble_of

PATIENCE = timedelta(days=30)
"""Of collectives: who waits too long for a peer is ended by the launcher, not by a clock."""
BUCKET = 64 << 20
"""Bytes that are sent at once."""
MARKS = 1024
"""Collectives on a device whose times wait to be read."""
MEETING = timedelta(minutes=10)
"""For all replicas to be there."""
SOON = 5.0
"""Seconds after which the first one of each machine says that it waits."""
LOST = ("sticky", "link")
"""Kinds of trouble after which a replica cannot work with the others any more."""
T = TypeVar("T")


class ReplicaFailed(RuntimeError):
    """Some replica could not do its part, as all of them know."""


def attempted(work: Callable[[], T]) -> tuple[T | None, str]:
    """What `work` gives and "", or None and the reason why it failed. What the replica cannot go on after is raised."""
    try:
        return work(), ""
    except (DarknetpyError, RuntimeError, MemoryError, OSError) as error:
        trouble = None if isinstance(error, DarknetpyError) else trouble_of(error)
        if trouble is not None and trouble.kind in LOST:
            raise
        return None, str(error) or type(error).__name__


def first_reason(reasons: Sequence[str]) -> str:
    """Why the first of the replicas that failed did so; "" where none did."""
    failed = [(rank, reason) for rank, reason in enumerate(reasons) if reason]
    if not failed or len(reasons) == 1:
        return "".join(reason for _, reason in failed)
    return "replica {}: {}".format(*failed[0])


class Single:
    """One replica, alone; the interface that the others share.

    Attributes:
        rank: number of this replica; size: of all.
        gradients: whether gradients, not weights, are what replicas share.
        shares: of the images of a turn, () for equal ones; weight: of this replica in a mean, 1 for equal shares.
        sync_bn: batches are normalised by the statistics of all replicas; sync_statistics: running ones are averaged.
    """

    rank, size = 0, 1
    gradients = sync_bn = sync_statistics = False
    shares: tuple[int, ...] = ()
    weight = 1.0

    @property
    def main(self) -> bool:
        """Whether this replica is the one that speaks and writes."""
        return self.rank == 0

    def wrap(self, network: Network) -> None:
        """Make sure that all replicas begin with the same tensors."""

    def before_update(self, gradients: Sequence[Tensor]) -> None:
        """Gradients of this replica become those of all."""

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Tensors become their mean over all replicas, by weight."""

    def sum_through(self, tensor: Tensor) -> Tensor:
        """The sum over all replicas, through which gradients flow to all of them."""
        return tensor

    def from_main(self, tensors: Sequence[Tensor]) -> None:
        """Tensors become the main replica's."""

    def total(self, *values: float) -> list[float]:
        """For each value its sum over the replicas; how they agree on what happens next."""
        return list(values)

    def gather(self, value: Any) -> list[Any]:
        """What each replica gives, in the order of ranks, at the main one; [] at the others."""
        return [value]

    def share(self, value: Any) -> Any:
        """What the main replica gives, at all."""
        return value

    def waited(self) -> float:
        """Seconds spent with the others since this was last asked; those of a device as far as they are over."""
        return 0.0

    def agreed(self, work: Callable[[], T]) -> T:
        """What `work` gives here, once it has succeeded at all replicas; nobody may wait for another one in it.

        Raises ReplicaFailed at all of them where it failed at one.
        """
        result, reason = attempted(work)
        if self.total(float(bool(reason)))[0]:
            raise ReplicaFailed(self.share(first_reason(self.gather(reason))))
        return result

    def close(self) -> None:
        """The end of a run."""


class _Several(Single):
    """Replicas in processes of their own, joined by `torch.distributed`.

    Tensors of a device go through the default group (NCCL where each replica has a GPU to itself), everything else
    through a group of the CPU's.
    """

    def __init__(self, device: torch.device):
        self.rank, self.size, self.device = dist.get_rank(), dist.get_world_size(), device
        self.on_device = dist.get_backend() == "nccl"
        self.control = dist.new_group(backend="gloo", timeout=PATIENCE) if self.on_device else dist.group.WORLD
        self._seconds, self._marks = 0.0, deque(maxlen=MARKS)

    def wrap(self, network: Network) -> None:
        self.from_main([*network.parameters(), *network.buffers()])

    def average(self, tensors: Sequence[Tensor]) -> None:
        self._through_buckets(tensors, self._weighted_mean)

    def sum_through(self, tensor: Tensor) -> Tensor:
        return _Sum.apply(tensor, self)

    def from_main(self, tensors: Sequence[Tensor]) -> None:
        self._through_buckets(tensors, lambda flat: dist.broadcast(flat, 0))

    def total(self, *values: float) -> list[float]:
        began = time.perf_counter()
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.control)
        self._seconds += time.perf_counter() - began
        return tensor.tolist()

    def waited(self) -> float:
        while self._marks and self._marks[0][1].query():
            began, ended = self._marks.popleft()
            self._seconds += began.elapsed_time(ended) / 1000
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def gather(self, value: Any) -> list[Any]:
        found = [None] * self.size if self.main else None
        dist.gather_object(value, found, 0, self.control)
        return found or []

    def share(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, 0, self.control)
        return box[0]

    def close(self) -> None:
        dist.barrier(self.control)
        dist.destroy_process_group()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the seconds of a collective, on the device without waiting for it."""
        if self.on_device:
            marks = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            marks[0].record()
            yield
            marks[1].record()
            self._marks.append(marks)
        else:
            began = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - began

    def _mean(self, flat: Tensor) -> None:
        dist.all_reduce(flat)
        flat.mul_(1.0 / self.size)

    def _weighted_mean(self, flat: Tensor) -> None:
        if self.weight != 1:
            flat.mul_(self.weight)
        self._mean(flat)

    def added_up(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all replicas, as a new one."""
        total = tensor.detach().clone() if self.on_device else tensor.detach().cpu().clone()
        dist.all_reduce(total)
        return total.to(tensor.device)

    @torch.no_grad()
    def _through_buckets(self, tensors: Sequence[Tensor], act) -> None:
        """Apply a collective to tensors laid end to end, some at a time; through the CPU where gloo carries them."""
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
            carried = flat if self.on_device else flat.cpu()
            with self._timed():
                act(carried)
            flat = carried.to(flat.device)
            parts = flat.split([tensor.numel() for tensor in bucket])
            torch._foreach_copy_(list(bucket), [p.view_as(t) for p, t in zip(parts, bucket, strict=True)])


class _Sum(torch.autograd.Function):
    """A sum over replicas: each one's part has influence on all their losses, so gradients are added up, too."""

    @staticmethod
    def forward(ctx, tensor: Tensor, replicas: _Several) -> Tensor:
        ctx.replicas = replicas
        return replicas.added_up(tensor)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.replicas.added_up(gradient), None


class Averaging(_Several):
    """Darknet's way: each replica takes its own steps with G times the rate; weights are averaged every few turns."""

    @property
    def turns(self) -> int:
        """Turns between two averagings: every fourth iteration, where an iteration is counted for each replica."""
        return math.lcm(4, self.size) // self.size


class Ddp(_Several):
    """Every update is made from the mean of all replicas' gradients, so that their parameters never part.

    The reduction waits until all replicas have agreed that the turn is sound; a replica that has run out of memory
    could not be waited for in the middle of its backward pass.
    """

    gradients = True

    def before_update(self, gradients: Sequence[Tensor]) -> None:
        self._through_buckets(gradients, self._mean)


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors of one type in portions of about BUCKET bytes, in order."""
    result: list[list[Tensor]] = []
    sizes: dict[torch.dtype, tuple[list[Tensor], int]] = {}
    for tensor in tensors:
        bucket, size = sizes.get(tensor.dtype, ([], BUCKET))
        if size + tensor.nbytes > BUCKET:
            bucket, size = [], 0
            result.append(bucket)
        bucket.append(tensor)
        sizes[tensor.dtype] = bucket, size + tensor.nbytes
    return result


def join(
    device: str, ddp: bool = False, alone_on_device: bool = True, shares: str | None = None, sync_bn: bool = False,
    sync_statistics: bool = False,
) -> Single:  # fmt: skip
    """Meet the other replicas of this run, as the environment says (`RANK`, `WORLD_SIZE`, ..., as torchrun sets them).

    Args:
        device: of this replica; alone_on_device: no other replica uses it, so that NCCL can connect them.
        shares: of `-gpu_share`; sync_bn: normalise batches by the statistics of all replicas, which needs `ddp` and
            equal shares; sync_statistics: average the running ones.

    Raises UsageError for settings that do not go together.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size < 2:
        return Single()
    numbers = read_shares(shares, size)
    if sync_bn and (not ddp or numbers):
        raise UsageError("-sync_bn needs -ddp, and replicas that take the same share")
    on_gpu = device.startswith("cuda") and alone_on_device and dist.is_nccl_available()
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    _meet("nccl" if on_gpu else "gloo", size)
    replicas = (Ddp if ddp else Averaging)(torch.device(device))
    replicas.shares, replicas.sync_bn, replicas.sync_statistics = numbers, sync_bn, sync_statistics
    return replicas


def _meet(backend: str, size: int) -> None:
    """Wait for the others, with a limit, which collectives do not have."""

    def say() -> None:
        print(f"waiting for {size} replicas to meet", file=sys.stderr, flush=True)

    waiting = threading.Timer(SOON, say)
    waiting.daemon = True
    if os.environ.get("LOCAL_RANK", "0") == "0":
        waiting.start()
    try:
        store, rank, _ = next(dist.rendezvous("env://", timeout=MEETING))
        store.set_timeout(MEETING)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        store.set_timeout(PATIENCE)
    finally:
        waiting.cancel()
