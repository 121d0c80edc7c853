"""Rooms: a change to one subsystem stays in its folders; imports between files of subsystems are counted."""

from __future__ import annotations

import ast
from pathlib import Path

from tests import ROOT

LAYERS = ("streams", "connectors", "api")
HOUSEHOLDS = ("feeds", "league", "queries", "jobs", "chunks")


def subsystem(module: tuple[str, ...]) -> str | None:
    """The subsystem that a module belongs to; None for a shared module."""
    return module[1] if len(module) > 2 and module[1] in HOUSEHOLDS else None


def modules() -> dict[tuple[str, ...], Path]:
    """The modules of the three layers by their parts."""
    return {
        path.relative_to(ROOT).with_suffix("").parts: path
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
        if path.name != "__init__.py"
    }


def imports() -> set[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Which module of a subsystem imports which other one of any subsystem."""
    known = modules()
    found = set()
    for module, path in known.items():
        if subsystem(module) is None:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("highwater."):
                base = tuple(node.module.split(".")[1:])
                for target in {base, *((*base, name.name) for name in node.names)}:
                    if target in known and subsystem(target) is not None:
                        found.add((module, target))
    return found


def test_imports_between_files_of_subsystems_stay_in_their_folder() -> None:
    """At least 85 % of the imports within a layer stay in the folder; from one layer to the next they stay in the subsystem."""
    found = imports()
    within = [(one, other) for one, other in found if one[0] == other[0]]
    stay = [pair for pair in within if pair[0][:2] == pair[1][:2]]
    assert len(within) > 200
    assert len(stay) / len(within) >= 0.85, sorted(set(within) - set(stay))
    across = [(one, other) for one, other in found if one[0] != other[0]]
    assert sum(one[1] == other[1] for one, other in across) / len(across) >= 0.85


def test_no_slice_of_connectors_or_streams_imports_another() -> None:
    """Code that two subsystems need is in a separate folder."""
    crossing = {
        (".".join(one), ".".join(other))
        for one, other in imports()
        if one[0] == other[0] and one[0] != "api" and one[1] != other[1]
    }
    assert crossing == set()


def test_every_room_has_a_readme() -> None:
    """A newcomer finds its input, its output, the prohibitions and where to add things."""
    rooms = {
        path.parents[len(path.parents) - 3] for path in (Path(*parts) for parts in modules()) if len(path.parts) > 2
    }
    missing = sorted(str(room) for room in rooms if not (ROOT / room / "README.md").is_file())
    assert missing == []
