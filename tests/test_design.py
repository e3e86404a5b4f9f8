"""The house keeps its order: a lower room never imports a higher one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import TESTS

PACKAGE = TESTS.parent / "darknetpy"
ROWS = [
    {"errors", "lazy"},
    {"assets", "files", "boxes"},
    {"detections"},
    {"config", "images", "runtime"},
    {"layers", "weights"},
    {"ptfile"},
    {"passes"},
    {"network"},
    {"losses", "parallel"},
    {"data", "inference", "export"},
    {"evaluation"},
    {"training"},
    {"reporting"},
    {"toolbox", "compat"},
    {"cli"},
    {"__main__"},
]
"""Rooms from the ground up; rooms of one row do not import each other, but for what `NEIGHBOURS` names."""
NEIGHBOURS = {("images", "config")}
LEVEL = {room: level for level, row in enumerate(ROWS) for room in row}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" or p.parent != PACKAGE)


def _room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    """Rooms that a file imports when it runs; imports for type checkers only don't count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checked = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    rooms = set()
    for node in ast.walk(tree):
        if id(node) in checked:
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "darknetpy":
            rooms |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("darknetpy."):
            rooms.add(node.module.split(".")[1])
    return rooms & set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_lower_room_never_imports_a_higher_one(path: Path) -> None:
    room = _room(path)
    for other in _imports(path) - {room}:
        assert LEVEL[other] < LEVEL[room] or (room, other) in NEIGHBOURS, f"{room} imports {other}"


def test_detecting_and_exporting_know_nothing_of_losses() -> None:
    for room in ("inference", "export"):
        for path in (PACKAGE / room).glob("*.py"):
            assert "losses" not in _imports(path), path


def test_only_the_runtime_speaks_to_backends() -> None:
    words = ("torch.backends", "torch.compile(", "autocast")
    found = [p.name for p in PACKAGE.rglob("*.py") if any(word in p.read_text(encoding="utf-8") for word in words)]
    assert found == ["runtime.py"]


def test_files_are_one_idea_long() -> None:
    assert {p.name: n for p in FILES if (n := len(p.read_text(encoding="utf-8").splitlines())) > 400} == {}
