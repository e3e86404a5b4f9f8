"""`train_rnn(...)`: from a text to a network that writes such texts."""

from __future__ import annotations

import os
from collections.abc import Sequence

from darknetpy.data.text import TextData, read_symbols
from darknetpy.inference.text import check_symbolic
from darknetpy.layers import Structure, read_structure
from darknetpy.layers.trainable import TARGET_HEADS, check_trainable
from darknetpy.parallel import Single
from darknetpy.runtime import Policy
from darknetpy.training.checkpoint import Checkpoints
from darknetpy.training.events import Sink
from darknetpy.training.plan import Stops
from darknetpy.training.run import Recipe, run
from darknetpy.training.trainer import Settings, TrainResult


def train_rnn(
    text: str | os.PathLike,
    cfg: str | os.PathLike | Structure,
    weights: str | os.PathLike | None = None,
    *,
    tokenized: bool = False,
    backup: str = "backup",
    clear: bool = False,
    device: str = "cpu",
    replicas: Single | None = None,
    seed: int = 0,
    save_every: int = 1000,
    hours: float | None = None,
    until: int | None = None,
    rehearse: bool = True,
    strict: bool = False,
    overrides: Sequence[str] = (),
    policy: Policy | None = None,
    profile: int = 0,
    check_replicas: bool = False,
    sinks: Sequence[Sink] | None = None,
) -> TrainResult:
    """Train a network to foresee the next symbol of a text (what `rnn train` calls).

    Args:
        text: a file whose bytes are the symbols, or with `tokenized` the whole numbers in it.
        backup: folder of the weights files. The others are those of `training.train`.

    Raises DarknetpyError kinds for input that cannot be trained on, before anything is trained or written.
    """
    structure = cfg if isinstance(cfg, Structure) else read_structure(cfg, strict, overrides)
    check_trainable(structure, TARGET_HEADS)
    net = structure.net
    symbols = read_symbols(text, check_symbolic(structure), tokenized)
    settings = Settings(
        seed=seed, save_every=save_every, rehearse=rehearse, stops=Stops(hours, iteration=until), task="rnn",
        profile=profile, check_replicas=check_replicas,
    )  # fmt: skip

    def source(seed: int, replicas: int) -> TextData:
        return TextData(symbols, net.inputs, structure.time_steps, net.subdivisions, replicas, seed)

    recipe = Recipe(structure, Checkpoints(backup, structure.cfg.path), settings, source)
    return run(
        recipe, weights, clear=clear, device=device, replicas=replicas, workers=0, strict=strict, sinks=sinks,
        policy=policy,
    )  # fmt: skip
