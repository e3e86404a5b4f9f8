"""`results.csv`: one row an iteration, mAP where it was measured. A resumed run goes on in the same file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence

from darknetpy.files import atomic_write
from darknetpy.reporting.registry import sink
from darknetpy.training.events import Evaluated, Event, Finished, Recovered, Started, TurnDone

COLUMNS = (
    "iteration", "loss", "avg_loss", "rate", "images", "seconds", "load_seconds", "sync_seconds", "memory",
    "width", "height", "class_loss", "iou_loss", "total_loss", "map", "best_map", "precision", "recall", "f1", "note",
)  # fmt: skip
HEADER = ",".join(COLUMNS).encode() + b"\r\n"
NAME = "results.csv"
_DIGITS = ".6g"


@sink("csv")
class CsvLog:
    """Rows are written whole and flushed, so that a killed run leaves a readable file. What a full disk refuses is
    written with the next row, were it the whole file."""

    def __init__(self, folder: str = "."):
        self.path = os.path.join(folder, NAME)
        self.note = ""
        self.rows: list[dict[str, str]] = []
        """The last row, behind those that the disk refused; all of them where the file begins anew."""
        self.offset, self.written, self.anew = 0, True, True

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._begin([row for row in read(self.path) if int(row["iteration"]) <= event.iteration])
            self._write()
        elif isinstance(event, Evaluated):
            self._measured(event)
        elif isinstance(event, Recovered):
            self._recovered(event)
        elif isinstance(event, TurnDone):
            self._append(event)
        elif isinstance(event, Finished):
            self._finish()

    @property
    def row(self) -> dict[str, str]:
        return self.rows[-1] if self.rows else {}

    def resume(self, rows: Iterable[Mapping[str, float]]) -> None:
        """The run goes on after these iterations: what the file lacks of them is added, what is later goes away."""
        known = {int(row["iteration"]): row for row in self._known()}
        past = {int(row["iteration"]): {name: _text(value) for name, value in row.items()} for row in rows}
        if not past:
            return
        kept = {i: row for i, row in known.items() if i < min(past) or (i in past and row["loss"] == past[i]["loss"])}
        merged = past | kept
        self._begin([merged[i] for i in sorted(merged)])
        self._write()

    def _known(self) -> list[dict[str, str]]:
        """All rows, written or not."""
        written = {} if self.anew else {row["iteration"]: row for row in read(self.path)}
        return list((written | {row["iteration"]: row for row in self.rows}).values())

    def _begin(self, rows: Sequence[Mapping[str, str]]) -> None:
        """The file is to have these rows and no others."""
        self.rows, self.anew = [{"note": "", **row} for row in rows], True

    def _append(self, e: TurnDone) -> None:
        numbers = {
            "iteration": e.iteration, "loss": e.loss, "avg_loss": e.avg_loss, "rate": e.rate,
            "images": e.trained or e.images, "seconds": e.seconds, "load_seconds": e.load_seconds,
            "sync_seconds": e.sync_seconds, "memory": e.memory,
            "width": e.size[0], "height": e.size[1], **e.losses, "best_map": e.best_map,
        }  # fmt: skip
        self.rows.append({name: _text(value) for name, value in numbers.items()} | {"note": self.note})
        self.note = ""
        self._write()

    def _measured(self, e: Evaluated) -> None:
        result = e.result
        numbers = {"map": result.map, "best_map": e.best_map}
        numbers |= {name: getattr(result, name, None) for name in ("precision", "recall", "f1")}
        self.row.update({name: _text(value) for name, value in numbers.items()})
        if self._is_last(e.iteration):
            self._write()

    def _recovered(self, e: Recovered) -> None:
        """A note in the row of its iteration, or in the next one; rows of iterations that are undone go away."""
        undone = bool(self.row) and int(self.row["iteration"]) > e.iteration
        if undone:
            self._begin([row for row in self._known() if int(row["iteration"]) <= e.iteration])
        last = self._is_last(e.iteration)
        if last:
            self.row["note"] = _joined(self.row["note"], e.message)
        else:
            self.note = _joined(self.note, e.message)
        if undone or last:
            self._write()

    def _finish(self) -> None:
        """No row comes that could take the note of a last turn that was skipped."""
        if self.note and self.row:
            self.row["note"], self.note, self.written = _joined(self.row["note"], self.note), "", False
        if not self.written:
            self._write()

    def _is_last(self, iteration: int) -> bool:
        return self.row.get("iteration") == str(iteration)

    def _write(self) -> None:
        """The last row, over what there was of it, and those that it waited with; or all of a file that begins anew."""
        lines, self.written = [_line(row) for row in self.rows], False
        if self.anew or not os.path.exists(self.path):
            with atomic_write(self.path) as stream:
                stream.write(HEADER + b"".join(lines))
            self.offset, self.anew = len(HEADER), False
        else:
            self._overwrite(b"".join(lines))
        self.offset += sum(map(len, lines[:-1]))
        self.rows, self.written = self.rows[-1:], True

    def _overwrite(self, text: bytes) -> None:
        try:
            with open(self.path, "r+b") as stream:
                stream.seek(self.offset)
                stream.write(text)
                stream.truncate()
        except OSError:
            os.truncate(self.path, self.offset)  # rather no row than half of one
            raise


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _line(row: Mapping[str, str]) -> bytes:
    text = io.StringIO(newline="")
    csv.DictWriter(text, COLUMNS, extrasaction="ignore").writerow(row)
    return text.getvalue().encode()


def read(path: str) -> list[dict[str, str]]:
    """Whole rows of a `results.csv`, by column; [] where there is none. Rows that are no numbers are left out."""
    if not os.path.exists(path):
        return []
    with open(path, newline="", encoding="utf-8", errors="replace") as stream:
        return [row for row in csv.DictReader(stream) if (row.get("iteration") or "").isdecimal()]


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else format(value, _DIGITS)
