"""Wrong keys: how many attempts an address has, which calls remain possible, and that the memory use is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.api.core.attempts import ATTEMPTS_MAX, WINDOW_MS, Attempts, network_of
from highwater.api.core.auth import Authenticator, Principal, Role, authenticated, parse_api_keys
from highwater.api.core.connections import Connections
from highwater.api.core.errors import TooManyRequestsError, UnauthorizedError
from highwater.api.core.proxies import parse_networks

START_MS = 1_000_000
ADDRESS, OTHER = "192.0.2.7", "192.0.2.8"


def test_ten_a_minute_and_then_wait():
    """The wait ends a minute after the first of them; another address is not concerned."""
    attempts = Attempts()
    for number in range(ATTEMPTS_MAX):
        assert attempts.wait_ms(ADDRESS, START_MS + number) == 0
        assert attempts.note_wrong(ADDRESS, START_MS + number) == (number == ATTEMPTS_MAX - 1)
    assert attempts.wait_ms(ADDRESS, START_MS + ATTEMPTS_MAX) == WINDOW_MS - ATTEMPTS_MAX
    assert attempts.wait_ms(OTHER, START_MS + ATTEMPTS_MAX) == 0
    assert attempts.wait_ms(ADDRESS, START_MS + WINDOW_MS) == 0


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
def test_what_counts_as_one_address(address: str, expected: str):
    """A /64 of IPv6, since everybody has that much."""
    assert network_of(address) == expected


def test_addresses_are_bounded():
    """The one that tried longest ago is forgotten."""
    attempts = Attempts(attempts_max=1, addresses_max=2)
    for address in ("a", "b", "c"):
        attempts.note_wrong(address, START_MS)
    assert len(attempts) == 2
    assert [attempts.wait_ms(address, START_MS) > 0 for address in ("a", "b", "c")] == [False, True, True]


async def _session(token: str) -> Principal | None:
    return Principal(Role.VIEWER, "ada", token) if token == "hws_good" else None


@pytest.fixture
def authenticator() -> Authenticator:
    """One with two keys and one session."""
    return Authenticator(parse_api_keys("viewer:first-key,admin:second-key"), _session)


async def tried(authenticator: Authenticator, token: str, address: str = ADDRESS) -> Any:
    """The role that a token gives, or the status of the refusal."""
    try:
        return (await authenticated(authenticator, f"Bearer {token}", address)).role
    except (UnauthorizedError, TooManyRequestsError) as error:
        return int(error.status)


async def test_a_guess_is_not_looked_at_any_more(authenticator: Authenticator):
    """After ten wrong keys, a right key that this address never used is refused like a wrong one, so guessing reveals nothing."""
    assert [await tried(authenticator, f"guess-{number}") for number in range(ATTEMPTS_MAX)] == [401] * ATTEMPTS_MAX
    assert await tried(authenticator, "guess-10") == 429
    assert await tried(authenticator, "second-key") == 429
    assert await tried(authenticator, "second-key", OTHER) == Role.ADMIN


async def test_a_key_in_use_is_not_hindered(authenticator: Authenticator):
    """Nor is a session; the caller with an ended session gets that answer, and it does not count as an attempt."""
    assert await tried(authenticator, "first-key") == Role.VIEWER
    for number in range(ATTEMPTS_MAX + 1):
        await tried(authenticator, f"guess-{number}")
    assert await tried(authenticator, "first-key") == Role.VIEWER
    assert await tried(authenticator, "hws_good") == Role.VIEWER
    assert await tried(authenticator, "hws_bad") == 401
    assert [await tried(authenticator, f"hws_{number}", OTHER) for number in range(20)] == [401] * 20
    assert await tried(authenticator, "second-key", OTHER) == Role.ADMIN


async def test_who_names_no_key_is_not_counted(authenticator: Authenticator):
    """A client that does not send a key gets the answer that keys are needed each time."""
    for _ in range(ATTEMPTS_MAX + 1):
        with pytest.raises(UnauthorizedError):
            await authenticated(authenticator, None, ADDRESS)
    assert len(authenticator.attempts) == 0


def test_connections_are_counted_by_address_and_together():
    """Beyond either limit a connection is refused; a closed one frees its place; nothing remains of clients that have left."""
    connections = Connections(3, 2)
    assert [connections.admit(ADDRESS) for _ in range(3)] == [None, None, "address"]
    assert [connections.admit(OTHER), connections.admit(OTHER)] == [None, "all"]
    connections.leave(ADDRESS)
    assert connections.admit(ADDRESS) is None
    for address in (ADDRESS, ADDRESS, OTHER):
        connections.leave(address)
    assert len(connections) == 0
    assert connections._of_network == {}


def test_a_trusted_proxy_has_no_limit_of_its_own():
    """It stands for many; all together are limited still."""
    connections = Connections(3, 1, parse_networks(["192.0.2.0/24"]))
    assert [connections.admit(ADDRESS) for _ in range(4)] == [None, None, None, "all"]
