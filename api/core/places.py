"""The places of a pool in this process that callers hold for a while: streams, sockets, uploads.

Invariant: one caller holds at most a quarter of them, and one organization half, so that neither shuts others out. The
operator's own keys, which are unbound, are limited by the whole pool alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from highwater.api.core.auth import Principal
from highwater.api.core.errors import TooManyRequestsError
from highwater.schemas.errors import UnavailableError

# What part of a pool is one caller's share, and one organization's.
OF_CALLER, OF_ORGANIZATION = 4, 2
# A place becomes free when a stream or an upload of the same caller ends; a client asks again after this long.
RETRY_SECONDS = 5


def caller_name(principal: Principal) -> str:
    """Return what counts as one caller: a user with all its keys and sessions, or a key that is bound to no user."""
    return f"key {principal.key_id}" if principal.user_id is None else f"user {principal.user_id}"


class Places:
    """At most `count_max` at once; `what` says of what, as in "streams are open"."""

    def __init__(self, what: str, count_max: int) -> None:
        self.count = 0
        self.count_max = count_max
        self._what = what
        self._held: Counter[str] = Counter()

    def check(self, principal: Principal) -> None:
        """Refuse a caller for which there is no place now.

        Raises:
            TooManyRequestsError: it holds its share, or its organization does.
            UnavailableError: all are held.
        """
        for name, share in self._shares(principal):
            if self._held[name] >= share:
                whose = "organization" if name.startswith("organization ") else "key or user"
                raise TooManyRequestsError(
                    f"{share} {self._what} for this {whose} on this process, its share of {self.count_max}",
                    headers={"Retry-After": str(RETRY_SECONDS)},
                )
        if self.count >= self.count_max:
            raise UnavailableError(f"too many {self._what}")

    @contextmanager
    def taken(self, principal: Principal) -> Iterator[None]:
        """Hold a place while the block runs; errors as of `check`."""
        self.check(principal)
        names = [name for name, _ in self._shares(principal)]
        self.count += 1
        self._held.update(names)
        try:
            yield
        finally:
            self.count -= 1
            self._held.subtract(names)
            for name in names:
                if not self._held[name]:
                    del self._held[name]

    def _shares(self, principal: Principal) -> Iterator[tuple[str, int]]:
        if not principal.is_bound:
            return
        yield caller_name(principal), max(1, self.count_max // OF_CALLER)
        if principal.organization_id is not None:
            yield f"organization {principal.organization_id}", max(1, self.count_max // OF_ORGANIZATION)
