"""What a run tells: its events, made from the state of the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from darknetpy import losses
from darknetpy.parallel.advice import arithmetic
from darknetpy.runtime import held_memory
from darknetpy.training.events import Started, TurnDone
from darknetpy.training.learner import Turn

if TYPE_CHECKING:
    from darknetpy.training.trainer import Trainer


def started(trainer: Trainer) -> Started:
    """The run begins, or goes on."""
    net, learner = trainer.net, trainer.learner
    return Started(
        base=trainer.checkpoints.base,
        cfg=trainer.network.structure.cfg.path,
        iteration=learner.iteration,
        max_batches=net.max_batches,
        batch=learner.images,
        images=len(trainer.loader.data),
        device=str(trainer.device),
        learning_rate=net.learning_rate,
        momentum=net.momentum,
        decay=net.decay,
        heads=tuple((head.index, head.type) for head in trainer.network.structure.detectors),
        save_every=trainer.saves.every,
        save_last=trainer.saves.every_last,
        max_chart_loss=net.max_chart_loss,
        evaluating=trainer.measurement is not None,
        task=trainer.settings.task,
        metric=trainer.settings.metric,
        replicas=learner.replicas.size,
        advice=(
            *trainer.feed.sizes.told(),
            *arithmetic(net, learner.replicas, learner.parts(net.mini_batch), learner.strict),
        ),
    )


def past(trainer: Trainer) -> list[dict[str, float]]:
    """What sinks need to draw the past of a resumed run."""
    accuracy = dict(trainer.result.history)
    rows = [dict(zip(("iteration", "loss", "avg_loss", "rate"), row, strict=True)) for row in trainer.curve]
    for row in rows:
        if row["iteration"] in accuracy:
            row["map"] = accuracy[row["iteration"]]
    return rows


def turn_done(
    trainer: Trainer, turn: Turn, loss: float, seconds: float, load: float, averaged: bool = False
) -> TurnDone:
    """One iteration is finished; `seconds` without those of loading."""
    learner, result, settings = trainer.learner, trainer.result, trainer.settings
    iteration = learner.iteration
    return TurnDone(
        iteration=iteration,
        max_batches=trainer.net.max_batches,
        loss=loss,
        avg_loss=trainer.avg_loss,
        rate=turn.rate,
        seconds=seconds,
        load_seconds=load,
        images=iteration * learner.images * learner.replicas.size,
        trained=iteration * learner.images,
        hours_left=trainer.left.shown,
        size=trainer.feed.size,
        next_map=trainer.evaluations.next if trainer.measurement else None,
        map=result.map,
        best_map=result.best_map,
        iou_thresh=settings.iou_thresh,
        details=_details(trainer, turn) if settings.show_details else (),
        losses=turn.kinds,
        sync_seconds=min(seconds, learner.replicas.waited()),
        averaged=averaged,
        memory=held_memory(str(trainer.device)) >> 20,
    )


def _details(trainer: Trainer, turn: Turn) -> tuple[str, ...]:
    """Darknet's line of each head, for each mini-batch."""
    heads = trainer.network.structure.heads
    return tuple(line for mini in turn.mini_batches for line in losses.printed(heads, mini.heads))
