"""Limits wrong keys: how many an address may try, and the answer beyond the limit.

Invariants. In any minute, ten wrong keys or sign-ins of an address are answered as wrong. Beyond that, keys are refused
(429) unchecked, so trying cannot distinguish a right key from a wrong one. A key that this address used successfully
before continues to work. Sessions are neither counted nor refused: their ids are random, and an expired session is not
an attempt. Each process counts separately.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

from highwater.streams.identity.rate_limits import RecentCalls

ATTEMPTS_MAX = 10
WINDOW_MS = 60_000
# Addresses whose wrong keys are counted, some 300 bytes each: the one with the oldest attempt is forgotten.
ADDRESSES_MAX = 20_000
# Pairs of address and key that were right, as 64-bit hashes, some 100 bytes each.
PROVEN_MAX = 50_000
# A customer of a provider has at least this much IPv6 space (RFC 6177), so its addresses are counted together.
_IPV6_PREFIX = 64


@lru_cache(4096)
def network_of(address: str) -> str:
    """Return what is counted as one: an IPv4 address, or the /64 network of an IPv6 address; any other text unchanged."""
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
    """Remembers wrong keys and right keys by address."""

    def __init__(
        self, attempts_max: int = ATTEMPTS_MAX, window_ms: int = WINDOW_MS, addresses_max: int = ADDRESSES_MAX
    ) -> None:
        self._attempts_max = attempts_max
        self._wrong = RecentCalls(attempts_max, window_ms, addresses_max)
        self._proven: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._wrong)

    def wait_ms(self, address: str, now_ms: int) -> int:
        """Return 0 if the address may try a key, else after how many ms it may."""
        return self._wrong.judge(network_of(address), now_ms).retry_after_ms if self._wrong else 0

    def note_wrong(self, address: str, now_ms: int) -> bool:
        """Note a wrong key; return whether this was the last attempt that the address has."""
        return len(self._wrong.count(network_of(address), now_ms).times) >= self._attempts_max

    def note_right(self, address: str, key: str) -> None:
        """Note a right key: from now on it is always checked, also after wrong keys of the address."""
        pair = hash((address, key))
        if pair not in self._proven:
            self._proven[pair] = None
            if len(self._proven) > PROVEN_MAX:
                self._proven.popitem(last=False)

    def is_proven(self, address: str, key: str) -> bool:
        """Return whether this address has used this key successfully; the hash has a salt per process, so collisions
        cannot be prepared.
        """
        return hash((address, key)) in self._proven
