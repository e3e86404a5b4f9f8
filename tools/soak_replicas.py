"""Kill a random one of three replicas at random instants; all must end within seconds, and go on as if nothing was.

python tools/soak_replicas.py --kills 100 [--iterations N] [--seed N] [--keep FOLDER]

Exit status 0 only if after every kill all processes were gone within 30 seconds, the exit status was 1 with a sentence
that names the replica, no half file was left, and the final weights are those of an undisturbed run, byte for byte.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import soak_resume

REPLICAS, LIMIT = 3, 30.0
WORDS = ("-gpus", ",".join(map(str, range(REPLICAS))))


def below(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have, in order of their numbers."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listing.splitlines()]
    found = sorted(child for child, parent in pairs if parent == pid)
    return found + [deeper for child in found for deeper in below(child)]


def alive(pid: int) -> bool:
    """Whether a process is there and no mere entry in the table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_one(process: subprocess.Popen, delay: float) -> bool:
    """Kill a random replica `delay` seconds after the first iteration, if the run is not over; check how all end."""
    if not soak_resume.runs_for(process, delay):
        return False
    everyone, rank = below(process.pid), random.randrange(REPLICAS)
    replicas = everyone[:REPLICAS]
    if len(replicas) < REPLICAS or not all(map(alive, replicas)):
        process.communicate(timeout=LIMIT)
        return False
    began = time.monotonic()
    try:
        os.kill(replicas[rank], signal.SIGKILL)
    except ProcessLookupError:
        process.communicate(timeout=LIMIT)
        return False
    output, _ = process.communicate(timeout=LIMIT)
    while any(map(alive, everyone)) and time.monotonic() - began < LIMIT:
        time.sleep(0.1)
    left = [pid for pid in everyone if alive(pid)]
    if left:
        raise SystemExit(f"processes {left} are still there {LIMIT:.0f} s after replica {rank} was killed")
    if process.returncode == 0:
        return False  # it had done its work
    if process.returncode != 1 or f"replica {rank} was ended by SIGKILL" not in output:
        raise SystemExit(f"status {process.returncode} after replica {rank} was killed:\n{output[-2000:]}")
    return True


if __name__ == "__main__":
    soak_resume.main(__doc__, WORDS, kill_one)
