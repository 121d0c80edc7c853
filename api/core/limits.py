"""How often an address may ask for live pages (R4.36): who asks, and whether it is admitted.

Laws. Every answer counts, a 304 too. An address is that of the connection; `X-Forwarded-For` is believed only as far as proxies
that are named in the settings wrote it. Over all processes Redis counts; while it is away each process counts by itself, by the
same rule.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from starlette.types import Scope

from highwater.api.core.errors import TooManyRequestsError
from highwater.connectors.league.live_requests import LiveRequests
from highwater.connectors.redis.link import RedisAwayError
from highwater.schemas.errors import ConfigurationError
from highwater.streams.clock import Clock
from highwater.streams.league.limits import LIVE_WINDOW_MS, admit
from highwater.streams.telemetry import LIVE_REFUSED

# Addresses counted by one process while Redis is away: 20,000 of 15 times each take about 15 MB. The one that asked longest ago
# is forgotten and begins anew: who has so many addresses is not held by a limit per address anyway.
ADDRESSES_MAX = 20_000

# In the scope of a request that was counted, what came of it: the short cut counts before it steps aside.
_CHECKED = "highwater.live_retry_after_ms"

Address: TypeAlias = IPv4Address | IPv6Address
Networks: TypeAlias = tuple[IPv4Network | IPv6Network, ...]


def parse_networks(names: Sequence[str]) -> Networks:
    """Addresses and networks as they are set.

    Raises:
        ConfigurationError: one is neither.
    """
    try:
        return tuple(ip_network(name, strict=False) for name in names)
    except ValueError as error:
        raise ConfigurationError(f"HIGHWATER_TRUSTED_PROXIES: {error}") from error


def client_address(peer: str, forwarded: Sequence[str], trusted: Networks) -> str:
    """The address that asks: the last one on the way that is not a trusted proxy's.

    Args:
        peer: the other end of the connection.
        forwarded: the fields `X-Forwarded-For` in their order; each proxy adds the address it was asked by at the end.
        trusted: whose word is taken.

    What is no address ends the search: the proxy that passed it on is counted itself. If every hop is trusted, the first counts.
    """
    found = _address(peer)
    if found is None or not trusted:
        return peer if found is None else str(found)
    hops = [hop for field in forwarded for hop in field.split(",")] if _is_within(found, trusted) else []
    for hop in reversed(hops):
        address = _address(hop)
        if address is None:
            break
        found = address
        if not _is_within(found, trusted):
            break
    return str(found)


def _is_within(address: Address, networks: Networks) -> bool:
    return any(address in network for network in networks)


def _address(text: str) -> Address | None:
    """The address in one hop, a port after it left out; one of IPv4 within IPv6 is that of IPv4."""
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


class LocalRequests:
    """The requests that this process admitted."""

    def __init__(self, requests_max: int, window_ms: int = LIVE_WINDOW_MS, addresses_max: int = ADDRESSES_MAX) -> None:
        self._requests_max = requests_max
        self._window_ms = window_ms
        self._addresses_max = addresses_max
        self._times: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times)

    def retry_after_ms(self, address: str, now_ms: int) -> int:
        """0: admitted, and counted; else in how many ms it may come again."""
        admission = admit(self._times.get(address, ()), now_ms, self._requests_max, self._window_ms)
        self._times[address] = admission.times
        self._times.move_to_end(address)
        if len(self._times) > self._addresses_max:
            self._times.popitem(last=False)
        return admission.retry_after_ms


class LiveLimit:
    """Refuses what is too much."""

    def __init__(self, shared: LiveRequests, local: LocalRequests, clock: Clock, trusted: Networks) -> None:
        self._shared = shared
        self._local = local
        self._clock = clock
        self._trusted = trusted

    async def check(self, scope: Scope) -> None:
        """Count this request: once, however often it is checked.

        Raises:
            TooManyRequestsError: the address has asked too often; says when it may come again.
        """
        if _CHECKED not in scope:
            scope[_CHECKED] = await self._retry_after_ms(scope)
            if scope[_CHECKED]:
                LIVE_REFUSED.inc()
        if scope[_CHECKED]:
            # Rounded up: who comes a part of a second too early is refused again.
            raise TooManyRequestsError(headers={"Retry-After": str(-(-scope[_CHECKED] // 1000))})

    async def _retry_after_ms(self, scope: Scope) -> int:
        client = scope.get("client")
        forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        address = client_address(client[0] if client else "", forwarded, self._trusted)
        now_ms = self._clock()
        try:
            return await self._shared.retry_after_ms(address, now_ms)
        except RedisAwayError:
            return self._local.retry_after_ms(address, now_ms)
