"""`darknetpy COMMAND ...`: find the command, run it, turn errors into one sentence and exit status 1."""

from __future__ import annotations

import logging
import os
import sys
import traceback

from darknetpy import __version__
from darknetpy.cli.commands import COMMANDS, Command, find, usage
from darknetpy.cli.parse import Line, parse
from darknetpy.errors import DarknetpyError, UsageError

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _warnings_to_stderr()
    trace = bool(os.environ.get("DARKNETPY_DEBUG"))
    try:
        line = parse(arguments)
        trace = trace or bool(line.get("trace"))
        return _run(line)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # the reader of our output is gone; say nothing more
        return 1
    except DarknetpyError as error:
        if trace:
            traceback.print_exc()
        sys.stdout.flush()
        print(f"darknetpy: {error}" if not str(error).startswith("Couldn't open") else error, file=sys.stderr)
        return 1


def _run(line: Line) -> int:
    if not line.words or line.words[0] in ("help", "version") or line.get("help"):
        return _help(line)
    command = find(line.words)
    if command is None:
        raise UsageError(f"Not an option: {' '.join(line.words[:2])[:80]}", remedy=_suggest(line.words))
    _banner()
    return command.load()(line, line.words[len(command.name.split()) :]) or 0


def _help(line: Line) -> int:
    if line.words[:1] == ["version"]:
        print(f"darknetpy {__version__}")
        return 0
    command = find(line.words[1:] if line.words[:1] == ["help"] else line.words)
    if not line.words and not line.get("help"):
        print("usage: darknetpy <function>", file=sys.stderr)
        return 0
    print(usage(command))
    return 0


def _suggest(words: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(" ".join(words[:2])[:40], [c.name for c in COMMANDS], n=1, cutoff=0.4)
    return f"did you mean `{close[0]}`?" if close else "`darknetpy help` lists the commands"


def _banner() -> None:
    print(f"darknetpy {__version__}", file=sys.stderr)


class _StderrHandler(logging.StreamHandler):
    """Writes to whatever `sys.stderr` is at the moment, so that captured and redirected runs both see warnings."""

    def __init__(self):
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return sys.stderr


def _warnings_to_stderr() -> None:
    logger = logging.getLogger("darknetpy")
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


__all__ = ["Command", "main"]
