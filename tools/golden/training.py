"""Learning rates, losses and whole iterations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from darknetpy import Network
from darknetpy.config import NetOptions, parse_cfg, read_options
from darknetpy.data.resize import Sizes, dynamic_batch
from darknetpy.losses import has_loss
from darknetpy.parallel import Single
from darknetpy.training.learner import Learner
from darknetpy.training.schedule import Schedule
from tools.golden.common import UNSUPPORTED, Outcome, Places, Worst, inside, load_json, of_largest, relative

RATE, DELTA, GRADIENT = 1e-6, 1e-4, 5e-4
STEPS = {1: 2e-5, 2: 5e-5, 5: 2e-4}
LATE, FACTOR = 5e-4, 300
EARLY_LOSS, LATE_LOSS, EARLY = 1e-3, 2e-2, 5
DELTA_IS_OUTPUT_GRADIENT = frozenset(
    {"convolutional", "maxpool", "avgpool", "local_avgpool", "route", "upsample", "reorg", "reorg3d"}
)
"""Types whose recorded delta is a gradient that training exposes; others are checked through parameter gradients."""


def is_rates(path: Path) -> bool:
    if path.suffix != ".json" or path.stat().st_size > 1 << 22:
        return False
    try:
        content = json.loads(path.read_text())
    except ValueError:
        return False
    return isinstance(content, dict) and "cfg" in content and "runs" in content


def is_step(folder: Path) -> bool:
    return (folder / "after_0001.weights").is_file()


def is_loss(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("net.cfg", "init.weights", "data.npz", "expected.npz"))


def check_rates(path: Path) -> list[Outcome]:
    content, worst = load_json(path), Worst()
    net = read_options(NetOptions, parse_cfg(content["cfg"]).net)
    for run in content["runs"]:
        schedule = Schedule(net, run["ngpus"])
        for row in run["rates"]:
            n, rate = row[0], row[2]
            mine = schedule.rate(n)
            if net.policy == "random" and n >= net.burn_in:  # another stream of random numbers: only the range counts
                if not 0 <= mine <= schedule.base:
                    worst.fail(f"n={n}: {mine} is outside 0..{schedule.base}")
                continue
            worst.see(f"n={n}", 0.0 if mine == rate else abs(mine - rate) / max(abs(rate), 1e-12), RATE)
    return [worst.outcome(f"train/lr/{path.stem}")]


def _tensors(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    data = np.load(folder / "data.npz")
    x = torch.from_numpy(data["X_u8"].astype(np.float32) / np.float32(255))
    return x, torch.from_numpy(data["truth"].astype(np.float32))


def learner_of(weights: str, replicas: Single | None = None) -> Learner:
    """A strict learner for the `net.cfg` here."""
    return Learner(Network("net.cfg", weights, strict=True, training=True), True, replicas)


def _missing(learner: Learner) -> str | None:
    """A type that cannot be trained as Darknet does yet."""
    names = [head.type for head in learner.network.structure.heads if not has_loss(head)]
    return names[0] if names else None


def check_loss(folder: Path, places: Places) -> list[Outcome]:
    name, worst = f"train/loss/{folder.name}", Worst()
    x, truth = _tensors(folder)
    with inside(folder):
        expected = np.load("expected.npz")
        learner = learner_of("init.weights")
        if missing := _missing(learner):
            return [Outcome(name, UNSUPPORTED, note=f"[{missing}]")]
        if "seen_before" in expected:
            learner.seen = int(expected["seen_before"])
        costs, rows = [], learner.net.mini_batch
        for k in range(learner.subdivisions):
            part = slice(k * rows, (k + 1) * rows)
            mini = learner.accumulate(x[part], truth[part], k, keep_all=True)
            costs.append(float(mini.cost))
            _compare_mini_batch(learner, mini, expected, k, worst)
        _compare_gradients(learner, expected, worst)
        if "datum_error" in expected:
            worst.see("datum_error", of_largest(np.array(costs), expected["datum_error"]), DELTA)
        loss = sum(costs) / (learner.subdivisions * rows)
        worst.see("train_loss", abs(loss - float(expected["train_loss"])) / max(abs(loss), 1e-12), DELTA)
    return [worst.outcome(name)]


def _compare_mini_batch(learner, mini, expected, k: int, worst: Worst) -> None:
    for layer in learner.network.layers:
        key, here = f"s{k}/L{layer.index}/", f"s{k} layer {layer.index} [{layer.type}]"
        output = mini.outputs[layer.index]
        if f"{key}output" in expected and output is not None and not _overwritten(learner, layer):
            worst.see(f"{here} output", of_largest(output.detach().numpy(), expected[f"{key}output"]), DELTA)
        delta = mini.delta(layer.index)
        if f"{key}delta" in expected and delta is not None and _comparable(layer):
            want = expected[f"{key}delta"]
            if layer.type == "softmax" and output.grad is not None:
                delta = delta - output.grad  # what later heads added
            worst.see(f"{here} delta", of_largest(delta.numpy(), want), DELTA)
        if f"{key}cost" in expected and layer.index in mini.heads:
            cost, want = float(mini.heads[layer.index].cost), float(expected[f"{key}cost"])
            worst.see(f"{here} cost", abs(cost - want) / max(abs(want), 1e-12) if want or cost else 0.0, DELTA)
    for name in ("total_bbox", "rewritten_bbox"):
        if f"s{k}/{name}" in expected:
            counts = [loss.stats[name] for loss in mini.heads.values() if name in loss.stats]
            mine = int(counts[-1]) if counts else 0
            worst.see(f"s{k} {name}", abs(mine - int(expected[f"s{k}/{name}"])), 0.0)


def _overwritten(learner, layer) -> bool:
    """Layers whose recorded output is no forward value: heads that only learn, and what masked cost writes into."""
    following = learner.network.layers[layer.index + 1 : layer.index + 2]
    masked = any(head.type == "cost" and head.kind == "masked" for head in following)
    return masked or layer.type in ("cost", "contrastive")


def _comparable(layer) -> bool:
    if layer.is_head:
        return layer.type != "softmax" or not layer.options.noloss
    if layer.type == "convolutional":
        return not layer.blur
    if layer.type == "route" and len(layer.layers) == 1 and layer.groups == 1:
        return False  # the same tensor as its source here, whose gradient holds all readers' shares
    return layer.type in DELTA_IS_OUTPUT_GRADIENT or (layer.type == "shortcut" and layer.activation == "linear")


def _compare_gradients(learner, expected, worst: Worst) -> None:
    names = {"weights": "weight_updates", "biases": "bias_updates", "scales": "scale_updates"}
    for layer, spec, tensor in learner.network.named_tensors():
        key = f"grad/L{layer.index}/{names.get(spec.name, '')}"
        if key in expected and tensor.grad is not None:
            worst.see(key, of_largest(-tensor.grad.numpy(), expected[key]), GRADIENT)


def check_step(folder: Path, places: Places) -> list[Outcome]:
    name, worst = f"train/step/{folder.name}", Worst()
    rules = _parent(folder, "not_target.json").get(folder.name, {})
    if rules.get("target") is False:
        return [Outcome(name, "not checked", note="not a target")]
    until, losses_until = rules.get("until_iteration", 20), rules.get("losses_until", 20)
    sensitivity = _parent(folder, "sensitivity.json").get(folder.name, {}).get("20", 0.0)
    x, truth = _tensors(folder)
    with inside(folder):
        expected = np.load("expected.npz")
        learner = learner_of("init.weights")
        if missing := _missing(learner):
            return [Outcome(name, UNSUPPORTED, note=f"[{missing}]")]
        _fill_unloaded(learner)
        for iteration in range(1, len(expected["loss"]) + 1):
            turn = learner.turn(_rows(learner, x, truth, iteration))
            _compare_turn(learner, turn, expected, iteration, iteration <= losses_until, worst)
            after = Path(f"after_{iteration:04d}.weights")
            if after.is_file() and iteration <= until:
                tolerance = STEPS.get(iteration, max(LATE, FACTOR * sensitivity))
                worst.see(f"after {iteration}", _parameters_off(learner.network, after), tolerance)
    return [worst.outcome(name)]


def _parent(folder: Path, name: str) -> dict:
    path = folder.parent / name
    return load_json(path) if path.is_file() else {}


def _fill_unloaded(learner: Learner) -> None:
    """Layers with `dontload` were set to a ramp after loading."""
    with torch.no_grad():
        for layer, spec, tensor in learner.network.named_tensors():
            if layer.options.dontload:
                ramp = torch.linspace(-0.3, 0.3, tensor.numel()).view_as(tensor)
                values = {"weights": ramp, "scales": torch.ones_like(tensor)}
                tensor.copy_(values.get(spec.name, torch.zeros_like(tensor)))


def _rows(learner: Learner, x, truth, iteration: int):
    rows = learner.net.mini_batch * learner.subdivisions
    start = ((iteration - 1) * rows) % len(x)
    parts = [
        slice(start + k * learner.net.mini_batch, start + (k + 1) * learner.net.mini_batch)
        for k in range(learner.subdivisions)
    ]
    return [(x[part], truth[part]) for part in parts]


def _compare_turn(learner, turn, expected, iteration: int, with_loss: bool, worst: Worst) -> None:
    i = iteration - 1
    want = float(expected["loss"][i])
    if with_loss:
        tolerance = EARLY_LOSS if iteration <= EARLY else LATE_LOSS
        worst.see(f"loss {iteration}", abs(float(turn.loss) - want) / max(abs(want), 1e-9), tolerance)
    rate = float(expected["rate_used"][i])
    worst.see(f"rate {iteration}", abs(turn.rate - rate) / max(abs(rate), 1e-12), RATE)
    for name, mine in (("seen", learner.seen), ("cur_iteration", learner.iteration)):
        worst.see(f"{name} {iteration}", abs(mine - int(expected[name][i])), 0.0)


def _parameters_off(network: Network, path: Path) -> float:
    """Largest difference of any stored parameter."""
    mine = np.concatenate([t.detach().numpy().ravel() for _, s, t in network.named_tensors() if s.stored])
    stored = np.frombuffer(path.read_bytes()[20:], np.float32)
    return float(np.abs(mine - stored).max()) if mine.size == stored.size else float("inf")


def is_resize(folder: Path) -> bool:
    return (folder / "after_stage0.weights").is_file()


def check_resize(folder: Path, places: Places) -> list[Outcome]:
    """Sizes change between stages of two iterations; weights, momentum and statistics go on."""
    name, worst = f"train/resize/{folder.name}", Worst()
    tolerances = [STEPS[2], STEPS[5], LATE, LATE]
    with inside(folder):
        data, expected = np.load("data.npz"), np.load("expected.npz")
        learner = learner_of("init.weights")
        for stage in range(len(expected["loss"])):
            for k in range(expected["loss"].shape[1]):
                key = f"stage{stage}/iter{k}/"
                x = torch.from_numpy(data[f"{key}X_u8"].astype(np.float32) / np.float32(255))
                truth = torch.from_numpy(data[f"{key}truth"].astype(np.float32))
                loss = float(learner.turn(_rows(learner, x, truth, 1)).loss)
                want = float(expected["loss"][stage, k])
                worst.see(f"{key}loss", abs(loss - want) / max(abs(want), 1e-9), EARLY_LOSS if stage < 2 else LATE_LOSS)
            after = Path(f"after_stage{stage}.weights")
            if after.is_file():
                worst.see(f"after stage {stage}", _parameters_off(learner.network, after), tolerances[stage])
    return [worst.outcome(name)]


def check_sizes(path: Path) -> list[Outcome]:
    """The table of random sizes."""
    worst = Worst()
    for entry in load_json(path):
        sizes = Sizes(entry["init_w"], entry["init_h"], entry["random"], entry["resize_step"])
        for value, w, h, batch in entry["rows"]:
            mine = sizes.at(value)
            worst.see(f"{entry['init_w']} at {value}", float(mine != (w, h)), 0.0)
            if batch is not None and mine == (w, h):
                most = dynamic_batch(entry["init_mini_batch"], sizes.largest, mine)
                worst.see("batch", abs(most - max(1, batch)), 0.0)
    return [worst.outcome(f"train/resize/{path.stem}")]


__all__ = ["relative"]
