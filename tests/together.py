"""Replicas that a test starts, each in a process of its own that runs a function."""

from __future__ import annotations

import multiprocessing
import os
import traceback

from darknetpy.parallel import launch


def together(count: int, job, *arguments) -> list:
    """What `job(replicas, *arguments)` gives in each of `count` processes that know each other.

    The last of the arguments are the job's keywords; `ddp`, `shares`, `sync_bn` and `sync_statistics` among them
    are those of `join`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "cv2", "darknetpy.training"])
    store, found = launch.meeting_point(), context.SimpleQueue()
    environments = [launch.environment(rank, count, store.port) for rank in range(count)]
    processes = [context.Process(target=_replica, args=(e, job, arguments, found)) for e in environments]
    for process in processes:
        process.start()
    results = dict(found.get() for _ in processes)
    for process in processes:
        process.join()
    failed = [text for ok, text in results.values() if not ok]
    assert not failed, failed[0]
    return [results[rank][1] for rank in range(count)]


def _replica(environment: dict, job, arguments, found) -> None:
    import torch

    from darknetpy.parallel import join

    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        arguments, options = arguments[:-1], dict(arguments[-1])
        ours = {name: options.pop(name) for name in ("ddp", "shares", "sync_bn", "sync_statistics") if name in options}
        replicas = join("cpu", **ours)
        found.put((replicas.rank, (True, job(replicas, *arguments, **options))))
    except Exception:
        found.put((int(environment["RANK"]), (False, traceback.format_exc())))
