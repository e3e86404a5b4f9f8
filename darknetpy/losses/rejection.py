"""Late in training deltas that look like wrong labels are dropped, and small ones evened out.

Darknet does this at the end of `forward_yolo_layer`.
All statistics stay on the device; the rolling averages are one set for all heads of a network, as in Darknet.
"""

from __future__ import annotations

import torch
from torch import Tensor

from darknetpy.losses.base import LossContext

KEEP, TAKE = 0.99, 0.01
LATE = 3 / 4
THRESHOLD_STEP = 0.01


def reject(delta: Tensor, classes: int, context: LossContext) -> dict[str, Tensor]:
    """Zero outliers (and, with equidistant_point, small values) of a flat delta in place; returns what is printed."""
    net, it = context.net, context.iteration
    start = int(context.max_batches * LATE)
    sigmas = net.num_sigmas_reject_badlabels if it > start else 0
    percentage = net.badlabels_rejection_percentage if it > start else 0
    even = net.equidistant_point and it > net.equidistant_point
    if not (sigmas or percentage or even):
        return {}
    state, stats = context.net_state, {}
    average_before = state.get("delta_avg", delta.new_zeros(()))
    _roll(state, *_size(delta))
    progress = (it - net.equidistant_point) / max(1, context.max_batches - net.equidistant_point)
    low = average_before * progress * 1.4
    if sigmas:
        final = _reject_sigmas(delta, sigmas, (it - start) / max(start, 1), state, stats)
        stats["start"] = delta.new_full((), float(start))
        low = torch.minimum(final, state["delta_avg"]) * progress
    if percentage:
        _reject_share(delta, classes, percentage, state, stats)
    if even:
        stats["equidistant_threshold"] = low
        stats["equidistant_point"] = delta.new_full((), float(net.equidistant_point))
        stats["equidistant_progress"] = delta.new_full((), progress * 100)
        delta.masked_fill_(delta.abs() < low, 0.0)
    return stats


def _size(delta: Tensor) -> tuple[Tensor, Tensor]:
    """Largest and mean absolute value of what isn't zero."""
    size = delta.abs()
    return size.max(), size.sum() / (delta != 0).sum().clamp(min=1)


def _roll(state: dict, largest: Tensor, average: Tensor) -> None:
    """Rolling averages; the largest value starts with the first one, the mean with 0."""
    old = state.get("delta_max", largest)
    old = torch.where(old == 0, largest, old)
    state["delta_max"] = old * KEEP + largest * TAKE
    state["delta_avg"] = state.get("delta_avg", torch.zeros_like(average)) * KEEP + average * TAKE


def _reject_sigmas(delta: Tensor, sigmas: float, progress: float, state: dict, stats: dict) -> Tensor:
    """Drop what lies beyond a bound that sinks from the largest value to some deviations over the average."""
    largest, average = state["delta_max"], state["delta_avg"]
    used = delta != 0
    spread = torch.where(used, delta - average, 0.0).square().sum() / used.sum().clamp(min=1)
    deviation = state.get("delta_std", torch.zeros_like(average))
    state["delta_std"] = deviation * KEEP + torch.sqrt(spread) * TAKE
    final = average + deviation * sigmas
    bound = torch.maximum(final, largest - progress * (largest - final).abs())
    delta.masked_fill_(delta.abs() > bound, 0.0)
    stats |= {"rolling_std": deviation, "rolling_max": largest, "rolling_avg": average}
    stats |= {"badlabels_threshold": bound, "badlabels_progress": delta.new_full((), progress * 100)}
    return final


def _reject_share(delta: Tensor, classes: int, wanted: float, state: dict, stats: dict) -> None:
    """Drop what lies beyond a bound that walks until the wanted percentage lies there."""
    bound = state.get("delta_bound", state["delta_max"])
    bound = torch.where(bound == 0, state["delta_max"], bound)
    above = delta.abs() > bound
    percentage = 100.0 * above.sum() * (classes + 5) / (delta != 0).sum().clamp(min=1)
    delta.masked_fill_(above, 0.0)
    lower = torch.where(bound > THRESHOLD_STEP, bound - THRESHOLD_STEP, bound)
    state["delta_bound"] = torch.where(percentage > wanted, bound + THRESHOLD_STEP, lower)
    stats |= {"reject_before": bound, "reject_after": state["delta_bound"], "reject_percent": percentage}
    stats |= {"reject_wanted": delta.new_full((), float(wanted)), "reject_max": state["delta_max"]}


def printed_rejection(s: dict[str, float]) -> list[str]:
    """Darknet's lines about thresholds, from the numbers that `reject` returned."""
    lines = []
    if "rolling_std" in s:
        lines += [
            f" rolling_std = {s['rolling_std']:f}, rolling_max = {s['rolling_max']:f}, "
            f"rolling_avg = {s['rolling_avg']:f} ",
            f" badlabels loss_threshold = {s['badlabels_threshold']:f}, start_it = {s['start']:.0f}, "
            f"progress = {s['badlabels_progress']:f} ",
        ]
    if "reject_before" in s:
        before, after = s["reject_before"], s["reject_after"]
        moved = [" increase!!! "] if after > before else [" decrease!!! "] if after < before else []
        lines += [
            f" badlabels_reject_threshold = {before:f} ",
            *moved,
            f" badlabels_reject_threshold = {after:f}, cur_percent = {s['reject_percent']:f}, "
            f"badlabels_rejection_percentage = {s['reject_wanted']:f}, delta_rolling_max = {s['reject_max']:f} ",
        ]
    if "equidistant_threshold" in s:
        lines.append(
            f" equidistant_point loss_threshold = {s['equidistant_threshold']:f}, "
            f"start_it = {s['equidistant_point']:.0f}, progress = {s['equidistant_progress']:3.1f} % "
        )
    return lines
