"""Pages through real caches: the browser's own, and a Varnish before the API. None gives a reader a page older than an
acknowledged write, and none gives one reader another's page.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from highwater.streams.access import trusts_nobody
from highwater.streams.clock import ProductClock
from tests.browser.conftest import KEYS
from tests.browser.pages.varnish import LEFT_OUT, SERVES_STALE, SHIPPED, VARNISHD, varnish

HOME, AWAY = "Home United", "Away City"
_FETCH = """async ([path, headers]) => {
  const answer = await fetch(path, {headers});
  return [answer.status, answer.headers.get("x-resource-version"), await answer.text()];
}"""
BOUND, OTHER = (f"Bearer {KEYS[who].split(':')[1]}" for who in ("bound", "viewer"))
USER = KEYS["bound"].split(":")[2]


class Season(NamedTuple):
    """A season of two matches, the first of which ends again and again."""

    product: Any
    name: str

    @property
    def table(self) -> str:
        """Its standings."""
        return f"/api/league/{self.name}/table"

    @property
    def pages(self) -> list[str]:
        """Everything that a result alters."""
        names = ("table", "results", "schedule", "stats")
        return [*(f"/api/league/{self.name}/{name}" for name in names), f"/api/matches/{self.name}-1"]

    def ends(self, home: int, away: int) -> str:
        """The first match ends so; the positions of the event, once they are stored."""
        answer = self.product.http.post(
            f"/api/matches/{self.name}-1/finalize", json={"home_goals": home, "away_goals": away}
        )
        assert answer.status_code == 202, answer.text
        return ",".join(answer.json()["positions"])

    def votes(self, choice: str) -> str:
        """The user's vote on the second match; its positions."""
        answer = self.product.http.post(f"/api/matches/{self.name}-2/votes", json={"user_id": USER, "choice": choice})
        assert answer.status_code == 202, answer.text
        return ",".join(answer.json()["positions"])

    def shown_after(self, path: str, position: str, **headers: str) -> str:
        """A page as the API itself gives it once a position is stored."""
        answer = self.product.get(path, X_Min_Position=position, X_Max_Wait_Ms="30000", **headers)
        assert answer.status_code == 200, answer.text
        return str(answer.text)


@pytest.fixture(scope="module")
def season(product: Any) -> Season:
    """Scheduled."""
    name, now_ms = f"caches-{uuid.uuid4().hex[:8]}", ProductClock()()
    matches = [(1, now_ms - 3_600_000, HOME, AWAY), (2, now_ms + 86_400_000, AWAY, HOME)]
    product.publish(
        "league.match-scheduled",
        [
            {"match_id": f"{name}-{number}", "season": name, "round": "1", "kickoff": kickoff, "home": home, "away": away,
             "time_unknown": False, "status": None}
            for number, kickoff, home, away in matches
        ],
    )  # fmt: skip
    found = Season(product, name)
    product.until(lambda: product.get(found.table).status_code == 200, "the season is stored")
    return found


# -- the browser's cache ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    """A page of the product, from which it is fetched."""
    found = browser.page("/topics")
    yield found
    found.context.close()


def test_a_browser_is_never_served_the_page_before_an_acknowledged_write(page: Any, season: Season) -> None:
    """Its first plain `fetch` after a result was seen gives the new state of every page that the result alters."""
    paths = season.pages
    before = {path: page.evaluate(_FETCH, [path, {}]) for path in paths}
    assert {status for status, *_ in before.values()} == {200}
    for goals in (1, 2, 3):
        position = season.ends(goals, 0)
        expected = season.shown_after(season.table, position)
        after = {path: page.evaluate(_FETCH, [path, {}]) for path in paths}
        assert after[season.table][2] == expected
        assert all(int(after[path][1]) > int(before[path][1]) for path in paths), (before, after)
        before = after


def test_a_browser_that_names_a_position_is_served_it(page: Any, season: Season) -> None:
    """A stored answer to a plain read does not serve one with a position, nor the reverse."""
    page.evaluate(_FETCH, [season.table, {}])
    for goals in (4, 5):
        headers = {"X-Min-Position": season.ends(goals, goals), "X-Max-Wait-Ms": "30000"}
        status, version, text = page.evaluate(_FETCH, [season.table, headers])
        assert (status, text) == (200, season.product.get(season.table).text)
        assert page.evaluate(_FETCH, [season.table, {}]) == [200, version, text]


@pytest.mark.parametrize(
    "path", ["/api/predictions?user={user}", "/api/users/{user}/achievements", "/api/users/{user}/feed"]
)
def test_private_pages_in_a_browser(guarded: Any, season: Season, path: str) -> None:
    """The user's own write is there at once; another key, or none, in the same browser gets nothing of the page."""
    private = path.format(user=USER)
    context = guarded.signed_in("viewer")
    page = guarded.browser.page("/topics", context)
    own = {"Authorization": BOUND}
    assert page.evaluate(_FETCH, [private, own])[0] == 200
    for choice in ("home", "away"):
        positioned = {**own, "X-Min-Position": season.votes(choice), "X-Max-Wait-Ms": "30000"}
        predictions = f"/api/predictions?user={USER}"
        text = httpx2.get(f"{guarded.url}{predictions}", headers=positioned, timeout=40).text
        assert f'"{choice}"' in text
        status, _, shown = page.evaluate(_FETCH, [private, own])
        assert (status, private != predictions or shown == text) == (200, True)
    assert guarded.browser.problems == []
    assert page.evaluate(_FETCH, [private, {"Authorization": "Bearer no such key"}])[0] == 401
    page.wait_for_timeout(0)  # the console's line is delivered
    assert all("401" in problem for problem in guarded.browser.problems)
    guarded.browser.problems.clear()
    context.close()


