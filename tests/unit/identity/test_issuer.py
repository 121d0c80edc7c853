"""An OpenID provider's keys: fetched within limits, kept over its outage, asked for again when a key is new."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import orjson
import pytest
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from highwater.connectors.identity.issuer import (
    KEYS_MAX,
    KEYS_SECONDS_MAX,
    REFRESH_SECONDS,
    RETRY_SECONDS,
    ClientCredentials,
    CodeRefusedError,
    Fetch,
    Issuer,
    IssuerUnavailableError,
    check_address,
    decide_fetch,
    read_keys,
    read_provider,
)
from highwater.schemas.errors import ConfigurationError

URL = "https://id.example.org/realm"
FIRST, SECOND = (ECKey.generate_key("P-256", {"kid": name}) for name in ("first", "second"))
METADATA: dict[str, Any] = {
    "issuer": URL,
    "authorization_endpoint": f"{URL}/authorize",
    "token_endpoint": f"{URL}/token",
    "jwks_uri": f"{URL}/keys",
    "token_endpoint_auth_methods_supported": ["client_secret_post"],
}


class Provider:
    """A provider that a test takes away, and whose keys it changes."""

    def __init__(self) -> None:
        self.keys = [FIRST]
        self.asked: list[str] = []
        self.answer: Callable[[httpx2.Request], httpx2.Response] | None = None
        self.now = 1_000.0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        """Answer one request."""
        self.asked.append(request.url.path)
        if self.answer is not None:
            return self.answer(request)
        if request.url.path.endswith("/.well-known/openid-configuration"):
            return httpx2.Response(200, json=METADATA)
        return httpx2.Response(200, json=KeySet(list(self.keys)).as_dict(private=False))

    def issuer(self) -> Issuer:
        """A client of it, on the test's clock."""
        return Issuer(URL, httpx2.MockTransport(self), lambda: self.now)


@pytest.fixture
def provider() -> Provider:
    """A provider with one key."""
    return Provider()


def gone(request: httpx2.Request) -> httpx2.Response:
    """No answer."""
    raise httpx2.ConnectError("refused", request=request)


async def settled(issuer: Issuer) -> None:
    """Wait for a fetch that is in progress."""
    if issuer._fetching is not None:
        await issuer._fetching


@pytest.mark.parametrize(
    ("has_key", "fetched", "tried", "expected"),
    [
        (False, None, None, Fetch.FIRST),
        (False, None, -1.0, Fetch.REFUSED),
        (False, None, -RETRY_SECONDS, Fetch.FIRST),
        (True, -1.0, -1.0, Fetch.NO),
        (True, -REFRESH_SECONDS, -REFRESH_SECONDS, Fetch.BESIDE),
        (True, -REFRESH_SECONDS, -1.0, Fetch.NO),
        (False, -1.0, -1.0, Fetch.REFUSED),
        (False, -RETRY_SECONDS, -RETRY_SECONDS, Fetch.FIRST),
        (True, -KEYS_SECONDS_MAX, -1.0, Fetch.REFUSED),
        (True, -KEYS_SECONDS_MAX, -RETRY_SECONDS, Fetch.FIRST),
    ],
)
def test_when_keys_are_fetched(has_key, fetched, tried, expected):
    """Before a token that needs it, beside one that does not, and never twice within `RETRY_SECONDS`."""
    assert decide_fetch(has_key=has_key, fetched=fetched, tried=tried, now=0.0) is expected


async def test_keys_are_fetched_once(provider):
    """Two requests for the first token, none for those after it."""
    issuer = provider.issuer()
    for _ in range(3):
        assert (await issuer.keys("first")).has("first")
    assert provider.asked == ["/realm/.well-known/openid-configuration", "/realm/keys"]


async def test_an_unknown_key_id_asks_again_but_not_more_often_than_allowed(provider):
    """A key that the provider has just begun to use is found; invented ones do not make us flood it."""
    issuer = provider.issuer()
    await issuer.keys("first")
    provider.keys = [FIRST, SECOND]
    for number in range(50):
        assert not (await issuer.keys(f"invented-{number}")).has("second")
    assert len(provider.asked) == 2
    provider.now += RETRY_SECONDS
    assert (await issuer.keys("second")).has("second")
    assert len(provider.asked) == 4


async def test_known_keys_outlive_the_provider_for_a_day(provider):
    """A token of a known key is accepted while the provider is unavailable; a day later old keys no longer admit a user."""
    issuer = provider.issuer()
    await issuer.keys("first")
    provider.answer = gone
    provider.now += KEYS_SECONDS_MAX - 1
    assert (await issuer.keys("first")).has("first")
    await settled(issuer)
    assert (await issuer.keys("first")).has("first")
    provider.now += RETRY_SECONDS
    with pytest.raises(IssuerUnavailableError, match="refused"):
        await issuer.keys("first")
    provider.answer = None
    provider.now += RETRY_SECONDS
    assert (await issuer.keys("first")).has("first")


async def test_a_withdrawn_key_is_forgotten(provider):
    """Ten minutes later at the latest, while the provider answers."""
    issuer = provider.issuer()
    await issuer.keys("first")
    provider.keys = [SECOND]
    provider.now += REFRESH_SECONDS
    assert (await issuer.keys("first")).has("first")
    await settled(issuer)
    assert not (await issuer.keys("first")).has("first")


def answers(status: int = 200, **more: Any) -> Callable[[httpx2.Request], httpx2.Response]:
    """A provider that always answers so."""
    return lambda _request: httpx2.Response(status, **more)


