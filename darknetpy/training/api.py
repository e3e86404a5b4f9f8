"""`train(...)`: from files to a finished run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from darknetpy.config.datafile import DataConfig, read_data, read_list, read_names
from darknetpy.data.detection import DetectionData
from darknetpy.data.draws import Augmentation
from darknetpy.data.loader import Loader
from darknetpy.errors import DataError, warn
from darknetpy.layers import Structure, read_structure
from darknetpy.layers.trainable import check_trainable
from darknetpy.network import Network
from darknetpy.runtime import default_workers, seed_all, set_parity
from darknetpy.training.checkpoint import Checkpoints
from darknetpy.training.events import Events, Sink, default_sinks
from darknetpy.training.learner import Learner
from darknetpy.training.trainer import Settings, Trainer, TrainResult
from darknetpy.weights import Header


def train(
    data: str | os.PathLike | DataConfig,
    cfg: str | os.PathLike | Structure,
    weights: str | os.PathLike | None = None,
    *,
    evaluate: bool = False,
    map_every: int | None = None,
    map_epochs: int = 4,
    thresh: float = 0.25,
    iou_thresh: float = 0.5,
    clear: bool = False,
    device: str = "cpu",
    seed: int = 0,
    workers: int | None = None,
    cache: bool | None = None,
    batch: int = 0,
    save_every: int | None = None,
    show_details: bool = False,
    strict: bool = False,
    overrides: Sequence[str] = (),
    sinks: Sequence[Sink] | None = None,
) -> TrainResult:
    """Train a detector (what `detector train` calls).

    Args:
        data: `.data` file; cfg: network file; weights: `.weights`, `.conv.N` or `.pt` to begin with, None: random.
        evaluate: measure mAP on `valid=` during the run; map_every: iterations between evaluations.
        clear: begin counting at iteration 0. device: torch device. seed: of weights, order and augmentation.
        workers: loader processes (0: none, None: chosen). cache: keep decoded pictures in memory (None: if small).
        save_every: iterations between numbered checkpoints. sinks: receivers of events.
        overrides: `section[#n].key=value` words.

    Raises DarknetpyError kinds for input that cannot be trained on, before anything is trained or written.
    """
    config = data if isinstance(data, DataConfig) else read_data(data, strict)
    structure = cfg if isinstance(cfg, Structure) else read_structure(cfg, strict, overrides)
    check_trainable(structure)
    names = read_names(config.names) if config.has("names") or evaluate else []
    if evaluate:
        _check_evaluation(config, structure, names)
    checkpoints = Checkpoints(config.backup, structure.cfg.path)
    paths = read_list(config.train, config.folder)

    set_parity()
    seed_all(seed)
    network = Network.from_structure(structure, device)
    if weights:
        network.load_weights(weights)
        if clear:
            network.header = Header()
    learner = Learner(network, strict)
    if learner.iteration >= structure.net.max_batches:
        warn(
            f"{weights} is at iteration {learner.iteration}, max_batches={structure.net.max_batches}: "
            "nothing is left to train; use -clear to begin again"
        )
    small = len(paths) <= 2000 if cache is None else cache
    options = Augmentation.of(structure.net, structure.heads[-1])
    images = DetectionData(paths, options, structure.net.channels, seed, strict, small)
    count = default_workers(device) if workers is None else workers
    settings = Settings(
        evaluate, map_every, map_epochs, thresh, iou_thresh, seed, save_every, show_details, batch
    )  # fmt: skip
    if sinks is None:
        sinks = default_sinks()
    with Loader(images, count) as loader:
        return Trainer(learner, loader, config, names, checkpoints, Events(sinks), settings).run()


def _check_evaluation(config: DataConfig, structure: Structure, names: list[str]) -> None:
    classes = structure.heads[-1].options.classes
    if len(names) != classes:
        raise DataError(
            f"{len(names)} names, but classes={classes} in {structure.cfg.path}", file=config.names,
            remedy="make them equal",
        )  # fmt: skip
    valid = config.valid(None)
    if valid is None:
        raise DataError("has no valid= list for -map", file=config.path, remedy="add valid=, or leave -map out")
    if not os.path.exists(valid):
        raise DataError(
            f"There is no {valid} file for mAP calculation", file=config.path, remedy="set valid=, or leave -map out"
        )
    read_list(valid, config.folder)
