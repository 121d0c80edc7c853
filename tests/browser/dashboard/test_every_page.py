"""Every page there is, found by the tables that serve it: open to everybody, light, and usable by the keyboard alone."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from highwater.streams.clock import ProductClock
from tests.browser.catalogue import TOPIC, Things, addresses, declared, is_of_console, made_in
from tests.browser.conftest import TIMEOUT_MS, Browser
from tests.browser.visiting import NARROW, Visit, Visitor

# The first test waits for all visits: a minute and a half on an idle machine, five where twenty processes want two cores.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
CONSOLE_BYTES_MAX, READERS_BYTES_MAX = 500_000, 60_000
WORDS = ("rebalance of consumer groups", "release notes of the broker", "schema registry compatibility")


@pytest.fixture(scope="module")
def things(product: Any) -> Things:
    """One of each kind: a user with clusters, a match with a result, an answered query, a deck and a dead letter."""
    user, channel, season = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("u", "c", "s"))
    product.subscribe(user, [channel])
    now_ms = ProductClock()()
    rows = [
        {"insight_id": f"{channel}-{n}", "channel_id": channel, "ts": now_ms - n, "text": f"{WORDS[n % 3]} {n}"}
        for n in range(90)
    ]
    match = {
        "match_id": f"{season}-1", "season": season, "round": "1", "kickoff": now_ms, "time_unknown": False,
        "home": "Reds", "away": "Blues", "status": "scheduled",
    }  # fmt: skip
    for topic, events in (("league.match-scheduled", [match]), (TOPIC, rows)):
        body = "".join(json.dumps(event) + "\n" for event in events)
        kind = {"content-type": "application/x-ndjson"}
        answer = product.http.post(f"/api/events/{topic}", content=body, headers=kind)
        assert answer.status_code == 202, answer.text
    producer = Producer(product.producer_config())
    producer.produce(f"{TOPIC}.dlq", b"\x01", channel.encode(), headers=[("dlq_reason", b"not_avro")])
    assert producer.flush(30) == 0
    product.until(lambda: product.pending(user)["cluster_version"] > 0, "no clusters", 120)
    product.until(lambda: product.get(f"/api/users/{user}/feed").json().get("items"), "no feed")
    product.until(lambda: product.get(f"/api/matches/{season}-1").status_code == 200, "the match is not known")
    return made_in(product.http, user, season)


@pytest.fixture(scope="module")
def visits(browser: Browser, things: Things) -> Iterator[list[Visit]]:
    """Every page, visited once."""
    context = browser.context()
    page = browser.tab("/", context)
    page.set_default_timeout(TIMEOUT_MS)
    visitor = Visitor(page)
    yield [visitor.visit(path, address) for path, of_page in addresses(things).items() for address in of_page]
    context.close()
    # The browser's own line about the address that no page has.
    browser.problems[:] = [one for one in browser.problems if "404" not in one]


def test_the_catalogue_has_every_page(visits: list[Visit]):
    """The console, the readers' pages and the API have forty addresses, and each is shown under its heading."""
    assert {one.path for one in visits} > set(declared())
    assert len(visits) >= 40
    assert [one.address for one in visits if len(one.structure["headings"]) != 1] == []


def test_axe_finds_nothing(visits: list[Visit]):
    """No violation of any rule of axe-core on any page, wide and narrow, light and dark."""
    assert [told for one in visits for told in one.violations] == []


def test_every_page_names_its_language(visits: list[Visit]):
    """A screen reader pronounces English as English."""
    assert [one.address for one in visits if one.structure["lang"] not in ("en", "en-US")] == []


def test_a_phone_scrolls_in_one_direction(visits: list[Visit]):
    """Elements wider than the screen scroll within themselves."""
    assert [(one.address, one.width_narrow) for one in visits if one.width_narrow > NARROW] == []


def test_every_figure_leads_to_what_it_counts(visits: list[Visit]):
    """A whole number in a table, a tile or beside its name is a link, except in the rows of a user's SQL."""
    assert [(one.address, one.unlinked) for one in visits if one.unlinked and one.path != "/sql"] == []


def test_the_keyboard_walks_in_the_order_of_the_page(visits: list[Visit]):
    """No element jumps the queue; Tab reaches the link that skips the navigation first, then the page and what is below it;
    focus is seen.
    """
    assert [one.address for one in visits if one.structure["positive"]] == []
    assert [(one.address, one.unseen) for one in visits if one.unseen] == []
    shared = [one for one in visits if one.path == "/read/shared/{token}"]  # it has no link at all
    assert [set(one.places) for one in shared] == [{"nowhere"}]
    framed = [one for one in visits if (is_of_console(one.path) or one.path.startswith("/read")) and one not in shared]
    assert [(one.address, one.places) for one in framed if one.places[0] != "skip"] == []
    assert [
        (one.address, one.places) for one in framed if not set(one.places[1:]) <= {"page", "footer", "nowhere"}
    ] == []


def test_every_page_is_light(visits: list[Visit]):
    """All that a first visit transfers, measured by the browser: a page of the console and one of readers."""
    console = {one.address: one.bytes_transferred for one in visits if is_of_console(one.path)}
    readers = {one.address: one.bytes_transferred for one in visits if one.path.startswith("/read")}
    assert {address: size for address, size in console.items() if not 0 < size <= CONSOLE_BYTES_MAX} == {}
    assert {address: size for address, size in readers.items() if not 0 < size <= READERS_BYTES_MAX} == {}
