"""The table of lives in docs/architecture/leagues.md is the catalogue of documents."""

from __future__ import annotations

from highwater.streams.league.resources import KINDS
from highwater.streams.pages.kinds import CacheOptions, resolve_cache_options
from tests import ROOT

PAGE = ROOT / "docs" / "architecture" / "leagues.md"
HEADING = "## How long a league page is good"
COLUMNS = ("document", "key", "in window", "outside", "stale in", "stale outside")
# Whole units only, the largest that fits.
UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def life(seconds: int) -> str:
    """Seconds as a person writes them: `7 d`, `1 h`, `15 min`, `90 s`."""
    size, unit = next((size, unit) for size, unit in UNITS if seconds % size == 0 and seconds >= size)
    return f"{seconds // size} {unit}"


def rows() -> list[tuple[str, ...]]:
    """The catalogue, one row a kind."""
    found = []
    for kind in KINDS.values():
        inside, outside = (resolve_cache_options(kind, is_window_active=is_active) for is_active in (True, False))
        found.append((kind.name, f"`{kind.template}`", *cells(inside, outside)))
    return found


def cells(inside: CacheOptions, outside: CacheOptions) -> tuple[str, ...]:
    """Lives in the order of the columns."""
    return (
        life(inside.ttl_seconds),
        life(outside.ttl_seconds),
        life(inside.stale_while_revalidate_seconds),
        life(outside.stale_while_revalidate_seconds),
    )


def table() -> str:
    """The table as it must stand in docs/architecture/leagues.md."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def written() -> list[tuple[str, ...]]:
    """The rows of the table below the heading, without the two of its head."""
    text = PAGE.read_text(encoding="utf-8")
    assert HEADING in text, f"{PAGE.name} lacks `{HEADING}` with this table:\n{table()}"
    section = text.split(HEADING, 1)[1].split("\n## ", 1)[0]
    lines = [line.strip() for line in section.splitlines() if line.lstrip().startswith("|")]
    found = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    assert found, f"no table below `{HEADING}`; it must be:\n{table()}"
    assert found[0] == COLUMNS, f"the table must be:\n{table()}"
    return found[2:]


def test_the_documented_lives_are_those_in_force():
    """Each kind of document stands in the table once, in the order of the catalogue, with its key and lives."""
    assert written() == rows(), f"the table must be:\n{table()}"


def test_lives_are_written_as_people_do():
    """The largest unit that divides evenly."""
    assert [life(seconds) for seconds in (4, 90, 900, 3_600, 86_400, 604_800)] == [
        "4 s",
        "90 s",
        "15 min",
        "1 h",
        "1 d",
        "7 d",
    ]
