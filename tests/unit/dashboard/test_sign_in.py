"""Signing in: a cookie that stands for a key and does not hold it."""

from __future__ import annotations

import httpx2
import pytest

from highwater.api.core.auth import Authenticator, Principal, Role, parse_api_keys
from highwater.api.dashboard.sign_in import COOKIE, OF_CALLER_MAX, SECONDS_MAX, VISITORS_MAX, SignIn
from highwater.streams.clock import monotonic_seconds


async def no_session(_token: str) -> None:
    """There are none."""


@pytest.fixture
def sign_in() -> SignIn:
    """The sign-in with two keys."""
    authenticator = Authenticator(parse_api_keys("viewer:look-key:ada,admin:do-key"), no_session)
    return SignIn(lambda: authenticator)


def client(sign_in: SignIn) -> httpx2.AsyncClient:
    """A browser before it."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(sign_in), base_url="http://t")


async def test_a_key_opens_and_the_cookie_does_not_hold_it(sign_in):
    """HttpOnly and strict, so that no script and no other site uses it."""
    async with client(sign_in) as browser:
        answer = await browser.post("/login?next=/topics", data={"key": "do-key"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics")
    cookie = answer.headers["set-cookie"]
    assert "do-key" not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


async def test_a_wrong_key_does_not(sign_in):
    """The page says so, and sets no cookie."""
    async with client(sign_in) as browser:
        answer = await browser.post("/login", data={"key": "guess"})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "not valid" in answer.text


@pytest.mark.parametrize(
    "wanted", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
async def test_it_leads_to_pages_of_ours_only(sign_in, wanted):
    """A link to the form redirects to no other site."""
    async with client(sign_in) as browser:
        answer = await browser.post("/login", params={"next": wanted}, data={"key": "do-key"})
    assert answer.headers["location"] == "/"


async def test_signing_out_forgets_the_key(sign_in):
    """The cookie has no key after it."""
    async with client(sign_in) as browser:
        await browser.post("/login", data={"key": "do-key"})
        assert browser.cookies.get(COOKIE) in sign_in._visits
        await browser.get("/logout")
    assert dict(sign_in._visits) == {}


async def test_browsers_that_are_remembered_are_bounded(sign_in):
    """A caller with many is asked again where it signed in first, and nobody else; then the oldest of all."""
    other = sign_in._remember("Bearer other", Principal(Role.ADMIN, key_id="other"))
    first, *_ = [sign_in._remember("Bearer x", Principal(Role.VIEWER, user_id="ada")) for _ in range(VISITORS_MAX)]
    assert len(sign_in._visits) == OF_CALLER_MAX + 1
    assert (other in sign_in._visits, first in sign_in._visits) == (True, False)
    for number in range(VISITORS_MAX):
        sign_in._remember("Bearer y", Principal(Role.VIEWER, user_id=f"user-{number}"))
    assert len(sign_in._visits) == VISITORS_MAX


async def test_a_cookie_ends_after_its_time(sign_in, monkeypatch):
    """Also in a browser that keeps it."""
    async with client(sign_in) as browser:
        await browser.post("/login", data={"key": "do-key"})
        cookie = browser.cookies.get(COOKIE)
    assert sign_in._authorization(cookie) is not None
    now = monotonic_seconds()
    monkeypatch.setattr("highwater.api.dashboard.sign_in.monotonic_seconds", lambda: now + SECONDS_MAX)
    assert sign_in._authorization(cookie) is None
    assert cookie not in sign_in._visits
