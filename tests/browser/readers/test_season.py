"""A season as its readers see it in a real browser: kept, conditional, current, and never older than the version shown before."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.readers.reading import (
    TABS,
    forget,
    forget_lost_connections,
    own_clock,
    snapshots,
    unreadable,
    weighed,
)

HIDDEN_MS = 60_000
NORMAL_MS = 30_000
LIVE_MS = 5_000
DAY_SECONDS = 86_400
# The most that a page may weigh with everything it loads (issue: 60 kB).
PAGE_BYTES_MAX = 60_000


def goals(page: Any) -> Any:
    """Goals for and against of the team that was at home in the first match."""
    return page.locator("tr", has_text="Home United").locator("td")


@pytest.mark.requirement("R4.38")
def test_a_page_is_asked_for_conditionally_from_the_first_request(tab: Any, season: Any) -> None:
    """The version that came with the page is kept; the next requests name its ETag, pass the browser's cache, and are answered
    with 304.
    """
    seen = tab(season.page)
    expect(seen.page.get_by_role("link", name="Table")).to_have_attribute("aria-current", "page")
    with seen.page.expect_response(lambda answer: answer.url.endswith(season.part())):
        seen.page.reload()
    seen.until("document.readyState === 'complete'")
    kept = snapshots(seen.page)[season.part()]
    assert kept["version"] == season.version()
    assert "Home United" in kept["body"]
    statuses = seen.asked(season.part())
    assert set(statuses) == {304}, statuses
    for answer in seen.answers:
        headers = answer.request.all_headers()
        assert headers["if-none-match"].startswith('W/"')
        assert headers["cache-control"] == "no-cache"  # the header that `no-store` of a fetch sends to caches between


@pytest.mark.requirement("R4.39")
def test_a_tab_is_loaded_when_it_is_opened(tab: Any, season: Any) -> None:
    """The table alone at first (R4.39); each other one once it is clicked, under its own address; going back works."""
    seen = tab(season.page)
    expect(seen.page.get_by_role("table")).to_be_visible()
    for name in TABS[1:]:
        assert seen.asked(season.part(name)) == []
        seen.page.get_by_role("link", name=name.capitalize()).click()
        expect(seen.page.locator("#tab")).not_to_have_attribute("aria-busy", "true")
        expect(seen.page).to_have_url(re.compile(re.escape(f"/{name}") + "$"))
        expect(seen.page).to_have_title(re.compile(f"^{name.capitalize()} · "))
        assert seen.asked(season.part(name))[0] == 200
    expect(seen.page.get_by_role("heading", name=re.compile("Home United . Third Rovers"))).to_be_visible()
    seen.page.go_back()
    expect(seen.page.get_by_role("link", name="Stats")).to_have_attribute("aria-current", "page")
    expect(seen.page.get_by_text("Clean sheets")).to_be_visible()


@pytest.mark.requirement("R4.38")
def test_offline_and_back(browser: Any, tab: Any, season: Any) -> None:
    """The former content stays, marked; once the connection has recovered the page follows by itself."""
    seen = tab(season.page)
    status = seen.page.get_by_role("status")
    season.ends(2, 0)
    seen.page.evaluate("look('visible')")
    expect(goals(seen.page).nth(5)).to_have_text("2")
    seen.page.context.set_offline(True)
    expect(status).to_have_text("Updating…")
    season.ends(3, 0)
    expect(goals(seen.page).nth(5)).to_have_text("2")
    seen.page.context.set_offline(False)
    expect(goals(seen.page).nth(5)).to_have_text("3")
    expect(status).to_have_text("")
    forget_lost_connections(browser)


def test_an_error_is_no_reason_to_show_nothing(browser: Any, tab: Any, season: Any) -> None:
    """While the service answers 503 the page stays and says that it is updating; `Retry-After` is kept to."""
    seen = tab(season.page, prepare=own_clock)
    seen.until("document.readyState === 'complete'")
    answers = {
        "status": 503,
        "headers": {"Retry-After": "45"},
        "body": "{}",
        "content_type": "application/problem+json",
    }
    seen.requests(season.part())
    seen.page.route(re.compile(r"part="), lambda route: route.fulfill(**answers))
    with seen.page.expect_response(lambda answer: answer.url.endswith(season.part()) and answer.status == 503):
        seen.stop_clock()
    expect(seen.page.get_by_role("status")).to_have_text("Updating…")
    expect(goals(seen.page).first).to_be_visible()
    count = seen.requests(season.part())
    seen.page.clock.run_for(44_000)  # more than twice the time of a successful one, and less than requested
    assert seen.requests(season.part()) == count
    seen.page.unroute_all()
    seen.passes(HIDDEN_MS)
    expect(seen.page.get_by_role("status")).to_have_text("")
    forget_lost_connections(browser)


@pytest.mark.requirement("R4.37")
def test_a_hidden_tab_asks_once_a_minute(tab: Any, season: Any) -> None:
    """Seen, a page asks within half a minute; hidden, once a minute; seen again, at once."""
    seen = tab(season.page, prepare=own_clock)
    seen.until("document.readyState === 'complete'")
    part = season.part()
    seen.requests(part)
    seen.stop_clock()

    def after(ms: int) -> int:
        before = seen.requests(part)
        seen.page.clock.run_for(ms)
        return seen.requests(part) - before

    assert after(9_000) == 0
    assert 1 <= after(NORMAL_MS) <= 3
    seen.page.evaluate("look('hidden')")
    assert after(HIDDEN_MS - 2_000) == 0
    assert after(3_000) == 1
    assert after(HIDDEN_MS - 2_000) == 0
    with seen.page.expect_response(lambda answer: answer.url.endswith(part)):
        seen.page.evaluate("look('visible')")


def test_a_version_that_came_while_hidden_is_shown_when_seen(tab: Any, season: Any) -> None:
    """Without waiting for the next request of a timer."""
    season.ends(4, 0)
    seen = tab(season.page, prepare=own_clock)
    expect(goals(seen.page).nth(5)).to_have_text("4")
    seen.page.evaluate("look('hidden')")
    season.ends(5, 0)
    expect(goals(seen.page).nth(5)).to_have_text("4")
    seen.page.evaluate("look('visible')")
    expect(goals(seen.page).nth(5)).to_have_text("5")


def test_two_tabs_show_the_newer_version(browser: Any, tab: Any, season: Any) -> None:
    """The other tab shows a received version without a request; an older one in the storage is overwritten."""
    context = browser.context()
    season.ends(6, 0)
    still = tab(season.page, context, prepare=own_clock)
    expect(goals(still.page).nth(5)).to_have_text("6")
    still.stop_clock()  # its own timers ring no more
    still.requests(season.part())
    still.page.route(re.compile(r"part="), lambda route: route.abort())
    season.ends(7, 0)
    other = tab(season.page, context)
    expect(goals(other.page).nth(5)).to_have_text("7")
    expect(goals(still.page).nth(5)).to_have_text("7")
    key = f"highwater:read::{season.part()}"
    newest = season.version()
    other.page.evaluate(
        "(key) => { const held = JSON.parse(localStorage[key]); held.version -= 1; held.etag = 'older';"
        " held.body = 'older'; localStorage[key] = JSON.stringify(held); }",
        key,
    )
    still.until(f"JSON.parse(localStorage[{key!r}]).version === {newest}")
    expect(goals(other.page).nth(5)).to_have_text("7")
    still.page.close()  # its last request is cut off now, if at all
    forget_lost_connections(browser)


def test_an_older_version_is_never_shown_after_a_newer(tab: Any, season: Any) -> None:
    """Neither from a process that lags behind, nor in a page that was made by it."""
    season.ends(8, 0)
    seen = tab(season.page)
    expect(goals(seen.page).nth(5)).to_have_text("8")
    newest = season.version()
    older = {"ETag": 'W/"older"', "X-Resource-Version": str(newest - 1)}
    page_before = seen.page.content()
    seen.page.route(
        re.compile(r"table\?part=1"),
        lambda route: route.fulfill(status=200, headers=older, body="<p>older</p>", content_type="text/html"),
    )
    with seen.page.expect_response(lambda answer: answer.headers.get("etag") == older["ETag"]):
        seen.page.evaluate("look('visible')")
    seen.page.wait_for_load_state("networkidle")
    expect(seen.page.get_by_text("older")).to_have_count(0)
    assert snapshots(seen.page)[season.part()]["version"] == newest
    stale_page = re.sub(r'(id="tab"[^>]*data-version=)"\d+"', rf'\1"{newest - 1}"', page_before)
    stale_page = re.sub(r'(id="tab"[^>]*data-etag=)"[^"]*"', r'\1"W/&quot;older&quot;"', stale_page).replace(
        ">8<", ">0<"
    )
    # A page that the test serves comes from elsewhere for the browser, which blocks its socket.
    stale_page = stale_page.replace(' data-changes="/read/changes"', "")
    seen.page.route(
        re.compile(re.escape(season.page) + "$"), lambda route: route.fulfill(body=stale_page, content_type="text/html")
    )
    seen.page.reload()
    expect(goals(seen.page).nth(5)).to_have_text("8")


@pytest.mark.parametrize("days", [-2, 2])
def test_a_wrong_clock_of_the_device(browser: Any, tab: Any, season: Any, days: int) -> None:
    """Two days wrong, and right again: snapshots are kept and shown, and the page is current."""
    context = browser.context()
    first = tab(f"{season.page}/results", context, prepare=lambda page: _set_clock(page, days * DAY_SECONDS))
    first.until("localStorage.length > 0")
    first.page.close()
    second = tab(season.page, context)
    assert season.part("results") in snapshots(second.page)
    second.page.route(re.compile(r"part="), lambda route: route.abort())
    second.page.get_by_role("link", name="Results").click()
    expect(second.page.locator("#tab").get_by_text("Home United")).to_be_visible()
    second.page.close()  # as above
    forget_lost_connections(browser)


def test_a_snapshot_ends_after_two_weeks(browser: Any, tab: Any, season: Any) -> None:
    """Thirteen days later it is there, fifteen days later it is removed."""
    context = browser.context()
    first = tab(f"{season.page}/stats", context)
    first.until("localStorage.length > 0")
    kept = tab(season.page, context, prepare=lambda page: _set_clock(page, 13 * DAY_SECONDS))
    assert season.part("stats") in snapshots(kept.page)
    first.page.close()
    kept.page.close()
    ended = tab(season.page, context, prepare=lambda page: _set_clock(page, 15 * DAY_SECONDS))
    ended.until("document.readyState === 'complete'")
    assert season.part("stats") not in snapshots(ended.page)


def _set_clock(page: Any, offset_seconds: int) -> None:
    page.add_init_script(f"{{ const now = Date.now; Date.now = () => now() + {offset_seconds * 1_000}; }}")


def test_a_full_storage_costs_the_snapshot_alone(tab: Any, season: Any) -> None:
    """With no room the page works, is current, and keeps no older version; its own oldest snapshots give way first."""
    season.ends(9, 0)
    seen = tab(f"{season.page}/stats")
    expect(seen.page.get_by_text("Clean sheets")).to_be_visible()
    seen.until("localStorage.length > 0")
    seen.page.evaluate(
        """() => { let piece = "x".repeat(1 << 20);
             while (piece.length > 1) {
               try { localStorage.setItem("others", (localStorage.others ?? "") + piece); }
               catch { piece = piece.slice(piece.length / 2); }
             } }"""
    )
    seen.page.get_by_role("link", name="Table").click()
    expect(goals(seen.page).nth(5)).to_have_text("9")
    season.ends(10, 0)
    seen.page.evaluate("look('visible')")
    expect(goals(seen.page).nth(5)).to_have_text("10")
    kept = snapshots(seen.page)
    assert season.part("stats") not in kept
    assert all(one["version"] >= season.version() for path, one in kept.items() if path == season.part())


@pytest.mark.requirement("R4.37")
def test_matches_in_play_are_asked_for_every_few_seconds(tab: Any, season: Any, product: Any) -> None:
    """A score appears by itself, and the live page is requested within five seconds."""
    answer = product.http.post(
        f"/api/matches/{season.name}-2/score", json={"home_goals": 1, "away_goals": 1, "minute": 20}
    )
    assert answer.status_code == 202, answer.text
    seen = tab(season.page)
    live = seen.page.locator("#live")
    expect(live.get_by_text("Live, minute 20")).to_be_visible()
    product.http.post(f"/api/matches/{season.name}-2/score", json={"home_goals": 2, "away_goals": 1, "minute": 31})
    expect(live.get_by_role("link", name="Third Rovers against Fourth Town: 2:1")).to_be_visible()
    expect(seen.page.locator("#tab").get_by_role("table")).to_be_visible()
    part = season.part("live")
    seen.until("document.readyState === 'complete'")
    with seen.page.expect_response(lambda answer: answer.url.endswith(part), timeout=LIVE_MS + 5_000):
        pass


def test_without_a_script_it_is_still_a_page(browser: Any, season: Any) -> None:
    """Every tab by its link, every text present, and a note on how to see changes."""
    context = browser.context(java_script_enabled=False)
    page = browser.tab(season.page, context)
    page.goto(season.page)
    expect(page.get_by_role("table")).to_contain_text("Away City")
    expect(page.get_by_text("Reload it to see what is new")).to_be_visible()
    for name, words in (("Schedule", "Matchday 2"), ("Results", "Away City"), ("Stats", "Draws"), ("Bracket", "Final")):
        page.get_by_role("link", name=name).click()
        expect(page.locator("#tab")).to_contain_text(words)
    page.get_by_role("link", name="Highwater").click()
    expect(page.get_by_role("heading", name="Leagues")).to_be_visible()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_in_one_direction_and_everything_is_readable(browser: Any, season: Any, scheme: str) -> None:
    """On 360 pixels, in both schemes: text has a contrast of 4.5 or more, links can be hit, the keyboard is seen."""
    context = browser.context(width=360, height=740, scheme=scheme)
    for path in ("/read", *(f"{season.page}/{name}" for name in TABS), season.match(1), season.match(3)):
        page = browser.tab(path, context)
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        assert unreadable(page) == [], (path, scheme)
        assert page.locator("h1").count() == 1
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.close()
    context.close()


def test_a_season_is_light(browser: Any, season: Any) -> None:
    """The page, its files and all its tabs weigh less than 60 kB, the client module less than 6 kB; no dashboard comes."""
    context = browser.context()
    page = browser.tab(season.page, context)
    sizes = weighed(page)
    page.goto(season.page)
    for name in TABS:
        page.get_by_role("link", name=name.capitalize()).click()
        expect(page.locator("#tab")).not_to_have_attribute("aria-busy", "true")
    page.wait_for_load_state("networkidle")
    assert sum(sizes.values()) < PAGE_BYTES_MAX, sizes
    assert not [url for url in sizes if "_nicegui" in url]
    (module,) = [size for url, size in sizes.items() if "/highwater." in url]
    assert module < 6_000
    context.close()


# -- the client module on its own ---------------------------------------------------------------------------------------


def test_the_module_reads_the_api_itself(browser: Any, tab: Any, season: Any) -> None:
    """For other sites: JSON of `/api` with its version, again from the snapshot, and a problem of RFC 9457 for nothing."""
    seen = tab(season.page)
    path = f"/api/league/{season.name}/table"
    script = """async (path) => {
      const { Highwater } = await import("/read/static/highwater.js");
      const client = new Highwater({ prefix: "mine:" });
      const [first, second] = [await client.read(path), await client.read(path)];
      const none = await client.read("/api/league/no-such-season/table");
      const kept = Object.keys(localStorage).filter((key) => key.startsWith("mine:"));
      client.close();
      return { first, second, none, kept };
    }"""
    found = seen.page.evaluate(script, path)
    assert found["first"] == found["second"]
    assert found["first"]["version"] == season.version()
    assert found["first"]["value"] == season.product.get(path).json()
    assert (found["none"]["value"], found["none"]["problem"]["status"]) == (None, 404)
    assert found["kept"] == [f"mine::{path}"]
    forget(browser, "404")


@pytest.mark.requirement("R4.38")
def test_a_pushed_patch_counts_at_once(tab: Any, season: Any) -> None:
    """With a value it is shown, an older one is not, and one without a value has the resource asked for."""
    seen = tab(season.page)
    script = """async (path) => {
      const { Highwater } = await import("/read/static/highwater.js");
      const client = new Highwater({ prefix: "pushed:" });
      const told = [];
      await new Promise((done) => client.watch(path, (state) => { told.push(state.version); done(); }, { keys: ["k"] }));
      const [version] = told;
      client.patch({ path, version: version + 5, etag: 'W/"pushed"', value: { pushed: true } });
      client.patch({ path, version: version + 4, etag: 'W/"late"', value: { pushed: false } });
      const kept = JSON.parse(localStorage[`pushed::${path}`]);
      const asked = requestsOf(path);
      client.patch({ key: "k", version: version + 6 });
      await client.resources.get(path).request;
      const more = requestsOf(path) - asked;
      client.close();
      return { told: told.map((one) => one - version), kept: JSON.parse(kept.body), more };
    }"""
    found = seen.page.evaluate(script, f"/api/league/{season.name}/results")
    assert found == {"told": [0, 5], "kept": {"pushed": True}, "more": 1}
