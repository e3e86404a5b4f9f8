"""Processes of `doctor`: begun at once, read as they end, ended when they hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from darknetpy.toolbox.probes import MARK

START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from darknetpy.toolbox import probes; "
    "probes.main(sys.argv[2:])"
)


class Child:
    """A probe in a process of its own, that finds modules where this process finds them."""

    def __init__(self, *words: str, environment: Mapping[str, str] | None = None):
        self.words = words
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, json.dumps(sys.path), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            env={**os.environ, **(environment or {})},
        )  # fmt: skip

    def read(self, seconds: float) -> dict[str, Any]:
        """What it found: `stages` in order and, if it did not come to its end, `error`; waits so long since its begin.

        `error` is what it raised, or how it died, with the stage that it had reached.
        """
        late = False
        try:
            out, err = self._process.communicate(timeout=max(0.1, self.began + seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
            self._process.kill()
            out, err = self._process.communicate()
        stages = [json.loads(line[len(MARK) :]) for line in out.splitlines() if line.startswith(MARK)]
        found: dict[str, Any] = {"stages": stages}
        last = stages[-1] if stages else {"stage": "start"}
        if last["stage"] == "error":
            found |= {"error": last["text"], "trace": last["trace"]}
        elif late:
            found["error"] = f"no answer within {seconds:.0f} s, after stage `{last['stage']}`"
        elif last["stage"] != "end":
            found["error"] = f"{self._death(err)}, after stage `{last['stage']}`"
        return found

    def _death(self, err: str) -> str:
        status, said = self._process.returncode, err.strip().splitlines()
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return f"{how} ({said[-1].strip()[:300]})" if said else how


def stage(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The last line of a stage, {} where it was not reached."""
    return next((line for line in reversed(found["stages"]) if line["stage"] == name), {})
