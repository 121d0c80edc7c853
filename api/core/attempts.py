"""Wrong keys slow down: how many an address may try, and what it is told beyond.

Laws. Ten wrong keys or sign-ins of an address are answered as wrong in any minute; beyond them a key is refused (429) without
being looked at, so that a right one cannot be told from a wrong one by trying. A key that this address has used before it was
refused goes on working. Sessions are neither counted nor refused: their ids are random, and one that has ended is no attempt.
Each process counts by itself.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

from highwater.streams.identity.rate_limits import RecentCalls

ATTEMPTS_MAX = 10
WINDOW_MS = 60_000
# Addresses whose wrong keys are counted, some 300 bytes each: the one that tried longest ago is forgotten.
ADDRESSES_MAX = 20_000
# Pairs of address and key that were right, as 64-bit hashes, some 100 bytes each.
PROVEN_MAX = 50_000
# A customer of a provider has at least that much of IPv6 to himself (RFC 6177), so one address of it is no more than all.
_IPV6_PREFIX = 64


@lru_cache(4096)
def network_of(address: str) -> str:
    """What is counted as one: an address of IPv4, a /64 of IPv6; another text as it is."""
    try:
        found = ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ip_network((found, _IPV6_PREFIX), strict=False))
    return str(found)


class Attempts:
    """What is remembered of wrong keys, and of right ones."""

    def __init__(
        self, attempts_max: int = ATTEMPTS_MAX, window_ms: int = WINDOW_MS, addresses_max: int = ADDRESSES_MAX
    ) -> None:
        self._attempts_max = attempts_max
        self._wrong = RecentCalls(attempts_max, window_ms, addresses_max)
        self._proven: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._wrong)

    def wait_ms(self, address: str, now_ms: int) -> int:
        """0: the address may try a key; else in how many ms."""
        return self._wrong.judge(network_of(address), now_ms).retry_after_ms if self._wrong else 0

    def note_wrong(self, address: str, now_ms: int) -> bool:
        """A key was wrong; whether this was the last that the address may try."""
        return len(self._wrong.count(network_of(address), now_ms).times) >= self._attempts_max

    def note_right(self, address: str, key: str) -> None:
        """A key was right: from here it is looked at whatever else the address sends."""
        pair = hash((address, key))
        if pair not in self._proven:
            self._proven[pair] = None
            if len(self._proven) > PROVEN_MAX:
                self._proven.popitem(last=False)

    def is_proven(self, address: str, key: str) -> bool:
        """Whether this address has used this key; the hash is salted by the process, so nobody makes two keys meet."""
        return hash((address, key)) in self._proven