async def endless() -> AsyncIterator[bytes]:
    """A body without an end."""
    while True:
        yield b" " * 65_536


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (gone, "refused"),
        (answers(500), "500"),
        (answers(302, headers={"location": "https://elsewhere.example/"}), "302"),
        (lambda _: httpx2.Response(200, content=endless()), "longer than"),
        (answers(content=gzip.compress(b"{}"), headers={"content-encoding": "gzip"}), "compressed"),
        (answers(content=b"<html>"), "unexpected character"),
        (answers(content=b"[" * 100_000), "depth limit"),
        (answers(json={**METADATA, "issuer": "https://elsewhere.example"}), "does not name this issuer"),
        (answers(json={**METADATA, "jwks_uri": "http://id.example.org/keys"}), "not an https"),
        (answers(json={**METADATA, "jwks_uri": "file:///etc/passwd"}), "not an https"),
        (answers(json={**METADATA, "token_endpoint": "http://127.0.0.1:6379/"}), "not an https"),
        (answers(json={**METADATA, "token_endpoint": None}), "no token_endpoint"),
        (answers(json=METADATA), "no keys"),
    ],
)
async def test_an_answer_out_of_bounds_is_none(provider, answer, why):
    """Too long, compressed, redirected, of another issuer: nothing of it is taken, and the reason is given."""
    provider.answer = answer
    with pytest.raises(IssuerUnavailableError, match=why):
        await provider.issuer().keys("first")


def test_only_strong_public_signing_keys_are_taken():
    """A symmetric key, a short one, one for encryption and one that is malformed are left out; the others still count."""
    short = {"kty": "RSA", "kid": "short", "n": "x" * 171, "e": "AQAB"}
    encrypting = {**FIRST.as_dict(private=False), "use": "enc", "kid": "enc"}
    secret = OctKey.generate_key(256, {"kid": "oct"}).as_dict()
    broken = {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "broken"}
    listed = [7, {}, short, encrypting, secret, broken, {"kty": "AKP", "kid": "later"}, FIRST.as_dict(private=False)]
    assert [name for name, _ in read_keys({"keys": listed}).keys] == ["first"]
    long = RSAKey.generate_key(2048, {"kid": "long"}).as_dict(private=False)
    assert len(read_keys({"keys": [long] * (KEYS_MAX + 9)}).keys) == KEYS_MAX


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1/", "ftp://127.0.0.1/", "https://", "http://localhost.example/", "//[", "x"]
)
def test_an_address_is_https_or_loopback(url):
    """Tokens and codes never travel in the clear between machines."""
    for good in ("https://id.example.org", "http://localhost:9400", "http://127.0.0.1:1", "http://[::1]:1"):
        check_address("X", good)
    with pytest.raises(ConfigurationError, match=r"^X="):
        check_address("X", url)


async def test_a_code_is_exchanged_with_the_verifier_of_its_challenge(provider):
    """PKCE: the challenge in the address is the hash of the verifier that comes with the code (RFC 7636, section 4.6)."""
    sent: dict[str, list[str]] = {}

    def token(request: httpx2.Request) -> httpx2.Response:
        sent.update(parse_qs(request.content.decode()))
        return httpx2.Response(200, json={"access_token": "a", "token_type": "Bearer", "id_token": "t"})

    issuer, credentials, back = provider.issuer(), ClientCredentials("web", "s3cret"), "https://hw.example.org/back"
    found = await issuer.provider()
    async with issuer.oauth_client(credentials, found, back) as client:
        address, _ = client.create_authorization_url(found.authorization_endpoint, state="st", code_verifier="v" * 43)
    asked = parse_qs(urlsplit(address).query)
    provider.answer = token
    assert await issuer.exchange(credentials, back, "c0de", "v" * 43) == "t"
    digest = base64.urlsafe_b64encode(hashlib.sha256(sent["code_verifier"][0].encode()).digest()).rstrip(b"=").decode()
    assert (asked["code_challenge_method"], asked["code_challenge"]) == (["S256"], [digest])
    assert {name: sent[name] for name in ("code", "redirect_uri", "client_id", "client_secret")} == {
        "code": ["c0de"], "redirect_uri": [back], "client_id": ["web"], "client_secret": ["s3cret"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        (answers(400, json={"error": "invalid_grant"}), CodeRefusedError, "invalid_grant"),
        (answers(json={"access_token": "a", "token_type": "Bearer"}), CodeRefusedError, "no ID token"),
        (answers(503), IssuerUnavailableError, "503"),
        (answers(content=b"<html>"), IssuerUnavailableError, "https://id.example.org"),
        (answers(content=b"[" * 100_000), IssuerUnavailableError, "recursion"),
        (answers(json={"id_token": "t", "expires_in": [1]}), IssuerUnavailableError, "int"),
        (answers(content=b'{"id_token": "t", "expires_in": 1e400}'), IssuerUnavailableError, "infinity"),
        (lambda _: httpx2.Response(200, content=endless()), IssuerUnavailableError, "longer than"),
        (gone, IssuerUnavailableError, "refused"),
    ],
)
async def test_a_code_that_gives_no_token_signs_nobody_in(provider, answer, error, why):
    """Refused by the provider, or the provider is unavailable: two different things to say."""
    issuer = provider.issuer()
    await issuer.provider()
    provider.answer = answer
    with pytest.raises(error, match=why):
        await issuer.exchange(ClientCredentials("web", None), "https://hw.example.org/back", "c", "v")


def test_metadata_is_an_object():
    """A list is refused."""
    with pytest.raises(IssuerUnavailableError):
        read_provider(orjson.loads(b"[]"), URL)
