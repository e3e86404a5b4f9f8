"""`train(...)`: from files to a finished run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from darknetpy.config.datafile import DataConfig
from darknetpy.data.cache import make_cache
from darknetpy.data.detection import DetectionData
from darknetpy.data.draws import Augmentation
from darknetpy.data.loader import AHEAD
from darknetpy.data.pictures import require_one
from darknetpy.data.preview import Preview
from darknetpy.data.sets import open_data
from darknetpy.errors import DataError, MissingFileError, warn
from darknetpy.layers import Structure, read_structure
from darknetpy.layers.trainable import check_trainable
from darknetpy.network import Network
from darknetpy.parallel import Single
from darknetpy.runtime import Policy
from darknetpy.training.checkpoint import Checkpoints
from darknetpy.training.events import Sink
from darknetpy.training.fitting import with_subdivisions
from darknetpy.training.measure import Measurement
from darknetpy.training.plan import Stops
from darknetpy.training.run import Recipe, run
from darknetpy.training.trainer import Settings, TrainResult


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
    profile: int = 0,
    check_replicas: bool = False,
    show_details: bool = False,
    strict: bool = False,
    overrides: Sequence[str] = (),
    subdivisions: int | str | None = None,
    policy: Policy | None = None,
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
        rehearse: try everything once before the first turn. profile: turns of which the profiler writes a trace;
        check_replicas: compare replicas after each synchronisation. overrides: `section[#n].key=value` words.
        subdivisions: instead of the cfg's; "auto": the fewest whose mini-batch fits into the GPU's memory.
        policy: how to compute: precision and the like.

    Raises DarknetpyError kinds for input that cannot be trained on, before anything is trained or written.
    """
    config = data if isinstance(data, DataConfig) else open_data(data, strict)
    structure = cfg if isinstance(cfg, Structure) else read_structure(cfg, strict, overrides)
    check_trainable(structure)
    names = config.class_names() if config.has("names") or evaluate else []
    if evaluate:
        _check_evaluation(config, structure, names)
    else:
        classes = structure.leading_head.options.classes
        if names and len(names) != classes:
            warn(f"{config.names}: {len(names)} names, but classes={classes} in {structure.cfg.path}; make them equal")
        config.compare_classes(classes, structure.cfg.path)
    paths = config.listed(config.train)
    require_one(paths, config.train)
    if subdivisions is not None:
        structure = with_subdivisions(structure, subdivisions, device, replicas or Single(), policy or Policy())
    net, options = structure.net, Augmentation.of(structure.net, structure.leading_head)
    closes = net.max_batches - close_mosaic if close_mosaic > 0 else None
    settings = Settings(
        map_every, map_epochs, iou_thresh, seed,
        save_every or config.number("saveweights", 10_000 if net.max_batches >= 10_000 else 1000),
        config.number("savelast", 100), show_details, rehearse, Stops(hours, stop_map, patience, until),
        profile=profile, check_replicas=check_replicas,
    )  # fmt: skip

    def source(seed: int, _: int) -> DetectionData:
        kept = make_cache(cache, paths, net.channels, cache_dir)
        return DetectionData(paths, options, net.channels, seed, strict, kept, config.annotations, closes)

    def measurement(network: Network, replicas: Single) -> Measurement:
        return Measurement(network, config, names, thresh, iou_thresh, batch, replicas)

    recipe = Recipe(
        structure, Checkpoints(config.backup, structure.cfg.path), settings, source,
        measurement if evaluate else None, (lambda: Preview(options.classes, names)) if show_imgs else None,
    )  # fmt: skip
    return run(
        recipe, weights, clear=clear, device=device, replicas=replicas, workers=workers, prefetch=prefetch,
        strict=strict, sinks=sinks, policy=policy,
    )  # fmt: skip


def _check_evaluation(config: DataConfig, structure: Structure, names: list[str]) -> None:
    config.check_classes(names, structure.leading_head.options.classes, structure.cfg.path)
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
