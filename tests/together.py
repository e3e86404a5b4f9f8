"""Replicas that a test starts, each in a process of its own, that run a function or a command."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import subprocess
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from darknetpy.parallel import launch

PRELOADED = ["torch", "cv2", "darknetpy.training", "darknetpy.reporting"]
"""What processes have loaded when they begin."""
PATIENCE = 120.0
"""Seconds after which processes count as hanging."""


def together(count: int, job, *arguments) -> list:
    """What `job(replicas, *arguments)` gives in each of `count` processes that know each other.

    The last of the arguments are the job's keywords; `ddp`, `shares`, `sync_bn` and `sync_statistics` among them
    are those of `join`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    store, pipes = launch.meeting_point(), [context.Pipe(duplex=False) for _ in range(count)]
    environments = [launch.environment(rank, count, store.port) for rank in range(count)]
    processes = [
        context.Process(target=_replica, args=(environment, job, arguments, writer))
        for environment, (_, writer) in zip(environments, pipes, strict=True)
    ]
    for process, (_, writer) in zip(processes, pipes, strict=True):
        process.start()
        writer.close()
    end = time.monotonic() + PATIENCE
    results = [_result(reader, end) for reader, _ in pipes]
    failed = [text for ok, text in results if not ok]
    for process in processes:
        if failed:
            process.kill()
        process.join()
    assert not failed, failed[0]
    return [result for _, result in results]


def _result(reader: Connection, end: float) -> tuple[bool, Any]:
    """Whether a process came to its end in time and what it gives, or why not."""
    try:
        return reader.recv() if reader.poll(max(0.0, end - time.monotonic())) else (False, "a replica hangs")
    except EOFError:
        return False, "a replica died"


def _replica(environment: dict, job, arguments, writer: Connection) -> None:
    import torch

    from darknetpy.parallel import join

    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        arguments, options = arguments[:-1], dict(arguments[-1])
        ours = {name: options.pop(name) for name in ("ddp", "shares", "sync_bn", "sync_statistics") if name in options}
        replicas = join("cpu", **ours)
        writer.send((True, job(replicas, *arguments, **options)))
    except Exception:
        writer.send((False, traceback.format_exc()))


def free_port() -> str:
    """One that stays free: below those that the system hands out by itself, to whoever connects meanwhile."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return str(port)


def machines(commands: list[list[str]], environments: list[dict[str, str]], seconds: float = 180) -> list[str]:
    """What commands print that meet each other, as on several machines; all must end well."""
    outputs, end = [Path(f"machine{n}.txt") for n in range(len(commands))], time.monotonic() + seconds
    processes = []
    for command, environment, output in zip(commands, environments, outputs, strict=True):
        with output.open("w") as stream:
            env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
            processes.append(subprocess.Popen(command, env=env, stdout=stream, stderr=subprocess.STDOUT))
    while any(process.poll() is None for process in processes):
        if time.monotonic() > end or any(process.poll() for process in processes):
            time.sleep(1.0)  # others may have something to say as well
            for process in processes:
                process.kill()
                process.wait()
        time.sleep(0.1)
    texts = [output.read_text() for output in outputs]
    if any(process.returncode for process in processes):
        pytest.fail("\n".join([f"{[process.returncode for process in processes]}", *texts]))
    return texts
