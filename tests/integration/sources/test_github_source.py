"""GitHub's listings against a scripted service on a real socket: pages, tags, limits, trouble, and what ends say of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from highwater.connectors.sources.github import GONE_ASKED_MAX, KINDS, Listing, is_repository
from highwater.connectors.sources.github_pages import GitHubApi, GitHubError, next_link
from highwater.schemas.errors import ConfigurationError
from tests.integration.sources.github_server import CUT, REPOSITORY, GitHubServer, Reply, issue, refused, used_up
from tests.unit.sources.origins import drawn, submitted


class Naps:
    """Waits that are only noted."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        """Note the wait."""
        self.seconds.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def naps() -> Naps:
    """How long the client would have waited."""
    return Naps()


@pytest.fixture
async def api(github: GitHubServer, naps: Naps) -> AsyncIterator[GitHubApi]:
    """A connection to it."""
    async with GitHubApi(github.url, token="secret", sleep=naps) as made:
        yield made


def listing(api: GitHubApi, what: str = "issues", **options: Any) -> Listing:
    """A listing of the repository."""
    return Listing(api, REPOSITORY, what, **options)


async def test_pages_are_followed_by_their_links(github, api):
    """Every entry of every page, the oldest first; the window names the pages, and every end is full."""
    github.entries["issues"] = [issue(n, body="## Why\n\nbecause") for n in range(1, 251)]
    origin = listing(api)
    chunks, ends, faults = await submitted(origin, asks_full=True)
    assert [f"issues/{n}" for n in range(1, 251)] == [chunk["source_id"] for chunk in chunks]
    assert (chunks[0]["title"], chunks[0]["url"]) == ("Issue 1 > Why", f"https://github.com/{REPOSITORY}/issues/1")
    assert chunks[0]["published_at"] == 1_704_153_600_000
    assert github.statuses() == [200, 200, 200]
    window = {"source": f"github:{REPOSITORY}/issues", "page_from": 1, "page_to": 3, "cursor": None, "limit": 100}
    assert all(end["full"] and not end["truncated"] for end in ends.values())
    assert json.loads(ends["issues/250"]["window"]) == {**window, "truncated": False}
    assert (faults, len(ends)) == ([], 250)


async def test_requests_say_what_github_wants_to_hear(github, api):
    """Version, media type, authorization and the order that keeps old pages as they are."""
    github.entries["issues"] = [issue(1)]
    await drawn(listing(api))
    asked = github.asked[0]
    assert asked.path == f"/repos/{REPOSITORY}/issues"
    assert asked.query == {"per_page": "100", "state": "all", "sort": "created", "direction": "asc"}
    told = {name: asked.headers[name] for name in ("accept", "authorization", "x-github-api-version", "user-agent")}
    assert told == {
        "accept": "application/vnd.github+json",
        "authorization": "Bearer secret",
        "x-github-api-version": "2022-11-28",
        "user-agent": "highwater-import",
    }


@pytest.mark.requirement("R3.24")
async def test_a_limit_of_pages_makes_the_run_truncated(github, api):
    """R3.24: no end is full, the window says where to continue, and continuing there reads the rest."""
    github.entries["issues"] = [issue(n) for n in range(1, 251)]
    _, ends, _ = await submitted(listing(api, pages_max=2), asks_full=True)
    window = json.loads(ends["issues/1"]["window"])
    assert (len(ends), window["page_from"], window["page_to"], window["truncated"]) == (200, 1, 2, True)
    assert {(end["full"], end["truncated"]) for end in ends.values()} == {(False, True)}
    rest = listing(api, cursor=window["cursor"])
    _, more, _ = await submitted(rest, asks_full=True)
    assert list(more) == [f"issues/{n}" for n in range(201, 251)]
    assert {(end["full"], end["truncated"]) for end in more.values()} == {(False, True)}
    assert (rest.reading.window["page_from"], rest.reading.is_listed) == (3, False)


async def test_a_run_since_a_time_is_not_full(github, api):
    """Unchanged sources are not listed, so none counts as deleted and none is an orphan."""
    github.entries["issues"] = [issue(1)]
    origin = listing(api, since="2024-01-01T00:00:00Z")
    _, ends, _ = await submitted(origin, asks_full=True)
    assert github.asked[0].query["since"] == "2024-01-01T00:00:00Z"
    assert (ends["issues/1"]["full"], origin.reading.is_listed) == (False, False)


async def test_pages_that_have_not_changed_are_not_read_again(github, api):
    """304: nothing is submitted of them, all that they name is still there, and only the changed page is read."""
    github.entries["issues"] = [issue(n) for n in range(1, 151)]
    first = listing(api)
    await drawn(first)
    assert [(page.entries, page.following is None) for page in first.pages.values()] == [(100, False), (50, True)]
    for links_when_same in (True, False):  # the service need not send the next page again
        github.links_when_same = links_when_same
        github.statuses()
        again = listing(api, known=first.pages)
        assert await drawn(again) == ({}, [])
        assert (github.statuses(), again.pages_unchanged, again.pages) == ([304, 304], 2, first.pages)
        assert (len(again.reading.listed), again.reading.is_listed) == (150, True)
    github.entries["issues"][120]["title"] = "Changed"
    found, _ = await drawn(listing(api, known=first.pages))
    assert (github.statuses(), len(found), found["issues/121"].title) == ([304, 200], 50, "Changed")


async def test_a_full_run_reads_again_what_was_not_imported_in_full(github, api):
    """A page whose ends were not full may have unmarked orphans."""
    github.entries["issues"] = [issue(1)]
    first = listing(api)
    await drawn(first)
    github.statuses()
    found, _ = await drawn(listing(api, known=first.pages, needs_full=True))
    assert (github.statuses(), list(found)) == ([200], ["issues/1"])
    for page in first.pages.values():
        page.is_full = True
    assert await drawn(listing(api, known=first.pages, needs_full=True)) == ({}, [])


async def test_a_last_page_that_is_full_is_asked_for_anew(github, api):
    """Whether one more came after it need not change its tag."""
    github.entries["issues"] = [issue(n) for n in range(1, 101)]
    first = listing(api)
    await drawn(first)
    github.entries["issues"].append(issue(101))
    github.statuses()
    found, _ = await drawn(listing(api, known=first.pages))
    assert (github.statuses(), len(found)) == ([200, 200], 101)


@pytest.mark.parametrize(
    ("reply", "waits"),
    [
        (refused(429, "slow down", retry_after="7"), (7, 7)),
        (refused(403, "secondary", retry_after="7"), (7, 7)),
        (refused(403, "You have exceeded a secondary rate limit."), (60, 60)),
        (refused(429), (60, 60)),
        (refused(429, retry_after="0"), (1, 1)),
        (refused(429, retry_after="soon"), (60, 60)),
    ],
    ids=["429", "403", "secondary", "untold", "at once", "no number"],
)
async def test_a_limit_is_waited_for(github, api, naps, reply, waits):
    """For the time that the service requests, or a minute; then the same page is requested again."""
    github.entries["issues"] = [issue(1)]
    github.script("issues", reply)
    found, _ = await drawn(listing(api))
    assert list(found) == ["issues/1"]
    assert len(naps.seconds) == 1
    assert waits[0] <= naps.seconds[0] <= waits[1]


@pytest.mark.parametrize("status", [403, 429])
async def test_a_limit_that_is_used_up_is_waited_for_until_its_reset(github, api, naps, status):
    """By the clock of the service, a second longer, since both times are whole."""
    github.entries["issues"] = [issue(1)]
    github.script("issues", used_up(30, status))
    found, _ = await drawn(listing(api))
    assert list(found) == ["issues/1"]
    assert 29 <= naps.seconds[0] <= 32


async def test_the_last_request_that_is_allowed_is_known_as_such(github, api, naps):
    """After a good answer that leaves none, the next page waits for the reset without asking first."""
    github.entries["issues"] = [issue(n) for n in range(1, 151)]
    good = github.reply(f"/repos/{REPOSITORY}/issues", {"per_page": "100"}, {})
    left = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": used_up(20).headers["x-ratelimit-reset"]}
    github.script("issues", Reply(200, {**good.headers, **left}, good.body))
    found, _ = await drawn(listing(api))
    assert (len(found), github.statuses(), len(naps.seconds)) == (150, [200, 200], 1)
    assert 19 <= naps.seconds[0] <= 22


async def test_a_limit_beyond_what_may_be_waited_ends_the_run_truncated(github, naps):
    """The sources that were read are ended as truncated, with the page to continue at; all waits together count."""
    github.entries["issues"] = [issue(n) for n in range(1, 151)]
    async with GitHubApi(github.url, wait_seconds=10, sleep=naps) as api:
        github.script(
            "issues",
            refused(429, retry_after="6"),
            github.reply(f"/repos/{REPOSITORY}/issues", {"per_page": "100"}, {}),
        )
        github.script("issues", refused(429, retry_after="6"))
        origin = listing(api)
        _, ends, _ = await submitted(origin, asks_full=True)
    assert naps.seconds == [6]
    assert "continue then" in str(origin.reading.why)
    window = json.loads(ends["issues/1"]["window"])
    assert (len(ends), window["page_to"], window["truncated"]) == (100, 1, True)
    assert "page=2" in window["cursor"]
    assert {(end["full"], end["truncated"]) for end in ends.values()} == {(False, True)}


@pytest.mark.parametrize(
    "trouble", [CUT, refused(502), Reply(503, {}, b"<html>down</html>")], ids=["cut", "502", "html"]
)
async def test_trouble_that_passes_is_sat_out(github, api, naps, trouble):
    """A cut connection and a server's error are tried again, further and further apart."""
    github.entries["issues"] = [issue(1)]
    github.script("issues", trouble, trouble, trouble)
    found, _ = await drawn(listing(api))
    assert (list(found), naps.seconds) == (["issues/1"], [1, 2, 4])


