"""Conditions, paths, positions, cursors and keys: the pure parts of the API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from fastapi import Request, Response

from highwater.api.core.activity import ActivityNotes
from highwater.api.core.auth import Authenticator, Principal, Role, parse_api_keys, refuse_public_address_without_keys
from highwater.api.core.changes import event_id, parse_last_event_id
from highwater.api.core.conditional import Version, answer_version, is_match
from highwater.api.core.errors import BadRequestError, UnauthorizedError, UnprocessableError
from highwater.api.core.freshness import PositionWatcher, is_accounted_for, max_wait_ms, min_positions
from highwater.api.core.paging import decode_cursor, encode_cursor
from highwater.api.core.paths import IdConvertor, canonical_path
from highwater.connectors.feeds.items import FeedCluster, FeedInsight, FeedWriter, extractive_item
from highwater.connectors.models.chat import ModelError
from highwater.connectors.redis.link import RedisLink
from highwater.connectors.redis.resource_cache import TRUSTED_MS, Head
from highwater.schemas.errors import ConfigurationError, UnavailableError


@pytest.mark.requirement("R4.2")
@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (None, False),
        ("*", True),
        ('W/"feed-1"', True),
        ('"feed-1"', True),
        ('"x", W/"feed-1"', True),
        ('"a,b" ,"feed-1"', True),
        ('"feed-1", "x"', True),
        ('"feed-2"', False),
        ("feed-1", False),
        ('"feed-1', False),
        ('"feed-1" "x"', False),
        (', W/"feed-1"', True),
        ('"x",,"feed-1",', True),
        ('"x", ,', False),
        (",", False),
        ("", False),
    ],
)
def test_if_none_match_is_read_as_rfc_9110_says(field: str | None, expected: bool) -> None:
    """Lists, weak and strong forms and commas within quotes are compared weakly; a malformed list matches nothing."""
    assert is_match(field, "feed-1") is expected


def test_a_version_that_is_served_has_the_tag_of_its_bytes() -> None:
    """A client that has it is answered 304, with the same headers and no body."""
    version = Version("job", 7, "jobs.submitted/0/1")

    def served(*headers: tuple[bytes, bytes]) -> Response:
        request = Request({"type": "http", "headers": list(headers)})
        return answer_version(request, "job", {"status": "done"}, version, 0)

    first = served()
    etag = first.headers["etag"]
    assert (first.status_code, first.body) == (200, b'{"status":"done"}')
    assert etag.startswith('W/"job-7-')
    again = served((b"if-none-match", etag.encode()))
    assert (again.status_code, again.body, again.headers["etag"]) == (304, b"", etag)
    assert again.headers["x-caused-by"] == "jobs.submitted/0/1"


@pytest.mark.parametrize("identifier", ["a/b", "a%2Fb", "ü/日本", "a b", "..", "a?b#c", "a;b=c", "%", "+"])
def test_an_identifier_survives_its_way_through_a_path(identifier: str) -> None:
    """With any spelling of the percent-encoding, the segment decodes to the identifier."""
    segment = IdConvertor().to_string(identifier)
    path = canonical_path(f"/api/channels/{segment}".encode())
    assert path.count("/") == 3
    assert IdConvertor().convert(path.rpartition("/")[2]) == identifier
    assert canonical_path(b"/%61pi/x") == "/api/x"


def test_a_path_that_is_no_text_is_an_error() -> None:
    """Bytes that are not UTF-8 name no identifier."""
    with pytest.raises(UnprocessableError):
        canonical_path(b"/api/%ff")


def _request(**headers: str) -> Request:
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": fields, "method": "GET", "path": "/", "query_string": b""})


def test_the_highest_position_per_partition_counts() -> None:
    """A list of positions is folded to the highest offset of each partition."""
    text = "feeds.user-active/1/5, feeds.user-active/1/9,feeds.user-active/2/0"
    expected = {("feeds.user-active", 1): 9, ("feeds.user-active", 2): 0}
    assert min_positions(_request(x_min_position=text), {"feeds.user-active"}) == expected
    assert min_positions(_request(), {"feeds.user-active"}) == {}


@pytest.mark.parametrize("text", ["x", "feeds.user-active/1", "feeds.user-active/8/0", "streams.tick/0/0", "a/b/c"])
def test_positions_that_mean_nothing_here_are_refused(text: str) -> None:
    """Malformed positions, positions of another topic, and positions of a missing partition are refused."""
    with pytest.raises(BadRequestError):
        min_positions(_request(x_min_position=text), {"feeds.user-active"})


def test_the_wait_is_bounded() -> None:
    """The default is 2,000 ms, a client's own is taken up to 30 s, and anything but digits is refused."""
    assert max_wait_ms(_request()) == 2_000
    assert max_wait_ms(_request(x_max_wait_ms="0")) == 0
    assert max_wait_ms(_request(x_max_wait_ms="99999999999999")) == 30_000
    for text in ("-1", "1.5", "x", ""):
        with pytest.raises(BadRequestError):
            max_wait_ms(_request(x_max_wait_ms=text))


