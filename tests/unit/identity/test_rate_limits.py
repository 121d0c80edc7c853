"""The limit of a minute: the minute of a time, and until when a caller is refused (R2.27 to R2.30)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.api.core.auth import key_id_of, parse_api_keys
from highwater.api.core.rate_limits import _Judged, limit_headers
from highwater.connectors.identity.rate_limits import _Counted, _tell
from highwater.streams.identity.rate_limits import WINDOW_SECONDS, Verdict, decide, minute_of

# From 1970 to 2100.
TIMES = st.integers(0, 4_102_444_800_000)
WINDOW_MS = WINDOW_SECONDS * 1000


@pytest.mark.requirement("R2.27")
@pytest.mark.parametrize(
    ("now_ms", "minute"),
    [
        (0, "197001010000"),
        (59_999, "197001010000"),
        (60_000, "197001010001"),
        (1_700_000_000_000, "202311142213"),
        (1_709_251_199_999, "202402292359"),
        (1_709_251_200_000, "202403010000"),
    ],
)
def test_a_minute_is_one_of_utc(now_ms: int, minute: str):
    """R2.27 writes it `YYYYmmddHHMM`; its last millisecond is still of it."""
    assert minute == minute_of(now_ms)


@given(TIMES)
def test_a_refused_one_comes_back_in_the_next_minute_and_no_sooner(now_ms: int):
    """After the seconds that a refusal says, the minute is another one; a second earlier it is the same."""
    wait_ms = decide(2, 1, now_ms).reset_seconds * 1000
    assert 1_000 <= wait_ms <= WINDOW_MS
    assert minute_of(now_ms) != minute_of(now_ms + wait_ms)
    assert minute_of(now_ms) == minute_of(now_ms + wait_ms - 1_000)


@pytest.mark.requirement("R2.28")
@given(st.integers(1, 1_000), st.integers(1, 2_000), TIMES)
def test_as_many_as_the_limit_are_allowed(limit: int, count: int, now_ms: int):
    """The number alone decides, and the reported rest is allowed."""
    verdict = decide(count, limit, now_ms)
    assert verdict.is_allowed is (count <= limit)
    assert verdict.remaining == len([n for n in range(count + 1, limit + 1) if decide(n, limit, now_ms).is_allowed])


@given(st.integers(1, 50), st.lists(TIMES, max_size=200))
def test_no_minute_allows_more_than_the_limit(limit: int, times: list[int]):
    """Counted by minute, in any order of arrival, each minute allows at most its limit, and no fewer."""
    counts: dict[str, int] = {}
    allowed: dict[str, int] = {}
    for now_ms in times:
        minute = minute_of(now_ms)
        counts[minute] = counts.get(minute, 0) + 1
        allowed[minute] = allowed.get(minute, 0) + decide(counts[minute], limit, now_ms).is_allowed
    assert {minute: min(count, limit) for minute, count in counts.items()} == allowed


def test_headers_tell_all_limits_and_the_older_ones_the_tightest():
    """draft-ietf-httpapi-ratelimit-headers has one item a policy; `X-RateLimit-*` know one limit."""
    judged = [_Judged("key", 60, Verdict(True, 12, 30)), _Judged("user", 10, Verdict(True, 3, 30))]
    assert limit_headers(judged) == {
        "RateLimit-Policy": '"key";q=60;w=60, "user";q=10;w=60',
        "RateLimit": '"key";r=12;t=30, "user";r=3;t=30',
        "X-RateLimit-Limit": "10",
        "X-RateLimit-Remaining": "3",
    }


def test_an_api_key_is_counted_by_a_hash():
    """Two keys have two ids, in neither of which the key stands; the ids do not make two principals of one."""
    one, two = parse_api_keys("viewer:first-secret,viewer:second-secret")
    assert one.principal.key_id == key_id_of(b"first-secret") != two.principal.key_id
    assert "first" not in str(one.principal)
    assert one.principal == two.principal


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from(["u", "v", None])), max_size=30),
    st.dictionaries(st.sampled_from(["a", "b", "user:u", "user:v"]), st.integers(0, 1_000)),
)
async def test_counted_together_is_counted_one_by_one(asked: list[tuple[str | None, str | None]], held: dict[str, int]):
    """Each caller in a shared round trip gets the number that its own INCR, in the order of arrival, would have returned."""
    loop = asyncio.get_running_loop()
    waiting = [_Counted(key, user and f"user:{user}", None, None, loop.create_future()) for key, user in asked]
    expected, numbers = [], Counter(held)
    for one in waiting:
        numbers.update(one.counters)
        expected.append((one.of_key and numbers[one.of_key], one.of_user and numbers[one.of_user]))
    times = Counter(name for one in waiting for name in one.counters)
    _tell(waiting, times, {name: numbers[name] for name in times}, {})
    assert expected == [one.future.result()[:2] for one in waiting]
