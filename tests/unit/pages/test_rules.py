"""The engine of pages with the rules of any subsystem."""

from __future__ import annotations

import pytest

from highwater.streams.pages.kinds import Catalogue, Kind, Resource
from highwater.streams.pages.refresh import Freshness
from highwater.streams.pages.rules import PageRules

CATALOGUE = Catalogue(
    [
        Kind("menu", "house:{id}:menu", 30, 3_600),
        Kind("guests", "house:{id}:guests", 30, 3_600),
        Kind("towns", "towns", 30, 3_600),
        Kind("old", "old:{id}", 30, 3_600),
        Kind("hours", "hours", 30, 30),
    ]
)


def _house_of(page: Resource) -> str | None:
    return page.id if page.kind.template.startswith("house:") else None


RULES = PageRules(
    catalogue=CATALOGUE,
    window=CATALOGUE.page("hours"),
    scope_of=_house_of,
    refresh_topic="houses.refresh-requested",
    prewarmed=("menu", "guests"),
    unmade=frozenset({"old"}),
)
WINDOWS = {"a": [(100, 200)], "b": [(300, 400), (500, 600)]}


def test_a_page_is_hot_with_its_scope():
    """Only windows of its own scope count; a page of no one scope is hot in each; a scope without windows is never hot."""
    assert list(RULES.windows_of(CATALOGUE.page("menu", "b"), WINDOWS)) == WINDOWS["b"]
    assert list(RULES.windows_of(CATALOGUE.page("menu", "c"), WINDOWS)) == []
    assert list(RULES.windows_of(CATALOGUE.page("towns"), WINDOWS)) == [(100, 200), (300, 400), (500, 600)]


def test_a_page_is_judged_by_the_windows_of_its_scope():
    """Made a minute ago, it is old in a window of its scope and fresh in one of another."""
    windows = {"a": [(90_000, 200_000)]}
    found = {house: RULES.judge(CATALOGUE.page("menu", house), 40_000, windows, 100_000).freshness for house in "ab"}
    assert found == {"a": Freshness.STALE, "b": Freshness.FRESH}


def test_a_prewarm_makes_what_the_rules_name():
    """One page of each kind, of the scope that is prewarmed."""
    assert [page.key for page in RULES.prewarmed_pages("a")] == ["house:a:menu", "house:a:guests"]


@pytest.mark.parametrize(
    ("key", "expected"), [("house:a:menu", True), ("old:a", False), ("house:\0:menu", False), ("nothing", False)]
)
def test_what_can_be_made_has_a_key_and_a_builder(key: str, expected: bool):
    """A kind without a builder, an id with a NUL and a key of no kind cannot be made."""
    assert RULES.can_be_made(key) is expected
