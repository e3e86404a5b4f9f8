"""`train(...)`: from files to a finished run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext

from darknetpy.config.datafile import DataConfig
from darknetpy.data.cache import make_cache
from darknetpy.data.detection import DetectionData
from darknetpy.data.draws import Augmentation
from darknetpy.data.loader import AHEAD, Loader
from darknetpy.data.notes import summary
from darknetpy.data.pictures import require_one
from darknetpy.data.preview import Preview
from darknetpy.data.sets import open_data
from darknetpy.errors import DarknetpyError, DataError, MissingFileError, WeightsError, warn
from darknetpy.layers import Structure, read_structure
from darknetpy.layers.trainable import check_trainable
from darknetpy.network import Network
from darknetpy.parallel import Single
from darknetpy.runtime import default_workers, host_arrays, seed_all, set_parity
from darknetpy.training.checkpoint import Checkpoints, read_state
from darknetpy.training.events import Events, Sink, default_sinks
from darknetpy.training.learner import Learner
from darknetpy.training.lock import RunLock
from darknetpy.training.measure import Measurement
from darknetpy.training.plan import Stops
from darknetpy.training.trainer import Settings, Trainer, TrainResult
from darknetpy.weights import Header

OTHER_DRAWS = 7919
"""Between the seeds of replicas, for what layers draw."""


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
    replicas: Single | None = None,
    until: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    cache: str | bool | None = None,
    cache_dir: str | None = None,
    prefetch: int = AHEAD,
    close_mosaic: int = 0,
    show_imgs: bool = False,
    batch: int = 0,
    save_every: int | None = None,
    patience: int | None = None,
    hours: float | None = None,
    stop_map: float | None = None,
    rehearse: bool = True,
    show_details: bool = False,
    strict: bool = False,
    overrides: Sequence[str] = (),
    sinks: Sequence[Sink] | None = None,
) -> TrainResult:
    """Train a detector (what `detector train` calls).

    Args:
        data: `.data` file, or what else `data.sets.open_data` reads.
        cfg: network file; weights: `.weights`, `.conv.N` or `.pt` to begin with, None: random.
            `X_last.weights` of an earlier run goes on with the `X_last.state.pt` beside it: momentum, running
            statistics, random numbers, best mAP and all, as if the run had never ended.
        evaluate: measure mAP on `valid=` during the run; map_every: iterations between evaluations.
        clear: begin counting at iteration 0, without a state. device: torch device.
        replicas: the others that train the same network, as `parallel.join` gives them; until: stop at an iteration.
        seed: of weights, order and augmentation; a run that goes on keeps its own.
        workers: loader processes (0: none, None: chosen). prefetch: iterations made ready ahead.
        cache: keep decoded pictures, "ram" or "disk" ("" or False: not, None: in memory if the list is short);
        cache_dir: folder for "disk". close_mosaic: iterations at the end without mosaic and mixup.
        show_imgs: write the first augmented pictures to the folder `augmented`.
        save_every: iterations between numbered checkpoints. sinks: receivers of events.
        patience: evaluations without a better mAP after which to stop; hours: to stop after; stop_map: mAP to stop at.
        rehearse: try everything once before the first turn. overrides: `section[#n].key=value` words.

    Raises DarknetpyError kinds for input that cannot be trained on, before anything is trained or written.
    """
    config = data if isinstance(data, DataConfig) else open_data(data, strict)
    structure = cfg if isinstance(cfg, Structure) else read_structure(cfg, strict, overrides)
    check_trainable(structure)
    names = config.class_names() if config.has("names") or evaluate else []
    if evaluate:
        _check_evaluation(config, structure, names)
    checkpoints = Checkpoints(config.backup, structure.cfg.path)
    paths = config.listed(config.train)
    require_one(paths, config.train)
    replicas = replicas or Single()
    with RunLock(checkpoints.folder, checkpoints.base) if replicas.main else nullcontext():
        if replicas.main:
            checkpoints.remove_leftovers()
        state = read_state(weights) if weights and not clear else None
        if state is not None:
            seed = state["run"]["seed"]
        settings = Settings(
            map_every, map_epochs, iou_thresh, seed,
            save_every or config.number("saveweights", 10_000 if structure.net.max_batches >= 10_000 else 1000),
            config.number("savelast", 100), show_details, rehearse, Stops(hours, stop_map, patience, until),
        )  # fmt: skip
        set_parity()
        seed_all(seed)
        network = _network(structure, weights if state is None else None, clear, device)
        replicas.wrap(network)
        learner = Learner(network, strict, replicas)
        done = learner.iteration if state is None else state["replicas"][0]["counters"][1]
        if done >= structure.net.max_batches:
            warn(
                f"{os.fspath(weights)} is at iteration {done}, max_batches={structure.net.max_batches}: "
                "nothing is left to train; raise max_batches to go on, or use -clear to begin again"
            )
            return TrainResult(done, -1.0)
        if not weights and os.path.exists(checkpoints.path("last")):
            warn(f"{checkpoints.path('last')} of an earlier run will be overwritten; to go on with it, name it")
        options = Augmentation.of(structure.net, structure.heads[-1])
        closes = structure.net.max_batches - close_mosaic if close_mosaic > 0 else None
        channels = structure.net.channels
        kept = make_cache(cache, paths, channels, cache_dir)
        images = DetectionData(paths, options, channels, seed, strict, kept, config.annotations, closes)
        watch = Preview(options.classes, names) if show_imgs and replicas.main else None
        count = default_workers(device, replicas.size) if workers is None else workers
        measurement = None
        if evaluate:
            measurement = Measurement(network, config, names, thresh, iou_thresh, batch, replicas)
        events = Events([] if not replicas.main else default_sinks() if sinks is None else sinks)
        if not replicas.main:
            seed_all(seed + replicas.rank * OTHER_DRAWS)
        with Loader(images, count, prefetch, host_arrays(device), watch) as loader:
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
    try:
        paths = config.listed(valid)
    except MissingFileError:
        raise DataError(
            f"There is no {valid} file for mAP calculation", file=config.path, remedy="set valid=, or leave -map out"
        ) from None
    require_one(paths, valid)
