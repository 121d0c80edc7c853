"""Reads `X-Forwarded-For`, `-Proto` and `-Host`, and trusts them only from proxies that the settings name.

Invariants. Only what the trusted proxies wrote counts, never what a client wrote before them. Code that needs an
address, a scheme or a host reads the scope of the request, which holds the resolved values: limits, attempts, sessions,
cookies, logs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeAlias

from starlette.types import Scope

from highwater.schemas.errors import ConfigurationError

Address: TypeAlias = IPv4Address | IPv6Address
Networks: TypeAlias = tuple[IPv4Network | IPv6Network, ...]

_FOR, _PROTO, _HOST = b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"
_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_SOCKET_SCHEMES = {"http": "ws", "https": "wss"}
# RFC 3986 host and port, as a `Host` field has them.
_HOST_FORM = re.compile(r"(?:[A-Za-z0-9._~%!$&'()*+,;=-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)


def parse_networks(names: Sequence[str]) -> Networks:
    """Parse addresses and networks of a setting.

    Raises:
        ConfigurationError: one is neither.
    """
    try:
        return tuple(ip_network(name, strict=False) for name in names)
    except ValueError as error:
        raise ConfigurationError(f"HIGHWATER_TRUSTED_PROXIES: {error}") from error


def client_address(peer: str, forwarded: Sequence[str], trusted: Networks) -> str:
    """Return the client's address: the last address that is not a trusted proxy's.

    Args:
        peer: the other end of the connection.
        forwarded: the fields `X-Forwarded-For` in their order; each proxy appends the address of its caller.
        trusted: the trusted proxies.

    A value that is not an address ends the search: the proxy that passed it on counts as the client. If every hop is
    trusted, the first one counts.
    """
    return _walk(peer, forwarded, trusted)[0]


def _walk(peer: str, forwarded: Sequence[str], trusted: Networks) -> tuple[str, int]:
    """Return the address of the client, and the number of trusted proxies before it."""
    found = _address(peer)
    if found is None or not trusted or not _is_within(found, trusted):
        return (peer if found is None else str(found)), 0
    proxies = 1
    for hop in reversed(_listed(forwarded)):
        address = _address(hop)
        if address is None:
            break
        found = address
        if not _is_within(found, trusted):
            break
        proxies += 1
    return str(found), proxies


@lru_cache(1024)
def is_trusted(peer: str, trusted: Networks) -> bool:
    """Return whether the other end of a connection is a trusted proxy."""
    found = _address(peer)
    return found is not None and _is_within(found, trusted)


def scope_behind_proxies(scope: Scope, trusted: Networks) -> Scope:
    """Return the scope of a request with the client, scheme and host that trusted proxies name; unchanged without
    proxies.
    """
    client = scope.get("client")
    if not trusted or client is None or not is_trusted(client[0], trusted):
        return scope
    given: dict[bytes, list[str]] = {_FOR: [], _PROTO: [], _HOST: []}
    for name, value in scope["headers"]:
        if name in given:
            given[name].append(value.decode("latin-1"))
    address, proxies = _walk(client[0], given[_FOR], trusted)
    # The port of the connection is the proxy's; that of the client is unknown.
    seen: dict[str, Any] = {**scope, "client": (address, client[1] if address == client[0] else 0)}
    scheme = _SCHEMES.get(_outermost(given[_PROTO], proxies).lower())
    if scheme is not None:
        seen["scheme"] = _SOCKET_SCHEMES[scheme] if scope["type"] == "websocket" else scheme
    host = _outermost(given[_HOST], proxies)
    if _HOST_FORM.fullmatch(host):
        others = [field for field in scope["headers"] if field[0] != b"host"]
        seen["headers"] = [(b"host", host.encode("latin-1")), *others]
    return seen


def _outermost(fields: Sequence[str], proxies: int) -> str:
    """Return what the trusted proxy nearest to the client wrote: each proxy appends one element, or replaces the list
    by one.
    """
    listed = _listed(fields)
    return listed[-min(proxies, len(listed))] if listed and proxies else ""


def _listed(fields: Sequence[str]) -> list[str]:
    return [element.strip() for field in fields for element in field.split(",")]


def _is_within(address: Address, networks: Networks) -> bool:
    return any(address in network for network in networks)


def _address(text: str) -> Address | None:
    """Parse an address, with or without a port; IPv4-mapped IPv6 addresses become IPv4."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def address_of(scope: Scope) -> str:
    """Return the address of the client in canonical form; empty if there is none."""
    client = scope.get("client")
    return _spelled(client[0]) if client else ""


@lru_cache(1024)
def _spelled(text: str) -> str:
    found = _address(text)
    return text if found is None else str(found)
