"""The table of output formats, by suffix."""

from __future__ import annotations

import os
from collections.abc import Callable

from darknetpy.errors import UsageError
from darknetpy.network import Network

WRITERS: dict[str, Callable[[Network, str], None]] = {
    ".weights": lambda network, path: network.save_weights(path),
    ".pt": lambda network, path: network.save_weights(path),
}


def export_file(network: Network, path: str | os.PathLike) -> None:
    """Write `network` in the format that the suffix of `path` names. Raises UsageError for an unknown suffix."""
    name = os.fspath(path)
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in WRITERS:
        raise UsageError(
            f"no format has the suffix {suffix or '(none)'}", value=name, remedy=f"use {', '.join(WRITERS)}"
        )
    WRITERS[suffix](network, name)
