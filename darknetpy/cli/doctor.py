"""`doctor`"""

from __future__ import annotations

import sys

from darknetpy.cli.parse import Line
from darknetpy.errors import UsageError
from darknetpy.files import atomic_write
from darknetpy.toolbox.doctor import Report, diagnose


def doctor(line: Line, words: list[str]) -> int:
    """Show what this machine has and what is wrong with it; exit status 1 if anything is."""
    if words:
        raise UsageError(
            "usage: darknetpy doctor", value=words[0], remedy="-json writes a file, -nogpu leaves GPUs alone"
        )
    path, json = line.get("json"), line.get("json") is not None
    for part in diagnose(gpus=not line.get("nogpu")):
        if isinstance(part, Report):
            print(part.json() if path == "" else _verdict(part))
            if path:
                with atomic_write(path) as stream:
                    stream.write(part.json().encode())
            return 0 if part.healthy else 1
        if not json or path:
            print(part, flush=True)
            _working()
    return 1


def _working() -> None:
    """A word for who waits at a terminal; the next part overwrites it."""
    if sys.stderr.isatty():
        print("... looking\r", end="", file=sys.stderr, flush=True)


def _verdict(report: Report) -> str:
    problems = [finding for finding in report.findings if finding.level == "problem"]
    notes = [finding for finding in report.findings if finding.level == "note"]
    lines = ["", f"{len(problems)} problem{'s' * (len(problems) != 1)}" if problems else "No problems found."]
    for finding in problems + notes:
        mark = "!" if finding.level == "problem" else "-"
        lines += [f"  {mark} {finding.subject}: {finding.sentence}", f"      {finding.remedy}"]
    return "\n".join(lines)
