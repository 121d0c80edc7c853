"""Clients behind a proxy: which header fields are trusted, and from which addresses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.api.core.proxies import address_of, client_address, parse_networks, scope_behind_proxies
from highwater.schemas.errors import ConfigurationError

PROXIES = ("10.0.0.1", "10.1.0.0/16", "fd00::/8")


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.7", [], "192.0.2.7"),
        ("192.0.2.7", ["198.51.100.1"], "192.0.2.7"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.1, 10.1.2.3"], "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.9", "198.51.100.1", "10.1.2.3"], "198.51.100.1"),
        ("10.0.0.1", ["10.1.2.3, 10.1.2.4"], "10.1.2.3"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1, unknown, 10.1.2.3"], "10.1.2.3"),
        ("10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("fd00::5", ["2001:DB8:0::1"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("::ffff:192.0.2.7", [], "192.0.2.7"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_only_a_trusted_proxy_is_believed(peer: str, forwarded: list[str], expected: str) -> None:
    """The right-most address that no trusted proxy has counts; what a client writes before it is its own affair."""
    assert client_address(peer, forwarded, parse_networks(PROXIES)) == expected


@given(st.lists(st.text(max_size=40), max_size=4))
def test_without_trusted_proxies_the_field_is_nothing(forwarded: list[str]) -> None:
    """The other end of the connection is counted, with any content of the field."""
    assert client_address("10.0.0.1", forwarded, ()) == "10.0.0.1"


@given(st.lists(st.text(max_size=40), max_size=4))
def test_what_a_client_writes_never_changes_who_it_is(written: list[str]) -> None:
    """The proxy appends the client's address, so everything before it is ignored."""
    forwarded = [*written, "198.51.100.1"]
    assert client_address("10.0.0.1", forwarded, parse_networks(PROXIES)) == "198.51.100.1"


def test_a_name_is_no_network() -> None:
    """An invalid network in the setting stops the program with an error that names it."""
    with pytest.raises(ConfigurationError, match="HIGHWATER_TRUSTED_PROXIES"):
        parse_networks(["proxy.example"])


def request(peer: str, *fields: tuple[str, str], kind: str = "http") -> dict[str, Any]:
    """The scope of a request over a connection from an address."""
    headers = [(b"host", b"inside:8080"), *((name.encode(), value.encode()) for name, value in fields)]
    return {"type": kind, "scheme": "ws" if kind == "websocket" else "http", "client": (peer, 9), "headers": headers}


def seen(*fields: tuple[str, str], peer: str = "10.0.0.1", kind: str = "http") -> tuple[str, str, list[bytes]]:
    """Address, scheme and hosts that the application finds."""
    found = scope_behind_proxies(request(peer, *fields, kind=kind), parse_networks(PROXIES))
    return address_of(found), found["scheme"], [value for name, value in found["headers"] if name == b"host"]


FOR, PROTO, HOST = "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"


def test_a_trusted_proxy_names_client_scheme_and_host():
    """All three are those of the client's side of it."""
    fields = ((FOR, "198.51.100.1"), (PROTO, "https"), (HOST, "hw.example"))
    assert seen(*fields) == ("198.51.100.1", "https", [b"hw.example"])
    assert seen(*fields, kind="websocket") == ("198.51.100.1", "wss", [b"hw.example"])


def test_nobody_else_names_anything():
    """The header of a client that is not a trusted proxy changes nothing."""
    fields = ((FOR, "198.51.100.1"), (PROTO, "https"), (HOST, "hw.example"))
    assert seen(*fields, peer="192.0.2.7") == ("192.0.2.7", "http", [b"inside:8080"])
    untouched = request("10.0.0.1", *fields)
    assert scope_behind_proxies(untouched, ()) is untouched


@pytest.mark.parametrize(
    ("forwarded", "proto", "expected"),
    [
        ("198.51.100.1", "http, https", "https"),  # the client wrote the first
        ("198.51.100.1, 10.1.2.3", "https, http", "https"),  # the outer proxy wrote the first
        ("198.51.100.1, 10.1.2.3", "http, https, http", "https"),
        ("198.51.100.1, 10.1.2.3", "https", "https"),  # the inner one passed on what it got
        ("198.51.100.1", "gopher", "http"),
        ("198.51.100.1", "", "http"),
    ],
)
def test_of_a_list_the_outermost_trusted_proxy_counts(forwarded: str, proto: str, expected: str):
    """An element that the client wrote before it does not."""
    assert seen((FOR, forwarded), (PROTO, proto))[1] == expected


@pytest.mark.parametrize("host", ["a b", "x/y", "u@h", "", "h:123456", "[::1"])
def test_what_is_no_host_is_left_out(host: str):
    """The `Host` of the connection stays."""
    assert seen((HOST, host))[2] == [b"inside:8080"]