@pytest.mark.parametrize("trouble", [CUT, refused(500)], ids=["cut", "500"])
async def test_trouble_that_stays_ends_the_run_truncated(github, api, naps, trouble):
    """After five attempts; the sources that were read are ended and mark nothing."""
    github.entries["issues"] = [issue(n) for n in range(1, 151)]
    github.script("issues", github.reply(f"/repos/{REPOSITORY}/issues", {"per_page": "100"}, {}), *[trouble] * 5)
    origin = listing(api)
    _, ends, _ = await submitted(origin, asks_full=True)
    assert (len(ends), naps.seconds) == (100, [1, 2, 4, 8])
    assert "no answer after 5 attempts" in str(origin.reading.why)
    assert {(end["full"], end["truncated"]) for end in ends.values()} == {(False, True)}


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (refused(401, "Bad credentials"), "401 Unauthorized: Bad credentials"),
        (refused(403, "Resource not accessible"), "403 Forbidden: Resource not accessible"),
        (refused(404, "Not Found"), "404 Not Found"),
        (refused(422, "Validation Failed"), "422"),
        (Reply(200, {}, b"<html>a portal</html>"), "not JSON"),
        (Reply(200, {}, b'{"message": "hello"}'), "not a list"),
        (Reply(304, {}), "304"),
        (Reply(301, {"Location": "http://127.0.0.2:1/repos/x"}), "not an address at"),
        (Reply(200, {"Link": '<http://[::1>; rel="next"'}, b"[]"), "not an address"),
        (Reply(200, {"Link": '<https://evil.example/steal>; rel="next"'}, b"[]"), "not an address at"),
        (Reply(200, {"Link": f'</repos?{"x" * 3000}>; rel="next"'}, b"[]"), "not an address at"),
    ],
)
async def test_what_is_no_answer_is_not_asked_for_again(github, api, naps, reply, why):
    """One line says what came; nothing is sent anywhere else."""
    github.entries["issues"] = [issue(1)]
    github.script("issues", reply)
    origin = listing(api)
    assert await drawn(origin) == ({}, [])
    assert why in str(origin.reading.why)
    assert (len(github.asked), naps.seconds, origin.reading.is_whole) == (1, [], False)


