"""Starting the processes of the replicas on this machine, and ending all of them when one ends badly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from darknetpy.lazy import torch
from darknetpy.runtime import slurm_tasks

POLL = 0.1
GRACE = 20.0
"""Seconds that the others have to end as well when one replica has ended because it was asked to."""
ENDING = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
"""Signals that ask a run to save and end, and its exit status then."""
STICKY = 75
"""Exit status of a replica whose device must be started anew (EX_TEMPFAIL)."""
_WHY = {"SIGKILL": ", often because memory was short", "SIGBUS": ", often because /dev/shm was full"}
RANK, SIZE, PARENT, DEVICES = "RANK", "WORLD_SIZE", "DARKNETPY_PARENT", "DARKNETPY_DEVICES"
SLURM = {"SLURM_PROCID": RANK, "SLURM_NTASKS": SIZE, "SLURM_LOCALID": "LOCAL_RANK"}


def heeded() -> list[int]:
    """Numbers of the signals in ENDING that this process listens to: not to a closed terminal where `nohup` said so."""
    numbers = {name: getattr(signal, name) for name in ENDING if hasattr(signal, name)}
    if "SIGHUP" in numbers and signal.getsignal(numbers["SIGHUP"]) == signal.SIG_IGN:
        del numbers["SIGHUP"]
    return list(numbers.values())


def is_replica() -> bool:
    """Whether this process is a replica, started by `launch`, torchrun or SLURM."""
    if RANK not in os.environ and all(name in os.environ for name in SLURM) and "MASTER_ADDR" in os.environ:
        os.environ.update({ours: os.environ[theirs] for theirs, ours in SLURM.items()})
        each = slurm_tasks()
        if each and "SLURM_GPUS_PER_TASK" not in os.environ:  # with it, each sees one GPU, of its own
            os.environ.setdefault("LOCAL_WORLD_SIZE", str(each))
    return started_here() or (RANK in os.environ and int(os.environ.get(SIZE, "1")) > 1)


def started_here() -> bool:
    """Whether this replica, if it is one, was started by `launch`."""
    return PARENT in os.environ


def own_device(devices: Sequence[str]) -> str:
    """The device of this replica among those of this machine's replicas, which the launcher has chosen if there is
    one."""
    chosen = os.environ.get(DEVICES)
    devices = chosen.split(",") if chosen else devices
    return devices[int(os.environ.get("LOCAL_RANK", "0")) % len(devices)]


def devices_differ(devices: Sequence[str]) -> bool:
    """Whether each replica of this machine has a device of its own."""
    chosen = os.environ.get(DEVICES)
    devices = chosen.split(",") if chosen else devices
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return len(set(devices)) >= local


def launch(arguments: Sequence[str], devices: Sequence[str], extra: Mapping[str, str] | None = None) -> int:
    """Run `python -m darknetpy ARGUMENTS` in a process for each device, that find each other; the exit status.

    The first one that ends badly decides: the others are ended within seconds, and its status is returned.
    """
    store, count = meeting_point(), len(devices)
    extra = {DEVICES: ",".join(devices), **(extra or {})}
    command = [sys.executable, "-m", "darknetpy", *arguments]
    processes = [
        subprocess.Popen(command, env={**os.environ, **environment(rank, count, store.port), **extra})
        for rank in range(count)
    ]
    before = {number: signal.signal(number, _forward(processes)) for number in heeded()}
    try:
        return _wait(processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


def meeting_point():
    """A store on a free port of this machine, where replicas find each other while the caller keeps it."""
    return torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def environment(rank: int, count: int, port: int) -> dict[str, str]:
    """What a replica finds the others by, as torchrun sets it; `port` is that of a store made by the launcher."""
    from darknetpy.runtime import cpu_count

    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, cpu_count() // count))
    return {
        RANK: str(rank),
        SIZE: str(count),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": threads,
        PARENT: str(os.getpid()),
    }


def log_nccl(folder: str) -> None:
    """Let NCCL tell in files of `folder`, one for each replica, what it does; before it is used for the first time."""
    os.makedirs(folder, exist_ok=True)
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ["NCCL_DEBUG_FILE"] = os.path.join(folder, f"rank{os.environ.get(RANK, '0')}.%h.%p.log")


def _forward(processes: Sequence[subprocess.Popen]):
    """Hand a signal on to the replicas, which save and end; a terminal has sent it to them already: it is the same."""

    def handler(number: int, _frame) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    return handler


def _wait(processes: Sequence[subprocess.Popen]) -> int:
    """Exit status of the first replica that ended badly, 0 if none did."""
    while True:
        states = [process.poll() for process in processes]
        bad = [rank for rank, state in enumerate(states) if state]
        if bad:
            return _end(processes, next((rank for rank in bad if states[rank] == STICKY), bad[0]))
        if all(state == 0 for state in states):
            return 0
        time.sleep(POLL)


def _end(processes: Sequence[subprocess.Popen], first: int) -> int:
    """End all because one has; the status that stands for the run."""
    status = processes[first].returncode
    if status < 0:
        name = signal.Signals(-status).name
        why = _WHY.get(name, "")
        print(f"replica {first} was ended by {name}{why}: all replicas end", file=sys.stderr, flush=True)
    end = time.monotonic() + (GRACE if status in ENDING.values() else 0)
    while time.monotonic() < end and any(process.poll() is None for process in processes):
        time.sleep(POLL)
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    return status if status > 0 else 1


def leave_with_launcher() -> None:
    """A launcher that was killed cannot end its replicas: each watches for that itself."""
    parent = os.environ.get(PARENT)
    if parent is not None and hasattr(os, "getppid"):
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
