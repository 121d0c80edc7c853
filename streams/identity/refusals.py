"""How many refused requests are recorded one by one, and what is recorded of the others.

Invariant: in any case a minute leaves at most `EACH_MAX + SUMMARIES_MAX + 1` records per process, and every refusal is
counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

MINUTE_MS = 60_000
# Per address: enough to see what it tries.
ADDRESS_MAX = 20
# For all addresses together: 300 records of 300 bytes per minute are 130 MB per day, also under an attack that does not
# end.
EACH_MAX = 300
# Addresses with a summary of their own, those with the most refusals; the rest share one.
SUMMARIES_MAX = 50
# Addresses counted within a minute; beyond it new ones are counted together. About 1 MB.
ADDRESSES_MAX = 10_000
# IPv6 gives each customer at least a /64, so addresses within one are one client.
_IPV6_PREFIX_BITS = 64


@dataclass(frozen=True, slots=True)
class Suppressed:
    """Refusals of a minute that were not recorded one by one; `address` None: of all other addresses."""

    address: str | None
    count: int


def client_of(address: str) -> str:
    """Return what refusals are counted by: the address, for IPv6 its /64; other text unchanged."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        return str(ip_network((found, _IPV6_PREFIX_BITS), strict=False))
    return str(found)


class Refusals:
    """The refusals of the present minute."""

    def __init__(self) -> None:
        self._minute = 0
        self._recorded = 0
        self._seen: Counter[str] = Counter()
        self._suppressed: Counter[str | None] = Counter()

    @property
    def has_suppressed(self) -> bool:
        """Return whether the minute will leave a summary."""
        return bool(self._suppressed)

    def admit(self, address: str, now_ms: int) -> bool:
        """Return whether a refusal is recorded separately; else it is counted. Call `close` before, when a minute has passed."""
        self._minute = now_ms // MINUTE_MS
        client: str | None = client_of(address)
        if client not in self._seen and len(self._seen) >= ADDRESSES_MAX:
            client = None
        else:
            self._seen[str(client)] += 1
        if self._recorded < EACH_MAX and client is not None and self._seen[client] <= ADDRESS_MAX:
            self._recorded += 1
            return True
        self._suppressed[client] += 1
        return False

    def is_over(self, now_ms: int) -> bool:
        """Return whether the counted minute has passed (a clock that was set back ends it too)."""
        return now_ms // MINUTE_MS != self._minute

    def close(self) -> list[Suppressed]:
        """End the minute: return what was counted and not recorded, the most frequent addresses first."""
        rest = self._suppressed.pop(None, 0)
        named = self._suppressed.most_common()
        found = [Suppressed(address, count) for address, count in named[:SUMMARIES_MAX]]
        rest += sum(count for _, count in named[SUMMARIES_MAX:])
        self._seen.clear()
        self._suppressed.clear()
        self._recorded = 0
        return [*found, Suppressed(None, rest)] if rest else found
