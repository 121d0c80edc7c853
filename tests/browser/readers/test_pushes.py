"""Pages of administrators in a real browser: changes are pushed to them. No timer of these pages runs, so they do not poll."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import KEYS, Browser, api_process
from tests.browser.readers.reading import encoded, forget, own_clock
from tests.integration.connecting import free_port

# Longer than the first delay of a lost socket (2 s), and less than the shortest of a poll (10 s).
AGAIN_MS = 3_000
POLL_MS = 31_000


def goals(page: Any) -> Any:
    """Goals for of the team that was at home in the first match."""
    return page.locator("tr", has_text="Home United").locator("td").nth(5)


def still(seen: Any) -> Any:
    """The same tab with timers that ring no more, after its first requests."""
    seen.page.wait_for_load_state("networkidle")
    seen.stop_clock()
    return seen


@pytest.mark.requirement("R4.37", "R4.38")
def test_a_result_is_pushed_to_administrators_only(tab: Any, guarded: Any, season: Any) -> None:
    """A table and a match show a result without a poll; a reader's page has no socket, and shows it at its next poll."""
    season.ends(1, 0)
    table, match, reader = [
        still(tab(path, guarded.signed_in(who), prepare=own_clock, before=guarded.browser))
        for path, who in ((season.page, "admin"), (season.match(1), "assistant"), (season.page, "viewer"))
    ]
    season.ends(6, 1)
    expect(goals(table.page)).to_have_text("6")
    expect(match.page.locator("b.score")).to_have_text("6:1")
    expect(goals(reader.page)).to_have_text("1")
    assert (len(table.sockets), len(match.sockets), reader.sockets) == (1, 1, [])
    assert re.search(r"^ws://[^/]+/read/changes$", table.sockets[0])
    reader.passes(POLL_MS)
    expect(goals(reader.page)).to_have_text("6")


def test_a_push_never_brings_an_older_version(tab: Any, season: Any) -> None:
    """Not from a process that lags behind the one that pushed; the next push shows what is current."""
    season.ends(1, 0)
    seen = still(tab(season.page, prepare=own_clock))
    older = {"ETag": 'W/"older"', "X-Resource-Version": str(season.version() - 1)}
    seen.page.route(
        re.compile(r"table\?part=1"),
        lambda route: route.fulfill(status=200, headers=older, body="<p>older</p>", content_type="text/html"),
    )
    with seen.page.expect_response(lambda answer: answer.headers.get("etag") == older["ETag"]):
        season.ends(7, 1)
    seen.page.evaluate("allAnswered()")
    expect(goals(seen.page)).to_have_text("1")
    seen.page.unroute_all()
    season.ends(8, 1)
    expect(goals(seen.page)).to_have_text("8")


def test_a_hidden_page_asks_when_it_is_seen(tab: Any, season: Any) -> None:
    """A push has it send nothing, however many there are; then it is current at once."""
    seen = still(tab(season.page, prepare=own_clock))
    witness = still(tab(season.page, prepare=own_clock))
    seen.page.evaluate("look('hidden')")
    before = seen.requests(season.part())
    season.ends(3, 3)
    expect(goals(witness.page)).to_have_text("3")
    assert seen.requests(season.part()) == before
    seen.page.evaluate("look('visible')")
    expect(goals(seen.page)).to_have_text("3")


def test_nothing_is_missed_while_the_server_restarts(
    chromium: Any, tab: Any, product: Any, season: Any, tmp_path: Path
) -> None:
    """The page connects again and shows what ended meanwhile, and then what ends next.

    Results within the same ten seconds would exceed the limit of live pages for one address.
    """
    port, log = free_port(), tmp_path / "api.log"
    before = Browser(chromium, f"http://127.0.0.1:{port}")
    with api_process(product, log, port=port, HIGHWATER_LIVE_REQUESTS_MAX="1000"):
        seen = still(tab(season.page, before=before, prepare=own_clock))
        season.ends(2, 2)
        expect(goals(seen.page)).to_have_text("2")
    season.ends(4, 2)
    expect(goals(seen.page)).to_have_text("2")
    with api_process(product, log, port=port, HIGHWATER_LIVE_REQUESTS_MAX="1000"):
        seen.page.clock.run_for(AGAIN_MS)
        expect(goals(seen.page)).to_have_text("4")
        assert len(seen.sockets) == 2
        season.ends(5, 2)
        expect(goals(seen.page)).to_have_text("5")
    assert before.problems == []


def test_who_is_signed_out_sees_it(tab: Any, guarded: Any, product: Any, season: Any) -> None:
    """The session of an administrator ends: its page says so without a poll, and does not connect again."""
    key = {"Authorization": f"Bearer {KEYS['admin'].split(':')[1]}"}
    made = product.http.post(
        f"{guarded.url}/api/sessions", json={"user_id": "pushed", "role": "admin"}, headers=key
    ).json()
    context = guarded.browser.context()
    page = context.new_page()
    page.goto("/read")
    page.get_by_label("API key or session").fill(made["session_id"])
    page.keyboard.press("Enter")
    page.wait_for_url("**/read")
    page.close()
    seen = still(tab(season.page, context, prepare=own_clock, before=guarded.browser))
    ended = product.http.delete(f"{guarded.url}/api/sessions/{encoded(made['session_id'])}", headers=key)
    assert ended.status_code in (200, 204), ended.text
    expect(seen.page.locator("#tab")).to_have_text("You are signed out. Reload the page to sign in.")
    seen.page.clock.run_for(AGAIN_MS)
    assert len(seen.sockets) == 1
    forget(guarded.browser, "401")


@pytest.mark.parametrize("path", ["/read", "/read/feed"])
def test_which_pages_have_a_socket(tab: Any, guarded: Any, path: str) -> None:
    """Those of leagues; a feed is polled by administrators too."""
    seen = tab(path, guarded.signed_in("admin"), before=guarded.browser)
    assert len(seen.sockets) == (path == "/read")
