"""A run from its recipe to its end: what is the same for every task."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from darknetpy.data.batches import Batch, Source
from darknetpy.data.loader import AHEAD, Loader
from darknetpy.data.notes import collecting, summary
from darknetpy.errors import DarknetpyError, UsageError, WeightsError, warn
from darknetpy.layers import Structure
from darknetpy.network import Network
from darknetpy.parallel import Single
from darknetpy.parallel.advice import risk
from darknetpy.parallel.launch import started_here
from darknetpy.runtime import Policy, default_workers, host_arrays, seed_all
from darknetpy.training.checkpoint import Checkpoints, read_state
from darknetpy.training.events import Events, Sink, default_sinks
from darknetpy.training.learner import Learner
from darknetpy.training.lock import RunLock
from darknetpy.training.measure import Measurement
from darknetpy.training.trainer import Settings, Trainer, TrainResult
from darknetpy.weights import Header

OTHER_DRAWS = 7919
"""Between the seeds of replicas, for what layers draw."""


@dataclass
class Recipe:
    """What a run is made of.

    Attributes:
        structure: the network's layout; checkpoints: where it is saved; settings: what was asked for.
        source: the data set for a seed and a number of replicas; measurement: of a network's snapshots, None: no
            evaluations. watch: is shown the batches of each turn.
    """

    structure: Structure
    checkpoints: Checkpoints
    settings: Settings
    source: Callable[[int, int], Source]
    measurement: Callable[[Network, Single], Measurement] | None = None
    watch: Callable[[], Callable[[list[Batch]], None]] | None = None


def run(
    recipe: Recipe,
    weights: str | os.PathLike | None = None,
    *,
    clear: bool = False,
    device: str = "cpu",
    replicas: Single | None = None,
    workers: int | None = None,
    prefetch: int = AHEAD,
    strict: bool = False,
    sinks: Sequence[Sink] | None = None,
    policy: Policy | None = None,
) -> TrainResult:
    """Train by a recipe; see `training.train` for the arguments."""
    structure, checkpoints = recipe.structure, recipe.checkpoints
    replicas, policy = replicas or Single(), policy or Policy()
    if policy.checkpointing and replicas.sync_bn:
        raise UsageError("-checkpointing does not go with -sync_bn", remedy="leave one of them out")
    with RunLock(checkpoints.folder, checkpoints.base) if replicas.main else collecting():
        if replicas.main:
            checkpoints.remove_leftovers()
        state = read_state(weights) if weights and not clear else None
        seed = recipe.settings.seed if state is None else state["run"]["seed"]
        settings = replace(recipe.settings, seed=seed)
        policy.apply()
        seed_all(seed)
        network = _network(structure, weights if state is None else None, clear, device)
        replicas.wrap(network)
        learner = Learner(network, strict, replicas, policy)
        learner.check, learner.schedule.seed = settings.check_replicas, seed
        if replicas.main and not weights and (sentence := risk(structure.net, replicas.size, started_here())):
            warn(sentence)
        done = learner.iteration if state is None else state["replicas"][0]["counters"][1]
        unfinished = state is not None and not os.path.exists(checkpoints.path("final"))
        if done >= structure.net.max_batches and not unfinished:
            warn(
                f"{os.fspath(weights)} is at iteration {done}, max_batches={structure.net.max_batches}: "
                "nothing is left to train; raise max_batches to go on, or use -clear to begin again"
            )
            return TrainResult(done, -1.0)
        if not weights and os.path.exists(checkpoints.path("last")):
            warn(f"{checkpoints.path('last')} of an earlier run will be overwritten; to go on with it, name it")
        data = recipe.source(seed, replicas.size)
        watch = recipe.watch() if recipe.watch and replicas.main else None
        count = default_workers(device) if workers is None else workers
        measurement = recipe.measurement(network, replicas) if recipe.measurement else None
        events = Events([] if not replicas.main else default_sinks() if sinks is None else sinks)
        if not replicas.main:
            seed_all(seed + replicas.rank * OTHER_DRAWS)
        with Loader(data, count, prefetch, host_arrays(device), watch) as loader:
            result = _trainer(learner, loader, measurement, checkpoints, events, settings, state).run()
    for sentence in summary():
        warn(sentence)
    return result


def _network(structure: Structure, weights: str | os.PathLike | None, clear: bool, device: str) -> Network:
    network = Network.from_structure(structure, device)
    if weights:
        network.load_weights(weights)
        if clear:
            network.header = Header()
    return network


def _trainer(learner, loader, measurement, checkpoints, events, settings, state) -> Trainer:
    try:
        return Trainer(learner, loader, measurement, checkpoints, events, settings, state)
    except (KeyError, ValueError, RuntimeError, TypeError, IndexError) as error:
        if state is None or isinstance(error, DarknetpyError):
            raise
        first = str(error).strip().splitlines()[0][:160]
        raise WeightsError(
            f"the state beside the weights does not fit {learner.network.structure.cfg.path}: {first}",
            remedy="use the cfg of that run, or remove the .state.pt file to go on from the weights alone",
        ) from error
