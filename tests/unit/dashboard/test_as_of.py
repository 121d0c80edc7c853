"""Which version a page shows, and the message about one that is not kept."""

from __future__ import annotations

import pytest

from highwater.api.dashboard.as_of import Choice, choose, described, stored_versions
from highwater.schemas.envelope import iso_from_ms

BEGIN = 1_700_000_000_000
KEPT = stored_versions([
    {"cluster_version": version, "updated_at": BEGIN + version * 60_000, "caused_by": f"t/0/{version}"}
    for version in (6, 5, 4)
])  # fmt: skip


def at(version: float) -> str:
    """The time at which a version was made, as an address has it."""
    return iso_from_ms(int(BEGIN + version * 60_000))


@pytest.mark.parametrize(
    ("version", "time", "expected"),
    [
        ("", "", None),
        ("6", "", None),
        ("5", "", 5),
        ("", at(5), 5),
        ("", at(5.9), 5),
        ("", at(60), None),
        ("4", at(5), 4),
    ],
)
def test_a_version_is_named_by_its_number_or_by_a_time(version: str, time: str, expected: int | None) -> None:
    """The newest one is shown as now, so that it is replaced by the next."""
    assert choose(KEPT, version, time) == Choice(expected)


@pytest.mark.parametrize(
    ("version", "time", "words"),
    [
        ("3", "", "no longer kept: versions 4 to 6 are"),
        ("7", "", "There is no version 7"),
        ("0", "", "There is no version 0"),
        ("x", "", "There is no version x"),
        ("9" * 40, "", "There is no version"),
        ("", at(3.9), "No version from that time is kept: versions 4 to 6 are"),
        ("", "yesterday", "yesterday is not an ISO 8601 time"),
    ],
)
def test_a_version_that_is_not_kept_is_said_so(version: str, time: str, words: str) -> None:
    """The newest version is shown, and the page says that it is not the requested one."""
    found = choose(KEPT, version, time)
    assert found.version is None
    assert words in found.problem


def test_a_user_without_a_version_says_what_makes_one() -> None:
    """Asked for one, or for none."""
    assert "first rebuild" in described([], None)
    assert choose([], "1", "").problem == "There is no version 1; the newest is shown."
    assert described(KEPT, 5).startswith(
        "Version 5 (as of then; version 6 is the newest), made 2023-11-14 22:18:20 UTC"
    )