def test_accounted_for_means_past_the_offset() -> None:
    """An offset is accounted for when the next one to read is above it, and all must be."""
    place = ("users", "feeds.user-active", 0)
    assert not is_accounted_for({place: 5}, {place: 5})
    assert is_accounted_for({place: 5}, {place: 6})
    assert not is_accounted_for({place: 0}, {})


async def test_one_watcher_serves_all_and_rests_when_nobody_waits() -> None:
    """Many waiters share each question; when all are served nothing is asked any more."""
    place = ("users", "feeds.user-active", 0)
    questions: list[Sequence[tuple[str, str, int]]] = []

    async def read(asked: Sequence[tuple[str, str, int]]) -> Mapping[tuple[str, str, int], int]:
        questions.append(asked)
        return {place: 3 if len(questions) >= 3 else 0}

    watcher = PositionWatcher(read)
    assert await asyncio.gather(*(watcher.wait({place: 2}, 5_000) for _ in range(50))) == [True] * 50
    assert len(questions) == 3
    assert not await watcher.wait({place: 99}, 30)
    asked = len(questions)
    await asyncio.sleep(0.05)
    assert len(questions) <= asked + 1
    await watcher.close()


async def test_a_lost_database_is_told_to_every_waiter() -> None:
    """When positions cannot be read, waiting ends at once with the reason."""

    async def read(_asked: Sequence[tuple[str, str, int]]) -> Mapping[tuple[str, str, int], int]:
        raise UnavailableError("away")

    watcher = PositionWatcher(read)
    with pytest.raises(UnavailableError):
        await watcher.wait({("users", "t", 0): 1}, 5_000)


def test_cursors_come_back_as_they_were_and_others_are_refused() -> None:
    """A cursor keeps types and text; what this list did not give is a 400, also a text that no store takes."""
    assert decode_cursor(encode_cursor("ü/1"), str) == ("ü/1",)
    assert decode_cursor(encode_cursor(3, 7), int, int) == (3, 7)
    for text in ("zzz", "", encode_cursor(1), "é", encode_cursor("a", "b"), encode_cursor("a\0b")):
        with pytest.raises(BadRequestError):
            decode_cursor(text, str)


def test_the_id_of_a_change_is_the_place_of_the_whole_stream() -> None:
    """An id names a next offset a partition; a single position counts as well; anything else is refused."""
    assert parse_last_event_id(event_id({1: 5, 0: 12})) == {0: 12, 1: 5}
    assert parse_last_event_id("cache.version-bumped/3/7") == {3: 8}
    for text in ("x", "9:1", "streams.tick/0/0", "0:1,", "-1:2"):
        with pytest.raises(BadRequestError):
            parse_last_event_id(text)


def test_keys_are_read_and_never_shown() -> None:
    """`role:key[:user[:organization]]`; a malformed entry is named by its place, without the key."""
    keys = parse_api_keys("viewer:a, admin:b:bob,editor:c:ann:acme,viewer:d::acme")
    expected = [
        (b"a", Principal(Role.VIEWER)),
        (b"b", Principal(Role.ADMIN, "bob")),
        (b"c", Principal(Role.EDITOR, "ann", organization_id="acme")),
        (b"d", Principal(Role.VIEWER, organization_id="acme")),
    ]
    assert [(key.secret, key.principal) for key in keys] == expected
    assert parse_api_keys(None) == ()
    for text in (
        "secret",
        "king:secret",
        "viewer:",
        "viewer:secret:",
        "viewer:secret:ann:",
        "viewer:secret::",
        "viewer:hws_x",
        ",",
    ):
        with pytest.raises(ConfigurationError) as caught:
            parse_api_keys(text)
        assert "secret" not in str(caught.value)


def test_an_open_api_stays_on_loopback() -> None:
    """Without keys only loopback addresses are served; with keys any."""
    for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9"):
        refuse_public_address_without_keys(host, ())
    for host in ("0.0.0.0", "10.0.0.1", "example.org", "", "::"):
        with pytest.raises(ConfigurationError):
            refuse_public_address_without_keys(host, ())
    refuse_public_address_without_keys("0.0.0.0", parse_api_keys("admin:x"))


