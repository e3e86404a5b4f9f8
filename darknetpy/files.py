"""Files that are either the old one or the whole new one, never half of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


@contextmanager
def atomic_write(path: str | os.PathLike, mode: str = "wb") -> Iterator[IO]:
    """Open a temporary file in the same folder; on success flush it and rename it to `path`, on failure remove it."""
    name = os.fspath(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(name)}.", dir=os.path.dirname(name) or ".")
    try:
        with os.fdopen(handle, mode) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, name)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
