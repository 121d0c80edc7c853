"""People of a real OpenID provider: its tokens at the API, and the way through its form to the dashboard and out again."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from highwater.api.core.oidc import LEEWAY_SECONDS
from highwater.api.dashboard.sign_in import COOKIE
from highwater.streams.access import trusts_nobody
from tests.integration.api_server import Api, running_api, wait_until

PEOPLE = (
    {"sub": "ada", "roles": ["editor"], "org": "acme", "email": "ada@example.org"},
    {"sub": "root", "roles": ["admin"]},
    {"sub": "guest", "roles": ["visitor"]},
)
TOKEN_SECONDS = 3_600
# The first page loads the dashboard's library.
SECONDS = 60


@dataclass
class Provider:
    """A provider that runs as a program of its own."""

    url: str
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(30)

    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            return httpx2.get(f"{self.url}/.well-known/openid-configuration", verify=trusts_nobody()).status_code == 200
        except httpx2.TransportError:
            assert self.process.poll() is None
            return False

    def consent(self, url: str, **form: str) -> httpx2.Response:
        """Send its form as the asked user; without following the redirect."""
        return httpx2.post(url, data=form)

    def id_token(self, who: str, *, client_id: str = "highwater-web", issuer: str | None = None) -> str:
        """A token for a user, as another program that uses this provider gets it; `issuer` is how it addresses it."""
        base, back = issuer or self.url, "http://127.0.0.1/back"
        asked = {"client_id": client_id, "redirect_uri": back, "response_type": "code", "scope": "openid"}
        url = str(httpx2.URL(f"{base}/oauth2/authorize", params=asked))
        code = parse_qs(urlsplit(self.consent(url, sub=who).headers["location"]).query)["code"][0]
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": back, "client_id": client_id}
        answer = httpx2.post(f"{base}/oauth2/token", data={**form, "client_secret": "any"})
        token: str = answer.json()["id_token"]
        return token


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """The provider with its people."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    people = [word for person in PEOPLE for word in ("--user-claims", json.dumps(person))]
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), "-e", str(TOKEN_SECONDS), *people]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running = Provider(f"http://localhost:{port}", process)
    try:
        wait_until(running.is_up, "the provider answers")
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def api(own_settings, provider) -> Iterator[Api]:
    """An API whose people are the provider's."""
    named = {
        "HIGHWATER_OIDC_ISSUER": provider.url,
        "HIGHWATER_OIDC_CLIENT_ID": "highwater-web",
        "HIGHWATER_OIDC_CLIENT_SECRET": "s3cret",
        "HIGHWATER_OIDC_ORGANIZATION_CLAIM": "org",
    }
    with running_api(own_settings(**named)) as running:
        yield running


@pytest.fixture
def browser(api: Api) -> Iterator[httpx2.Client]:
    """A browser without cookies that is led nowhere by itself."""
    with httpx2.Client(base_url=api.url, timeout=SECONDS) as client:
        yield client


def begin(browser: httpx2.Client, wanted: str = "/") -> str:
    """Begin a sign-in; the provider's address that the browser is sent to."""
    answer = browser.get("/login/openid", params={"next": wanted})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def sign_in(browser: httpx2.Client, provider: Provider, who: str, wanted: str = "/") -> httpx2.Response:
    """All of it; the answer to the provider's redirect."""
    return browser.get(provider.consent(begin(browser, wanted), sub=who).headers["location"])


async def status_of(api: Api, token: str, path: str) -> int:
    """The answer to a read with this token."""
    return (await api.get(path, token)).status_code


async def test_a_token_of_the_provider_is_a_bearer_token(api: Api, provider: Provider) -> None:
    """It reads its user's resources only; a request without one is refused."""
    token = provider.id_token("ada")
    assert await status_of(api, token, "/api/users/ada/feed") == 200
    assert await status_of(api, token, "/api/users/bob/feed") == 403
    assert await status_of(api, provider.id_token("root"), "/api/users/bob/feed") == 200
    nobody = await api.get("/api/users/ada/feed")
    assert (nobody.status_code, nobody.headers["www-authenticate"]) == (401, 'Bearer realm="highwater"')


async def test_a_token_that_does_not_fit_is_refused(api: Api, provider: Provider) -> None:
    """Another client's, another issuer's, a changed one, one of a user without a role here: 401 with the reason."""
    head, payload, signature = provider.id_token("ada").split(".")
    by_address = provider.url.replace("localhost", "127.0.0.1")
    for token, why in (
        (provider.id_token("ada", client_id="another"), "aud"),
        (provider.id_token("ada", issuer=by_address), "iss"),
        (f"{head}.{payload[:-4]}AAAA.{signature}", "bad_signature"),
        (f"eyJhbGciOiJub25lIn0.{payload}.", "none"),
        (provider.id_token("guest"), "no role"),
    ):
        answer = await api.get("/api/users/ada/feed", token)
        assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
        assert why in answer.json()["detail"]
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]


