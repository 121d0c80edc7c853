"""The API over TLS, alone and behind a proxy: which clients trust it, the headers for browsers, and which proxy is believed."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from highwater.api.app import serve
from highwater.api.client.client import Client
from highwater.api.command.connection import api_trust
from highwater.api.core.protocol import Limits
from highwater.api.core.tls import check_tls
from highwater.deploy.local.probes import probe_url
from highwater.schemas.errors import ConfigurationError, UnavailableError
from highwater.streams.settings import Settings
from tests.integration.api_server import running_api
from tests.integration.core.certificates import Authority
from tests.integration.core.test_connections import serving

KEYS = "admin:root-key"
SECRET = {"Authorization": "Bearer root-key"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that no other client knows."""
    return Authority(tmp_path_factory.mktemp("certificates"))


def encrypted(authority: Authority, *names: str) -> dict[str, Any]:
    """Settings of an API with a certificate for these names."""
    pair = authority.sign(*names)
    return {"HIGHWATER_TLS_CERT_FILE": pair.certificate, "HIGHWATER_TLS_KEY_FILE": pair.key}


async def test_the_api_speaks_tls(authority: Authority, own_settings):
    """Clients trust it by its authority only; cookies are `Secure`; browsers get `Strict-Transport-Security`."""
    settings = own_settings(HIGHWATER_API_KEYS=KEYS, **encrypted(authority, "hw.example", "localhost"))
    with running_api(settings, is_awaited=False) as api:
        port = api.url.rsplit(":", 1)[1]
        trust = ssl.create_default_context(cafile=str(authority.file))
        async with httpx2.AsyncClient(base_url=f"https://localhost:{port}", verify=trust) as http:
            answer = await http.post("/login", data={"key": "root-key"}, headers={"Host": "hw.example"})
            assert (answer.status_code, "Secure" in answer.headers["set-cookie"]) == (303, True)
            assert "strict-transport-security" in answer.headers
            assert (await http.get("/healthz")).status_code == 200
        for wrong in (f"https://127.0.0.1:{port}", f"http://localhost:{port}"):
            async with httpx2.AsyncClient(base_url=wrong, verify=trust) as http:
                with pytest.raises(httpx2.TransportError):
                    await http.get("/healthz")


def test_clients_name_an_authority(authority: Authority, own_settings, tmp_path: Path):
    """The Python client by `ca_file`; without it no server is trusted. A command trusts the certificate of its own settings."""
    other = encrypted(authority, "elsewhere")["HIGHWATER_TLS_CERT_FILE"]
    settings = own_settings(**encrypted(authority, "127.0.0.1"))
    with running_api(settings, is_awaited=False) as api:
        url = api.url.replace("http:", "https:")
        with Client(url, ca_file=authority.file, data_dir=tmp_path) as hw:
            assert hw.document("/healthz") == {"status": "alive"}
        with Client(url, data_dir=tmp_path) as hw, pytest.raises(UnavailableError, match=r"(?i)certificate"):
            hw.document("/healthz")
        assert httpx2.get(f"{url}/healthz", verify=api_trust(settings, url)).status_code == 200
        assert probe_url(f"{url}/healthz", 5, str(settings.tls_cert_file)) is None
        assert "CERTIFICATE_VERIFY_FAILED" in str(probe_url(f"{url}/healthz", 5, str(other)))


def test_a_handshake_that_never_ends_ends(authority: Authority, monkeypatch: pytest.MonkeyPatch):
    """A client that connects and stays silent is disconnected before the HTTP protocol begins."""
    monkeypatch.setattr("highwater.api.core.protocol.TLS_HANDSHAKE_SECONDS", 1.0)
    pair = authority.sign("localhost")
    with serving(Settings(tls_cert_file=pair.certificate, tls_key_file=pair.key), Limits()) as served:
        began = time.monotonic()
        with served.open(b"\x16\x03\x01") as connection:
            assert connection.recv(1) == b""
        assert 1.0 <= time.monotonic() - began < 10.0
        trust = ssl.create_default_context(cafile=str(authority.file))
        plain = socket.create_connection(("127.0.0.1", served.port), timeout=20)
        with trust.wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("given", [("cert",), ("key",), ("cert", "other"), ("missing", "key")])
def test_a_certificate_that_cannot_be_used_stops_the_program(authority: Authority, given: tuple[str, ...]):
    """Without its key, with another's, or missing: one line that names the settings."""
    pair = authority.sign("localhost")
    files = {"cert": pair.certificate, "key": pair.key, "other": authority.sign("other").key, "missing": Path("/none")}
    certificate = next((files[name] for name in given if name in ("cert", "missing")), None)
    key = next((files[name] for name in given if name in ("key", "other")), None)
    settings = Settings(tls_cert_file=certificate, tls_key_file=key)
    for check in (check_tls, serve):
        with pytest.raises(ConfigurationError, match="HIGHWATER_TLS_CERT_FILE"):
            check(settings)


@pytest.mark.parametrize(("proxies", "is_believed"), [("127.0.0.0/8", True), ("192.0.2.1", False)])
async def test_behind_a_proxy(own_settings, proxies: str, is_believed: bool):
    """A named proxy speaks for its client: address, scheme and host; what anybody else writes there is nothing."""
    settings = own_settings(HIGHWATER_API_KEYS=KEYS, HIGHWATER_TRUSTED_PROXIES=proxies)
    told = {"X-Forwarded-For": "198.51.100.7", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "hw.example"}
    with running_api(settings, is_awaited=False) as api:
        async with httpx2.AsyncClient(base_url=api.url) as http:
            site = {"Origin": "https://hw.example", "Sec-Fetch-Site": "same-origin"}
            answer = await http.post("/login", data={"key": "root-key"}, headers={**told, **site})
            assert answer.status_code == (303 if is_believed else 403)
            if is_believed:
                assert "Secure" in answer.headers["set-cookie"]
            assert ("strict-transport-security" in answer.headers) == is_believed
            wrong = {**told, "Authorization": "Bearer guess"}
            found = [(await http.get("/api/ads", headers=wrong)).status_code for _ in range(11)]
            assert found == [401] * 10 + [429]
            # The address that was counted is the one that is believed.
            other = {**wrong, "X-Forwarded-For": "198.51.100.8"}
            assert (await http.get("/api/ads", headers=other)).status_code == (401 if is_believed else 429)


async def test_wrong_keys_slow_down(own_settings):
    """On every path of the API and at the sign-in together; a right key that is in use is answered all the while."""
    with running_api(own_settings(HIGHWATER_API_KEYS=KEYS)) as api:
        async with httpx2.AsyncClient(base_url=api.url) as http:
            for path in ("/api/ads", "/api/leaderboard"):
                assert (await http.get(path, headers=SECRET)).status_code == 200
            paths = ("/api/ads", "/api/channels/x", "/api/users/x/feed", "/api/leaderboard", "/api/matches/live") * 2
            found = [
                (await http.get(path, headers={"Authorization": f"Bearer guess-{number}"})).status_code
                for number, path in enumerate(paths)
            ]
            assert found == [401] * 10
            refused = await http.get("/api/ads", headers={"Authorization": "Bearer guess"})
            assert (refused.status_code, 1 <= int(refused.headers["retry-after"]) <= 60) == (429, True)
            assert (await http.post("/login", data={"key": "guess"})).status_code == 429
            assert (await http.get("/api/ads", headers=SECRET)).status_code == 200
            assert (await http.get("/healthz")).status_code == 200