async def test_a_repository_that_was_renamed_is_followed(github, api):
    """A redirect at the same service is; one that goes round in circles is not."""
    github.entries["issues"] = [issue(1)]
    moved = Reply(301, {"Location": "/repositories/7/issues?per_page=100"})
    github.script("issues", moved)
    assert list((await drawn(listing(api)))[0]) == ["issues/1"]
    github.script("issues", *[moved] * 6)
    origin = listing(api)
    await drawn(origin)
    assert "redirects" in str(origin.reading.why)


async def test_an_answer_without_end_is_not_read_to_it(github, api, monkeypatch):
    """It is refused at the limit of what a page may have."""
    monkeypatch.setattr("highwater.connectors.sources.github_pages.RESPONSE_BYTES_MAX", 1_000)
    github.entries["issues"] = [issue(1, body="x" * 2_000)]
    async with GitHubApi(api.url) as small:
        origin = listing(small)
        await drawn(origin)
    assert "the answer is longer than" in str(origin.reading.why)


async def test_bad_entries_are_named_and_the_others_read(github, api):
    """One without an id makes all ends truncated, since it may be any source; one with an id harms itself."""
    bad = [issue(2, title=5), issue(3, created_at="soon"), {"title": "no number"}, None]
    github.entries["issues"] = [issue(1), *bad, issue(4)]
    origin = listing(api)
    _, ends, faults = await submitted(origin, asks_full=True)
    assert [fault.where for fault in faults] == ["issues/2", "issues/3", "page 1, entry 4", "page 1, entry 5"]
    assert {name: end["full"] for name, end in ends.items()} == {"issues/1": False, "issues/4": False}
    assert (origin.pages, origin.reading.listed) == ({}, {f"issues/{n}" for n in range(1, 5)})


async def test_an_entry_on_two_pages_counts_once(github, api):
    """A listing shifts while it is read."""
    github.entries["releases"] = [{"id": n, "name": f"v{n}", "body": "x", "draft": False} for n in range(1, 101)]
    github.entries["releases"].append(dict(github.entries["releases"][99]))
    _, ends, faults = await submitted(listing(api, "releases"))
    assert (len(ends), faults) == (100, [])