async def test_a_token_ends_at_its_time(api: Api, provider: Provider) -> None:
    """An hour later, give or take the leeway."""
    token = provider.id_token("ada")
    try:
        api.clock.offset_ms += (TOKEN_SECONDS - LEEWAY_SECONDS) * 1000
        assert await status_of(api, token, "/api/users/ada/feed") == 200
        api.clock.offset_ms += 3 * LEEWAY_SECONDS * 1000
        assert await status_of(api, token, "/api/users/ada/feed") == 401
    finally:
        api.clock.offset_ms = 0


async def test_signing_in_makes_a_session_that_signing_out_ends(api: Api, provider: Provider, browser, redis) -> None:
    """The provider's form leads to the page that was wanted; the browser holds a cookie, no token; then nothing of it is left."""
    assert browser.get("/").headers["location"].startswith("/login")
    assert "/login/openid?next=%2Ftopics" in browser.get("/login?next=/topics").text
    landed = sign_in(browser, provider, "ada", "/topics?filter=a")
    assert landed.status_code == 200
    assert 'http-equiv="refresh" content="0;url=/topics?filter=a"' in landed.text
    assert set(browser.cookies) == {COOKIE}
    assert browser.get("/user").status_code == 200
    names = [name async for name in redis.scan_iter("session:*")]
    assert len(names) == 1
    held = await redis.hgetall(names[0])
    assert (held["user_id"], held["role"], held["organization_id"], held["email"]) == (
        "ada", "editor", "acme", "ada@example.org",
    )  # fmt: skip
    assert browser.get("/logout").headers["location"] == "/login"
    assert [name async for name in redis.scan_iter("session:*")] == []
    assert browser.get("/user").headers["location"].startswith("/login")


def test_an_answer_that_this_browser_did_not_ask_for_signs_nobody_in(api: Api, provider: Provider, browser) -> None:
    """Another user's code, a state of another attempt, the same answer twice: 401 and no cookie."""
    with httpx2.Client(base_url=api.url, timeout=SECONDS) as attacker:
        theirs = provider.consent(begin(attacker), sub="root").headers["location"]
    assert browser.get(theirs).status_code == 401
    begin(browser)
    refused = browser.get(theirs)
    assert (refused.status_code, COOKIE in browser.cookies) == (401, False)
    assert "did not begin this sign-in" in refused.text
    ours = provider.consent(begin(browser), sub="ada").headers["location"]
    attempt = dict(browser.cookies)
    assert browser.get(ours).status_code == 200
    browser.cookies = httpx2.Cookies(attempt)
    again = browser.get(ours)
    assert (again.status_code, "invalid_grant" in again.text) == (401, True)


def test_an_id_token_of_another_attempt_is_refused(provider: Provider, browser) -> None:
    """The nonce ties the token to the browser's attempt, for any injected code."""
    url = httpx2.URL(begin(browser))
    landed = browser.get(provider.consent(str(url.copy_set_param("nonce", "another")), sub="ada").headers["location"])
    assert (landed.status_code, COOKIE in browser.cookies) == (401, False)
    assert "another sign-in" in landed.text


def test_somebody_who_is_refused_is_told_so(provider: Provider, browser) -> None:
    """At the provider, or here for want of a role; no cookie of either."""
    denied = browser.get(provider.consent(begin(browser), action="deny").headers["location"])
    assert (denied.status_code, "did not begin" in denied.text or "access_denied" in denied.text) == (401, True)
    guest = sign_in(browser, provider, "guest")
    assert (guest.status_code, "no role" in guest.text, COOKIE in browser.cookies) == (401, True, False)


@pytest.mark.parametrize("wanted", ["https://evil.example/", "//evil.example", "/\t/evil.example", '/"><script>'])
def test_a_sign_in_leads_to_pages_of_ours_only(provider: Provider, browser, wanted: str) -> None:
    """A link to it redirects to no other site, and puts nothing into the page."""
    landed = sign_in(browser, provider, "ada", wanted)
    assert landed.status_code == 200
    assert "evil" not in landed.text
    assert "<script>" not in landed.text


# The last of the module, since it ends the module's provider.
async def test_the_providers_outage(api: Api, provider: Provider, own_settings, browser) -> None:
    """Tokens of known keys and sessions still work; a new sign-in, and an API that never loaded the keys, answer 503."""
    token = provider.id_token("ada")
    assert await status_of(api, token, "/api/users/ada/feed") == 200
    assert sign_in(browser, provider, "ada").status_code == 200
    code: Any = provider.consent(begin(browser), sub="ada").headers["location"]
    provider.stop()
    assert await status_of(api, token, "/api/users/ada/feed") == 200
    assert browser.get("/user").status_code == 200
    assert browser.get(code).status_code == 503
    named = {"HIGHWATER_OIDC_ISSUER": provider.url, "HIGHWATER_OIDC_CLIENT_ID": "highwater-web"}
    with running_api(own_settings(**named)) as other:
        answer = await other.get("/api/users/ada/feed", token)
        assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (503, True)
        assert (await other.get("/login/openid")).status_code == 503
        assert (await other.get("/healthz")).status_code == 200
