"""What the checks have in common: outcomes, comparisons, where models and pictures lie."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

OK, FAIL, UNSUPPORTED, NOT_CHECKED = "ok", "FAIL", "unsupported", "not checked"


@dataclass
class Outcome:
    """One case: its worst error against the tolerance that applies, and a word on where."""

    case: str
    status: str
    error: float | None = None
    tolerance: float | None = None
    note: str = ""


@dataclass
class Worst:
    """The largest error over its tolerance seen so far."""

    error: float = 0.0
    tolerance: float = 0.0
    note: str = ""
    failures: list[str] = field(default_factory=list)

    def see(self, what: str, error: float, tolerance: float) -> None:
        """Take an error into account; NaN fails."""
        error = float(error)
        if not error <= tolerance:
            self.failures.append(f"{what}: {error:.2g} > {tolerance:.2g}")
        if not error / max(tolerance, 1e-30) <= self.error / max(self.tolerance, 1e-30) or not self.tolerance:
            self.error, self.tolerance, self.note = error, tolerance, what

    def fail(self, what: str) -> None:
        self.failures.append(what)

    def outcome(self, case: str) -> Outcome:
        if self.failures:
            return Outcome(case, FAIL, self.error, self.tolerance, "; ".join(self.failures[:3]))
        return Outcome(case, OK, self.error, self.tolerance, self.note)


@dataclass
class Places:
    """Where to look for models and pictures besides the case's own surroundings."""

    models: Path | None = None
    images: Path | None = None

    def _folders(self, case: Path, name: str, given: Path | None) -> Iterator[Path]:
        if given is not None:
            yield given
        for parent in [case, *case.resolve().parents]:
            yield parent / name
            yield parent / "shared" / name

    def model(self, case: Path, name: str) -> Path | None:
        """The cfg `name.cfg` in any model folder."""
        for folder in self._folders(case, "models", self.models):
            if folder.is_dir():
                for found in sorted(folder.glob(f"*/{name}.cfg")):
                    return found
        return None

    def models_folder(self, case: Path) -> Path | None:
        return next(
            (f for f in self._folders(case, "models", self.models) if f.is_dir() and any(f.glob("*/*.cfg"))), None
        )

    def image(self, case: Path, name: str) -> Path | None:
        for folder in self._folders(case, "images", self.images):
            if (folder / name).is_file():
                return folder / name
        return None


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """Largest |a-b| / (1+|b|)."""
    if a.size != b.size:
        return float("inf")
    return float((np.abs(a.reshape(b.shape) - b) / (1 + np.abs(b))).max()) if b.size else 0.0


def of_largest(a: np.ndarray, b: np.ndarray) -> float:
    """Largest |a-b| over the largest |b|."""
    if a.size != b.size:
        return float("inf")
    top = float(np.abs(b).max()) if b.size else 0.0
    return float(np.abs(a.reshape(b.shape) - b).max()) / max(top, 1e-12) if b.size else 0.0


def load_json(path: Path):
    return json.loads(path.read_text())


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Run with a folder as working directory."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
