"""`darknetpy COMMAND ...`: find the command, run it, turn errors into one sentence and exit status 1."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import traceback

from darknetpy import __version__
from darknetpy.cli.commands import COMMANDS, Command, family, find, usage, without_effect
from darknetpy.cli.flags import BY_NAME, plain
from darknetpy.cli.parse import Line, parse
from darknetpy.errors import DarknetpyError, MissingFileError, UsageError, closest, warn
from darknetpy.files import missing_remedy

PATIENCE = 5.0
"""Seconds in which the main replica says what others would say, too."""
INTERRUPTED, STICKY = 130, 75
"""Exit statuses: ended by Ctrl-C; a device that has to be started anew, which a launcher does."""
FIRST_WORD = 2.0
"""Seconds that a replica which has lost another leaves to that one to say why, and to the launcher to end all."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _any_bytes()
    _warnings_to_stderr()
    trace = bool(os.environ.get("DARKNETPY_DEBUG"))
    try:
        line = parse(arguments)
        trace = trace or bool(line.get("trace"))
        status = _run(line)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _nobody_reads()
        return 1
    except DarknetpyError as error:
        if trace:
            traceback.print_exc()
        sys.stdout.flush()
        _wait_for_the_main_replica()
        print(_sentence(error), file=sys.stderr)
        return 1
    except (RuntimeError, MemoryError) as error:
        status = _device_failed(error, trace)
        return line.again() if status == STICKY and line.again else status


def _sentence(error: DarknetpyError) -> str:
    """One line for a person. That a file is missing is said in Darknet's words, with what it may be mistaken for."""
    if not isinstance(error, MissingFileError):
        return f"darknetpy: {error}"
    remedy = None if error.remedy else missing_remedy(error.path)
    return f"{error}; {remedy}" if remedy else str(error)


def _device_failed(error: BaseException, trace: bool) -> int:
    """Say what a failure of device or libraries means; what is none is a fault of the program and shows as such."""
    from darknetpy.runtime import others_on, trouble_of

    trouble = trouble_of(error)
    if trouble is None or trace:
        raise error
    is_replica = "RANK" in os.environ
    if trouble.kind == "link" and is_replica:
        time.sleep(FIRST_WORD)
        _wait_for_the_main_replica()
    first = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
    others = others_on(_device_of(first)) if trouble.kind == "memory" else ""
    print(f"darknetpy: {trouble.sentence} ({first}){others}; {trouble.remedy}", file=sys.stderr)
    status = STICKY if trouble.kind == "sticky" else 1
    if is_replica:  # a broken device would be waited for when Python ends
        sys.stderr.flush()
        os._exit(status)
    return status


def _device_of(message: str) -> str:
    """The GPU that a message of torch names."""
    found = re.search(r"GPU (\d+)", message)
    return f"cuda:{found[1] if found else 0}"


def _run(line: Line) -> int:
    if not line.words or line.words[0] in ("help", "version") or line.get("help") or line.get("version"):
        return _help(line)
    command = find(line.words)
    if command is None:
        raise _unknown(line.words)
    if not line.get("strict"):
        _no_percentages(command, line)
    _banner()
    for name in without_effect(command, line.values):
        warn(f"-{name} is accepted for Darknet's sake and has no effect on {command.name}")
    return command.load()(line, line.words[len(command.name.split()) :]) or 0


def _no_percentages(command: Command, line: Line) -> None:
    for name, value in line.values.items():
        if BY_NAME[plain(name)].share and name not in command.beyond and value > 1:
            raise UsageError(f"-{name} is a share, not a percentage", value=value, remedy=f"for example -{name} 0.25")


def _wait_for_the_main_replica() -> None:
    """What all replicas would say, only the main one says: it ends the others meanwhile."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(PATIENCE)


def _help(line: Line) -> int:
    if line.words[:1] == ["version"] or line.get("version"):
        print(f"darknetpy {__version__}")
        return 0
    command = find(line.words[1:] if line.words[:1] == ["help"] else line.words)
    if not line.words and not line.get("help"):
        print("usage: darknetpy <function>\n`darknetpy help` lists the functions", file=sys.stderr)
        return 0
    print(usage(command))
    return 0


def _unknown(words: list[str]) -> UsageError:
    """The error for words that name no command; the first words of a family say what there is."""
    several = [command.name.split()[1] for command in family(words[0])]
    if several and len(words) == 1:
        return UsageError(f"usage: darknetpy {words[0]} [{'/'.join(several)}] [data] [cfg] [weights (optional)]")
    if several:
        return UsageError(f"There isn't such command: {words[1][:80]}", remedy=_suggest(words))
    return UsageError(f"Not an option: {words[0][:80]}", remedy=_suggest(words))


def _suggest(words: list[str]) -> str:
    close = closest(" ".join(words[:2]), [command.name for command in COMMANDS], 0.4)
    return f"did you mean `{close}`?" if close else "`darknetpy help` lists the commands"


def _any_bytes() -> None:
    """Names and paths in no known encoding go through standard streams as they came."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and (stream.encoding or "").lower().replace("-", "") == "utf8":
            stream.reconfigure(errors="surrogateescape")


def _nobody_reads() -> None:
    """The reader of our output is gone: what is still buffered goes nowhere, without a word when Python ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = None


def _banner() -> None:
    if os.environ.get("RANK", "0") == "0" and "DARKNETPY_PARENT" not in os.environ:  # the launcher has said it
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