@pytest.mark.parametrize(
    ("what", "path", "entry", "told"),
    [
        ("pulls", "pulls", issue(5, "Fix", "it"), ("pulls/5", "Fix", "it", 1_704_499_200_000)),
        (
            "comments",
            "issues/comments",
            {
                "id": 9,
                "body": "yes",
                "created_at": "2024-01-01T00:00:00Z",
                "html_url": "https://github.com/a/b/issues/3#c",
            },
            ("comments/9", "Comment on #3", "yes", 1_704_067_200_000),
        ),
        (
            "releases",
            "releases",
            {"id": 9, "name": None, "tag_name": "v1", "body": "notes", "published_at": "2024-01-01T00:00:00Z"},
            ("releases/9", "v1", "notes", 1_704_067_200_000),
        ),
        (
            "commits",
            "commits",
            {"sha": "a" * 40, "commit": {"message": "Fix\n\nbody", "committer": {"date": "2024-01-01T00:00:00Z"}}},
            ("commits/" + "a" * 40, "Fix", "\nbody", 1_704_067_200_000),
        ),
    ],
)
async def test_each_kind_is_read_as_what_it_is(github, api, what, path, entry, told):
    """Id, title, text, and when it was published."""
    github.entries[path] = [entry]
    found, faults = await drawn(listing(api, what))
    assert faults == []
    source_id, item = next(iter(found.items()))
    assert (source_id, item.title, item.raw, item.published_at) == told


async def test_what_is_of_another_kind_is_passed_over(github, api):
    """Pull requests among issues, and drafts of releases."""
    github.entries["issues"] = [issue(1), issue(2, pull_request={"url": "x"})]
    github.entries["releases"] = [{"id": 1, "tag_name": "v1", "draft": True}]
    for what, names in (("issues", ["issues/1"]), ("releases", [])):
        origin = listing(api, what)
        found, _ = await drawn(origin)
        assert (list(found), origin.reading.passed_over, origin.reading.listed) == (names, 1, set(names))


async def test_only_what_github_says_is_gone_is_gone(github, api):
    """A source that is missing in a listing is requested alone: 404 and 410 mean that it no longer exists."""
    github.entries["issues"] = [issue(1), issue(4)]
    github.script("issues/3", refused(410, "deleted"))
    assert await listing(api).gone(["issues/1", "issues/2", "issues/3", "issues/4"]) == ["issues/2", "issues/3"]
    github.statuses()
    assert len(await listing(api).gone([f"issues/{n}" for n in range(10, 10 + 2 * GONE_ASKED_MAX)])) == GONE_ASKED_MAX
    assert len(github.statuses()) == GONE_ASKED_MAX
    github.script("issues/5", refused(451, "for legal reasons"))
    with pytest.raises(GitHubError, match="451"):
        await listing(api).gone(["issues/5"])


async def test_a_name_of_a_source_is_no_way_out_of_the_listing(github, api):
    """A remembered name is escaped as one part of a path."""
    await listing(api).gone(["issues/../../user"])
    assert github.asked[0].path == f"/repos/{REPOSITORY}/issues/..%2F..%2Fuser"


async def test_a_token_that_no_header_can_hold_is_not_told(github):
    """The setting is named, its value is not."""
    with pytest.raises(ConfigurationError, match="GITHUB_TOKEN") as raised:
        GitHubApi(github.url, token="line\nend")
    assert "line" not in str(raised.value)


@pytest.mark.parametrize(
    ("header", "url"),
    [
        ('<https://x/?page=2>; rel="next", <https://x/?page=9>; rel="last"', "https://x/?page=2"),
        ('<https://x/?page=1>; rel="prev", <https://x/?a=1,2;3&page=2>; title="a, b"; rel=next', "https://x/?a=1,2;3&page=2"),
        ('<https://x>; rel="last next"', "https://x"),
        ('<https://x>; rel="nextish"', None),
        ("next", None),
        ("<" * 50_000, None),
        ("", None),
    ],
    ids=["quoted", "commas", "two", "another", "no link", "hostile", "empty"],
)  # fmt: skip
def test_the_next_page_is_what_the_link_header_says(header, url):
    """RFC 8288: parameters in any order, quoted or not, several relations in one."""
    assert next_link(header) == url


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *(("ada/tool", True), ("ada/a.b_c-d", True)),
        *((name, False) for name in ("ada", "ada/..", "ada/.", "a/b/c", "/b", "a/b?c", "a/b c")),
    ],
)  # fmt: skip
def test_names_of_repositories(name, is_one):
    """OWNER/REPO, and nothing that would be another path."""
    assert is_repository(name) is is_one


def test_the_command_offers_each_kind():
    """`import github --what` accepts exactly the existing kinds."""
    from highwater.api.chunks.cli_import import _KINDS

    assert set(_KINDS) == set(KINDS)
