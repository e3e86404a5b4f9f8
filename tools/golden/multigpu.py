"""Replicas with weight averaging, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from pathlib import Path

import numpy as np
import torch

from darknetpy.parallel import join, launch
from darknetpy.training.checkpoint import Checkpoints
from tools.golden.common import Outcome, Places, Worst, inside, load_json

PARAMETERS, LATE = 2e-5, 2e-4
"""Of a parameter, absolute: in the first calls, and in all."""
LOSS, RATE, EARLY = 2e-2, 1e-5, 2
NAMES = {"weight_updates": "weights", "bias_updates": "biases", "scale_updates": "scales"}


def is_case(folder: Path) -> bool:
    return (folder / "log.json").is_file() and (folder / "final.weights").is_file()


def check(folder: Path, places: Places) -> list[Outcome]:
    """Start the replicas, let each compare itself with the stored values, and collect what they found."""
    count, worst = load_json(folder / "log.json")["n"], Worst()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "cv2", "darknetpy.training"])
    store, found = launch.meeting_point(), context.SimpleQueue()
    processes = [context.Process(target=_replica, args=(folder, r, count, store.port, found)) for r in range(count)]
    for process in processes:
        process.start()
    for _ in processes:
        for what, error, tolerance in found.get():
            worst.see(what, error, tolerance)
    for process in processes:
        process.join()
    return [worst.outcome(f"train/multigpu/{folder.name}")]


def _replica(folder: Path, rank: int, count: int, port: int, found) -> None:
    os.environ.update(launch.environment(rank, count, port))
    torch.set_num_threads(1)
    try:
        with inside(folder):
            found.put(_run(rank))
    except Exception:
        found.put([(traceback.format_exc(), float("inf"), 0.0)])


def _run(rank: int) -> list[tuple[str, float, float]]:
    from tools.golden.training import learner_of

    log, expected, data = load_json(Path("log.json")), np.load("expected.npz"), np.load("data.npz")
    learner = learner_of("init.weights", join("cpu"))
    x = torch.from_numpy(data["pool_X_u8"].astype(np.float32) / np.float32(255))
    truth = torch.from_numpy(data["pool_truth"].astype(np.float32))
    sees: list[tuple[str, float, float]] = []

    def see(what: str, mine: float, want: float, tolerance: float) -> None:
        sees.append((f"replica {rank} {what}", abs(mine - want) / max(abs(want), 1e-12), tolerance))

    for number, call in enumerate(log["calls"]):
        rows = data["index"][number][call["rows_per_replica"][rank]]
        parts = np.split(rows, learner.subdivisions)
        turn = learner.turn([(x[part], truth[part]) for part in parts])
        tolerance = PARAMETERS if number < EARLY else LATE
        see(f"call {number} loss", float(turn.loss), call["replica_loss"][rank], LOSS)
        see(f"call {number} rate", turn.rate, call["rate_used"][rank], RATE)
        if f"call{number}/before" in expected:
            want = expected[f"call{number}/before"][rank]
            sees.append((f"replica {rank} call {number} before", _off(learner, log["layout"], want), tolerance))
        due = learner.averaging_due(number + 1)
        see(f"call {number} averaged", float(due), float(call["synced"]), 0.0)
        if due:
            learner.synchronise(log["interval"])
        if f"call{number}/after" in expected:
            want = expected[f"call{number}/after"][rank]
            sees.append((f"replica {rank} call {number} after", _off(learner, log["layout"], want), tolerance))
        see(f"call {number} seen", learner.seen, call["seen_end"][rank], 0.0)
        see(f"call {number} iteration", learner.clock, call["cur_iteration_end"][rank], 0.0)
    learner.synchronise()
    see("seen after the last averaging", learner.seen, log["seen_after_final_sync"][rank], 0.0)
    sees.append((f"replica {rank} final", _off(learner, log["layout"], expected["final/params"][rank]), LATE))
    momentum = _momentum_off(learner, log["updates_layout"], expected["final/updates"][rank])
    sees.append((f"replica {rank} momentum", momentum, LATE))
    if rank == 0:
        sees.append(("file", _file_off(learner), LATE))
    learner.replicas.close()
    return sees


def _off(learner, layout, flat: np.ndarray) -> float:
    """Largest difference of any parameter of a replica."""
    tensors = {(layer.index, spec.name): t for layer, spec, t in learner.network.named_tensors()}
    worst = 0.0
    for key, start, length in layout:
        index, name = key.split("/")
        mine = tensors[int(index[1:]), name].detach().numpy().ravel()
        worst = max(worst, float(np.abs(mine - flat[start : start + length]).max()))
    return worst


def _momentum_off(learner, layout, flat: np.ndarray) -> float:
    """Darknet keeps U = -n v after the step times the momentum; compared relative to its largest entry."""
    tensors = {(layer.index, spec.name): t for layer, spec, t in learner.network.named_tensors()}
    worst, images, momentum = 0.0, learner.optimizer.images, learner.net.momentum
    top = max(float(np.abs(flat).max()), 1e-12)
    for key, start, length in layout:
        index, name = key.split("/")
        tensor = tensors.get((int(index[1:]), NAMES.get(name, "")))
        buffer = None if tensor is None else learner.optimizer.momentum_of(tensor)
        if buffer is not None:
            mine = -images * momentum * buffer.numpy().ravel()
            worst = max(worst, float(np.abs(mine - flat[start : start + length]).max()) / top)
    return worst


def _file_off(learner) -> float:
    """The header and the parameters of what would be saved now against `final.weights`."""
    import tempfile

    stored = Path("final.weights").read_bytes()
    with tempfile.TemporaryDirectory() as place:
        path = Checkpoints(place, "net.cfg").save(learner.network, "final", learner.iteration)
        mine = Path(path).read_bytes()
    if mine[:20] != stored[:20] or len(mine) != len(stored):
        return float("inf")
    return float(np.abs(np.frombuffer(mine[20:], np.float32) - np.frombuffer(stored[20:], np.float32)).max())
