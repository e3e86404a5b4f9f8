"""Files of a run, by Darknet's names, and the state beside `_last` from which a run truly goes on."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import Any

import torch

from darknetpy.errors import WeightsError, warn
from darknetpy.files import atomic_write, base_name, writable_folder
from darknetpy.network import Network
from darknetpy.parallel import Single
from darknetpy.ptfile import load_plain
from darknetpy.weights import Header

FORMAT, VERSION = "darknetpy-state", 1
WEIGHTS, STATE = ".weights", ".state.pt"


@dataclass
class Checkpoints:
    """Where a run saves: `folder/BASE_N.weights`, `_last`, `_best`, `_final`, `_ema`, and `_last.state.pt`.

    Raises DataError at the start where the folder cannot be written.
    """

    folder: str
    cfg: str

    def __post_init__(self):
        writable_folder(self.folder)
        self.base = base_name(self.cfg)

    def path(self, suffix: str | int) -> str:
        return os.path.join(self.folder, f"{self.base}_{suffix}{WEIGHTS}")

    def save(self, network: Network, suffix: str | int, iteration: int) -> str:
        """Write a file; `seen` in its header is the images of whole iterations."""
        path = self.path(suffix)
        network.save_weights(path, _header(network, iteration))
        return path

    def save_last(self, network: Network, iteration: int, state: dict[str, Any]) -> str:
        """Write `_last.weights` and the state beside it.

        The state is complete by itself and goes first: whenever the process ends, one of the two is whole, and the hash
        in the state tells whether the other belongs to it.
        """
        path = self.path("last")
        fresh = os.path.join(self.folder, f".{os.path.basename(path)}.fresh")
        try:
            network.save_weights(fresh, _header(network, iteration))
            content = {"format": FORMAT, "version": VERSION, "weights": digest(fresh), **state}
            with atomic_write(state_path(path)) as stream:
                torch.save(content, stream)
            os.replace(fresh, path)
        finally:
            if os.path.exists(fresh):
                os.unlink(fresh)
        return path

    def remove_leftovers(self) -> None:
        """Remove temporary files of a run that was killed while it wrote."""
        pattern = re.compile(rf"\.{re.escape(self.base)}_[^/]*({re.escape(WEIGHTS)}|{re.escape(STATE)})\.[^/.]+")
        for name in os.listdir(self.folder):
            if pattern.fullmatch(name):
                os.unlink(os.path.join(self.folder, name))


def state_path(weights: str | os.PathLike) -> str:
    """The state file that belongs to a weights file."""
    return os.path.splitext(os.fspath(weights))[0] + STATE


def read_state(weights: str | os.PathLike) -> dict[str, Any] | None:
    """The state beside a weights file, None if there is none.

    Raises WeightsError where the file is damaged. If it belongs to other weights than those beside it, it wins.
    """
    name = state_path(weights)
    if not os.path.isfile(name):
        return None
    content = load_plain(name)
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        raise WeightsError(
            "is no state of a run", file=name, remedy="remove it to go on from the weights alone, or use -clear"
        )
    if not os.path.isfile(weights) or digest(weights) != content.get("weights"):
        warn(f"{name} was not written with {os.fspath(weights)}: the run goes on from the state, which is complete")
    return content


def replica_state(states: list[dict[str, Any]], replicas: Single) -> dict[str, Any]:
    """The state that a replica goes on from; where their number has changed, from the mean of the weights.

    Momentum and random numbers are those of the replica with the same number, or of the one whose turn it is; the
    statistics are the first one's, as in the files. Raises KeyError, IndexError or RuntimeError for what is no state.
    """
    if len(states) == replicas.size:
        return states[replicas.rank]
    own, first = states[replicas.rank % len(states)], states[0]
    network = dict(first["network"])
    for name in first["trained"]:
        network[name] = torch.stack([state["network"][name] for state in states]).mean(0)
    return {**own, "network": network, "counters": first["counters"], "factor": first["factor"]}


def digest(path: str | os.PathLike) -> str:
    """SHA-256 of a file."""
    result = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            result.update(block)
    return result.hexdigest()


def _header(network: Network, iteration: int) -> Header:
    return Header(seen=iteration * network.net.images_per_update)


@torch.no_grad()
def is_finite(network: Network) -> bool:
    """Whether all tensors of a network are numbers that someone can go on from."""
    tensors = [tensor for _, _, tensor in network.named_tensors()]
    return not tensors or bool(torch.isfinite(torch.stack(torch._foreach_norm(tensors))).all())