async def test_a_token_is_a_key_or_a_session_or_nothing() -> None:
    """Keys by value, sessions by prefix, and no token only where no keys are set."""

    async def session(token: str) -> Principal | None:
        return Principal(Role.VIEWER, "sue", token) if token == "hws_1" else None

    guarded = Authenticator(parse_api_keys("editor:k"), session)
    assert (await guarded.principal("Bearer k")).role is Role.EDITOR
    assert (await guarded.principal("bearer hws_1")).user_id == "sue"
    for field in (None, "", "Bearer", "Bearer x", "Basic k", "Bearer hws_2", "k"):
        with pytest.raises(UnauthorizedError):
            await guarded.principal(field)
    assert (await Authenticator((), session).principal(None)).role is Role.ADMIN


async def test_without_redis_a_process_tells_activity_once_in_five_minutes_by_itself() -> None:
    """The bound holds in one process alone, per user, by the product's clock; a failed telling is tried again."""
    told: list[tuple[str, int]] = []
    now = [1_000_000]

    async def publish(user_id: str, now_ms: int) -> None:
        if user_id == "bad" and len(told) < 3:
            raise UnavailableError("away")
        told.append((user_id, now_ms))

    notes = ActivityNotes(lambda: now[0], RedisLink(None), publish)

    async def read(user_id: str) -> None:
        notes.note(Principal(Role.VIEWER, user_id))
        await notes.close()

    for user_id in ("ada", "ada", "bob", "ada"):
        await read(user_id)
    notes.note(Principal(Role.ADMIN))
    now[0] += 300_000
    await read("bad")
    await read("ada")
    await read("bad")
    assert told == [("ada", 1_000_000), ("bob", 1_000_000), ("ada", 1_300_000), ("bad", 1_300_000)]


def test_an_entry_is_trusted_for_two_seconds_and_never_from_the_future() -> None:
    """The bound on an old version, also under a clock that is moved back."""
    head = Head(1, "e", "", checked_ms=10_000)
    assert head.is_trusted(10_000)
    assert head.is_trusted(10_000 + TRUSTED_MS)
    assert not head.is_trusted(10_001 + TRUSTED_MS)
    assert not head.is_trusted(9_999)


class _Model:
    def __init__(self, answer: dict[str, object]) -> None:
        self.answer = answer

    async def object_for(self, _system: str, _user: str) -> dict[str, object]:
        return self.answer


def _cluster(name: str) -> FeedCluster:
    insight = FeedInsight(f"i-{name}", "c", 0, f"text of {name}", None, is_representative=True)
    return _feed_cluster(name, 1, (insight,))


def _feed_cluster(name: str, size: int, insights: tuple[FeedInsight, ...]) -> FeedCluster:
    return FeedCluster(
        cluster_id=name,
        label=f"label {name}",
        keywords=("k",),
        theme="",
        size=size,
        insights=insights,
        since={f"i-{name}": 1},
        arrived=(1,),
        born_version=1,
        changed_version=1,
        position=None,
        title=f"label {name}",
        summary="",
        written_version=0,
    )


async def test_a_feed_without_a_model_is_a_function_of_its_clusters() -> None:
    """The same clusters give the same items."""
    clusters = [_cluster("a"), _cluster("b")]
    items = await FeedWriter(None).items(clusters)
    assert items == await FeedWriter(None).items(clusters)
    assert items[0]["title"] == "label a"
    assert items[0]["summary"] == "text of a"


def test_a_cluster_whose_insights_are_all_gone_still_has_an_item() -> None:
    """Nothing to show is shown as nothing."""
    item = extractive_item(_feed_cluster("a", 3, ()))
    assert (item["representative"], item["insights"], item["summary"]) == (None, [], "")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"items": {}},
        {"items": []},
        {"items": ["a"]},
        {"items": [{"cluster_id": "a", "title": "t", "summary": "s"}]},
        {"items": [{"cluster_id": "a", "title": "t", "summary": "s"}] * 2},
        {"items": [{"cluster_id": c, "title": "t", "summary": ""} for c in "ab"]},
        {"items": [{"cluster_id": c, "title": 1, "summary": "s"} for c in "ab"]},
        {"items": [{"cluster_id": c, "title": "t", "summary": "s"} for c in "abc"]},
        {"items": [{"cluster_id": c, "title": "t" * 500, "summary": "s"} for c in "ab"]},
    ],
)
async def test_an_answer_counts_only_when_it_speaks_of_every_cluster(answer: dict[str, object]) -> None:
    """Missing, repeated, unknown or empty items are an error, never half a feed."""
    with pytest.raises(ModelError):
        await FeedWriter(_Model(answer)).items([_cluster("a"), _cluster("b")])  # type: ignore[arg-type]
