"""Which certificates clients of services trust: those of the public authorities, which take 20 ms to load, only with TLS."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import httpx2
import pytest

from highwater.connectors.models.chat_service import ChatEndpoint
from highwater.connectors.models.reranker import RerankingService


@pytest.mark.parametrize(
    "client",
    [lambda url: ChatEndpoint(url, None, seconds_max=1.0), lambda url: RerankingService(url, None, None)],
    ids=["chat", "reranking"],
)
@pytest.mark.parametrize(("scheme", "is_loaded"), [("http", False), ("https", True)])
def test_authorities_are_loaded_for_tls_alone(
    client: Callable[[str], object], scheme: str, is_loaded: bool, monkeypatch: pytest.MonkeyPatch
):
    """A client of a plain address, in each process of a role, reads no list of authorities; one over TLS does."""
    httpx2._transports.default.create_ssl_context.cache_clear()  # of tests before this one (tests/conftest.py)
    loaded: list[str] = []
    load = ssl.SSLContext.load_verify_locations

    def noted(context: ssl.SSLContext, cafile: str | None = None, *more: object, **named: object) -> None:
        loaded.append(str(cafile))
        load(context, cafile, *more, **named)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", noted)
    client(f"{scheme}://127.0.0.1:9")
    assert bool(loaded) is is_loaded
