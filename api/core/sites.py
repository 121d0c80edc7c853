"""Which sites may send requests: the host names that the API answers to, and the pages that may write to it.

Invariants. Without API keys every caller is an admin, so the API answers only to loopback names (a page whose own name
resolves to this machine is refused, 421), and accepts no write, no socket and no costly read from a page of another
site (403); a link to one of our pages is followed. With
keys the same applies wherever a browser signs in by itself, by the cookie of the dashboard. A page that sends a key
does so deliberately, and is judged by the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from highwater.schemas.errors import ConfigurationError

# RFC 9110, section 9.2.1: these methods change nothing. TRACE is not served.
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Values for requests that no page of another origin made (Fetch Metadata, section 2.3).
_OWN_FETCHES = frozenset({"", "none", "same-origin"})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HTTPS = ("https", "wss")

_NOT_LOCAL = (
    "an API without keys answers to localhost, 127.0.0.0/8 and [::1] only; for other names set HIGHWATER_API_KEYS first"
)
_FOREIGN = "a page of another site may not do this; HIGHWATER_ALLOWED_ORIGINS names those that may"


class Refusal(NamedTuple):
    """The reason why a request is not served."""

    status: HTTPStatus
    detail: str
    field: str | None = None


class Asking(NamedTuple):
    """What a request reveals about its origin; an empty text for a field that was not sent."""

    hosts: Sequence[str]  # several values are malformed, and each must match
    origin: str
    fetch_site: str
    scheme: str


class Sites:
    """The rules of one API."""

    def __init__(self, *, is_open: bool, allowed_origins: Iterable[str] = ()) -> None:
        self.is_open = is_open
        self.allowed = frozenset(allowed_origins)

    def misdirected(self, hosts: Sequence[str]) -> Refusal | None:
        """Refuse a host name that is not ours. A request without one is not from a browser, and is served."""
        if self.is_open and not all(is_loopback_host(host) for host in hosts):
            return Refusal(HTTPStatus.MISDIRECTED_REQUEST, _NOT_LOCAL)
        return None

    def foreign(self, asking: Asking) -> Refusal | None:
        """Refuse a write or a socket that a page of another site requests in its visitor's name."""
        if asking.origin in self.allowed:
            return None
        is_own = self._is_own(asking) if asking.origin else asking.fetch_site in _OWN_FETCHES
        return None if is_own else Refusal(HTTPStatus.FORBIDDEN, _FOREIGN)

    def foreign_read(self, origin: str) -> Refusal | None:
        """Refuse a read by a page of another site whose answer has to be computed."""
        return None if origin in self.allowed else Refusal(HTTPStatus.FORBIDDEN, _FOREIGN)

    def _is_own(self, asking: Asking) -> bool:
        parts = _origin_parts(asking.origin)
        if parts is None:  # `null` too: a sandboxed frame, a file
            return False
        scheme, host, _ = parts
        if asking.scheme in _HTTPS and scheme != "https":
            return False  # an unencrypted page may have been forged
        if self.is_open and is_loopback_name(host):
            return True  # an API without keys belongs to this machine; so do pages that this machine serves
        is_same = any(_is_same(parts, name) for name in asking.hosts)
        return is_same and asking.fetch_site in _OWN_FETCHES


@lru_cache(256)
def is_loopback_host(host: str) -> bool:
    """Return whether a `Host` field names only this machine, with or without a port."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return False
    is_plain = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    return is_plain and is_loopback_name(parts.hostname or "")


def is_loopback_name(name: str) -> bool:
    """Return whether a name is `localhost` or a loopback address."""
    if name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _origin_parts(origin: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an `Origin` field; None: it is opaque or malformed."""
    try:
        parts = urlsplit(origin)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    is_plain = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    if not is_plain or port is None or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port


def _is_same(origin: tuple[str, str, int], host: str) -> bool:
    """Return whether a `Host` field names the host and port of an origin; without a port, the default of the origin's
    scheme applies.
    """
    scheme, name, port = origin
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname, parts.port or _DEFAULT_PORTS.get(scheme)) == (name, port)
    except ValueError:
        return False


def parse_origins(names: Sequence[str]) -> frozenset[str]:
    """Parse the origins in a setting, as browsers write them.

    Raises:
        ConfigurationError: one is not an origin (`https://name` or `http://name:port`).
    """
    found = set()
    for name in names:
        parts = _origin_parts(name.rstrip("/"))
        if parts is None or parts[0] not in _DEFAULT_PORTS:
            raise ConfigurationError(
                f"HIGHWATER_ALLOWED_ORIGINS: {name!r} is not an origin such as https://app.example.com"
            )
        scheme, host, port = parts
        host = f"[{host}]" if ":" in host else host
        found.add(f"{scheme}://{host}" if port == _DEFAULT_PORTS[scheme] else f"{scheme}://{host}:{port}")
    return frozenset(found)
