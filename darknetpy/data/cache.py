"""Decoded pictures that are kept: in memory that loader processes share, or in files.

Pictures are uint8 (H, W, C) by their position in the list. A cache never fails: what doesn't fit, or cannot be read
back, is decoded again.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from darknetpy.data.notes import say
from darknetpy.errors import UsageError
from darknetpy.files import cache_folder, writable_folder
from darknetpy.runtime import replicas_here

try:
    import fcntl
except ImportError:  # Windows, where processes share nothing here
    fcntl = None

SMALL = 2000
"""A list of at most so many pictures is kept in memory unasked."""
SHARE = 3
"""The caches of a run take at most one part in so many of the memory that is free."""
PROCESSES = 8
"""Where processes cannot share memory, each has its own part of so many."""
ALIGN, SIDE_BITS = 64, 15
LEAST_FREE = 4 << 30
"""Bytes that a cache on disk leaves free."""


class Cache(Protocol):
    """Where pictures are kept."""

    def get(self, index: int) -> np.ndarray | None: ...

    def put(self, index: int, image: np.ndarray) -> None: ...


class PrivateCache:
    """So many bytes of pictures, for this process alone."""

    def __init__(self, room: int):
        self.room = room
        self._images: dict[int, np.ndarray] = {}

    def get(self, index: int) -> np.ndarray | None:
        return self._images.get(index)

    def put(self, index: int, image: np.ndarray) -> None:
        if image.nbytes <= self.room and index not in self._images:
            self.room -= image.nbytes
            self._images[index] = image


class SharedCache:
    """So many bytes of pictures in anonymous memory, which forked processes fill and read together.

    A picture's entry is one number of 64 bits (place, height, width), written when its pixels are there, so readers
    need no lock. The writers' lock belongs to the process and goes with it if it is killed.
    """

    def __init__(self, count: int, room: int):
        self.room = room
        self._pixels = mmap.mmap(-1, max(ALIGN, room))
        self._entries = np.frombuffer(mmap.mmap(-1, 8 * (count + 1)), np.uint64)
        self._lock = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the cache)

    def __reduce__(self):
        return PrivateCache, (self.room // PROCESSES,)

    def get(self, index: int) -> np.ndarray | None:
        entry = int(self._entries[1 + index])
        if not entry:
            return None
        mask = (1 << SIDE_BITS) - 1
        place, h, w = (entry >> 2 * SIDE_BITS) - 1, entry >> SIDE_BITS & mask, entry & mask
        channels = int(np.frombuffer(self._pixels, np.uint8, 1, place * ALIGN)[0])
        return np.frombuffer(self._pixels, np.uint8, h * w * channels, place * ALIGN + ALIGN).reshape(h, w, channels)

    def put(self, index: int, image: np.ndarray) -> None:
        h, w, channels = image.shape
        if max(h, w) >> SIDE_BITS:
            return
        with self._locked():
            place, size = int(self._entries[0]), 1 + -(-image.nbytes // ALIGN)
            if self._entries[1 + index] or (place + size) * ALIGN > self.room:
                return
            self._entries[0] = place + size
            target = np.frombuffer(self._pixels, np.uint8, size * ALIGN, place * ALIGN)
            target[0] = channels
            target[ALIGN : ALIGN + image.nbytes] = image.reshape(-1)
            self._entries[1 + index] = (place + 1) << 2 * SIDE_BITS | h << SIDE_BITS | w

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if fcntl is None:
            yield
            return
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)


class DiskCache:
    """Pictures as `.npy` files in a folder, named by path, size and time of their source.

    Several runs may share a folder. Nothing is removed; a disk that fills up ends the writing.
    """

    def __init__(self, folder: str | os.PathLike, paths: Sequence[str], channels: int):
        self.folder, self.paths, self.channels = os.fspath(folder), paths, channels
        self.full = False

    def get(self, index: int) -> np.ndarray | None:
        name = self._name(index)
        try:
            image = np.load(name, mmap_mode="r", allow_pickle=False) if name else None
        except (OSError, ValueError, EOFError):
            return None
        good = image is not None and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == self.channels
        return np.asarray(image) if good and image.size else None

    def put(self, index: int, image: np.ndarray) -> None:
        name = None if self.full else self._name(index)
        if name is None:
            return
        try:
            os.makedirs(os.path.dirname(name), exist_ok=True)
            if shutil.disk_usage(self.folder).free < LEAST_FREE + image.nbytes:
                self._end(f"has less than {LEAST_FREE >> 30} GiB left")
                return
            handle, temporary = tempfile.mkstemp(dir=os.path.dirname(name))
            try:
                with os.fdopen(handle, "wb") as stream:
                    np.save(stream, image, allow_pickle=False)
                os.replace(temporary, name)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            self._end(f"cannot be written: {error.strerror}")

    def _end(self, why: str) -> None:
        self.full = True
        say(f"{self.folder} {why}: no more pictures are kept there", once="disk cache")

    def _name(self, index: int) -> str | None:
        path = os.path.abspath(self.paths[index])
        try:
            state = os.stat(path)
        except OSError:
            return None
        key = f"{path}\0{state.st_size}\0{state.st_mtime_ns}\0{self.channels}"
        digest = hashlib.sha256(os.fsencode(key)).hexdigest()[:40]
        return os.path.join(self.folder, digest[:2], f"{digest[2:]}.npy")


def make_cache(kind: str | bool | None, paths: Sequence[str], channels: int, folder: str | None = None) -> Cache | None:
    """The cache that a user asks for: `ram`, `disk` (in `folder`), nothing; None: in memory if there is little to keep.

    Raises UsageError for another word, DataError for a folder that cannot be written.
    """
    if kind is None:
        kind = "disk" if folder is not None else "ram" if len(paths) <= SMALL else ""
    if kind == "disk":
        remedy = "choose another one with -cache_dir"
        return DiskCache(writable_folder(folder or os.path.join(cache_folder(), "pictures"), remedy), paths, channels)
    if kind in (True, "ram"):
        return memory_cache(len(paths))
    if kind in (False, "", "none", "off"):
        return None
    raise UsageError("-cache is ram or disk", value=kind)


def memory_cache(count: int) -> Cache:
    """A cache of the memory that can be spared, shared where that is possible."""
    room = room_for_cache()
    try:
        return SharedCache(count, room)
    except (OSError, ValueError, OverflowError):
        return PrivateCache(room // PROCESSES)


def room_for_cache() -> int:
    """Bytes that this replica may spend on decoded pictures, by what the system and its container have left."""
    free = [_number("/proc/meminfo", "MemAvailable:") * 1024]
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if not limit:
        folder = "/sys/fs/cgroup/memory"
        limit, used = _number(f"{folder}/memory.limit_in_bytes"), _number(f"{folder}/memory.usage_in_bytes")
    if limit:
        free.append(limit - used)
    if not free[0] and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        free[0] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return max(0, min(free) // (SHARE * replicas_here()))


def _number(path: str, key: str = "") -> int:
    """The number behind a word of a system file, 0 if there is none."""
    try:
        with open(path, encoding="ascii") as stream:
            words = stream.read().split()
    except (OSError, ValueError):
        return 0
    at = words.index(key) + 1 if key in words else 0
    return int(words[at]) if words and words[at].isdigit() else 0