# -- Varnish ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def caches(product: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Two Varnishes before the open API, by how they are set up."""
    if VARNISHD is None:
        pytest.skip(LEFT_OUT)
    api = f"http://127.0.0.1:{product.port}"
    folders: list[Path] = [tmp_path_factory.mktemp("varnish") for _ in range(2)]
    with varnish(folders[0], api, SHIPPED) as shipped, varnish(folders[1], api, SERVES_STALE) as stale:
        yield {"shipped": shipped, "serves stale": stale}


def _read(url: str, path: str, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.get(f"{url}{path}", headers=named, timeout=40.0, verify=trusts_nobody())


def test_varnish_as_it_is_shipped_serves_nothing_old(caches: dict[str, str], season: Season) -> None:
    """Each plain read reaches the API, also right after one that named a position; an unchanged page is a 304."""
    url = caches["shipped"]
    for goals in (6, 7, 8):
        position = season.ends(goals, 1)
        expected = season.shown_after(season.table, position)
        answers = {path: _read(url, path) for path in season.pages}
        assert answers[season.table].text == expected
        for path, answer in answers.items():
            assert answer.text == season.product.get(path).text
            assert _read(url, path, If_None_Match=answer.headers["etag"]).status_code == 304


def test_varnish_that_serves_old_pages_serves_none_to_a_position(caches: dict[str, str], season: Season) -> None:
    """A plain read may get the old page while the new one is fetched; a read with a position never does."""
    url = caches["serves stale"]

    def is_stored() -> bool:
        return int(_read(url, season.table).headers["x-hits"]) > 0

    season.product.until(is_stored, "the page is served from the cache")
    for goals in (9, 10, 11):
        position = season.ends(goals, 2)
        answer = _read(url, season.table, X_Min_Position=position, X_Max_Wait_Ms="30000")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        assert answer.text == season.product.get(season.table).text
        assert answer.headers["x-hits"] == "0"
        expected = answer.text
        season.product.until(lambda expected=expected: _read(url, season.table).text == expected, "the cache follows")


def test_varnish_hands_no_page_to_a_reader_of_another_language(caches: dict[str, str]) -> None:
    """A readers' page and its part are in the language of each request, and are revalidated by the ETag of that language."""
    for url in caches.values():
        etags = {}
        for language, words in (("ru-RU,ru;q=0.9", "Лиги"), ("en-US,en;q=0.9", "Leagues"), ("ru, *;q=0.1", "Лиги")):
            for _ in range(2):
                page = _read(url, "/read", Accept_Language=language)
                assert (page.status_code, f"<h1>{words}</h1>" in page.text) == (200, True)
                assert "private" in page.headers["cache-control"]
            part = _read(url, "/read?part=leaderboard", Accept_Language=language)
            etags.setdefault(words, part.headers["etag"])
            assert part.headers["etag"] == etags[words]
            again = _read(url, "/read?part=leaderboard", Accept_Language=language, If_None_Match=etags[words])
            assert again.status_code == 304
        assert len(set(etags.values())) == 2
        english = {"Accept_Language": "en", "If_None_Match": etags["Лиги"]}
        assert _read(url, "/read?part=leaderboard", **english).status_code == 200


def test_varnish_hands_no_private_page_to_another(
    guarded: Any, season: Season, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Neither pages of a user nor, with keys required, any page: each reader needs an own key."""
    if VARNISHD is None:
        pytest.skip(LEFT_OUT)
    paths = [
        f"/api/predictions?user={USER}",
        f"/api/users/{USER}/achievements",
        f"/api/users/{USER}/feed",
        season.table,
    ]
    with varnish(tmp_path_factory.mktemp("varnish"), guarded.url, SERVES_STALE) as url:
        for path in paths:
            for _ in range(2):
                own = _read(url, path, Authorization=BOUND)
                assert own.status_code == 200, own.text
                assert "private" in own.headers["cache-control"]
                assert "cdn-cache-control" not in own.headers
            assert _read(url, path).status_code == 401
            assert _read(url, path, Authorization="Bearer no such key").status_code == 401
            if USER in path:
                expected = httpx2.get(f"{guarded.url}{path}", headers={"Authorization": OTHER}).status_code
                assert _read(url, path, Authorization=OTHER).status_code == expected
        position = season.votes("draw")
        path = paths[0]
        seen = _read(url, path, Authorization=BOUND, X_Min_Position=position, X_Max_Wait_Ms="30000")
        assert '"draw"' in seen.text
        assert _read(url, path, Authorization=BOUND).text == seen.text
