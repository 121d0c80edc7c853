"""Which vectors a user's version is made from while a model still computes them (decision 53).

Invariant: a version is only ever made from vectors of one embedding model version. Until all insights of a user's window
have one of the configured model's, the version keeps the one that it has; only the first is made from the built-in vectors,
as *preliminary*, if the model needs longer than a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# How long a first version waits for the vectors of its window.
VECTORS_WAIT_MS = 60_000
# The least time a model takes for a text: the local one computes 1,000 subjects in 1.2 s of processor time.
MS_PER_TEXT = 1.2


class Unread(NamedTuple):
    """Insights of a window that have only a built-in vector so far, not one of a certain model version: how many, and the lowest
    number in each channel that has any.
    """

    total: int = 0
    first: Mapping[str, int] = {}


class Ready(NamedTuple):
    """What a version is made from: the insights of each channel up to a number, in `basis_id` (None: in the version that
    most of them have).
    """

    basis_id: str | None
    upto: Mapping[str, int]
    is_preliminary: bool = False


def waits_for_vectors(unread: int, awaited_since: int | None, now: int) -> bool:
    """Return whether these insights can have their vectors within a minute from the first time that this was asked
    (milliseconds since 1970; None: now). A time after now is a wrong clock's: nothing waits for it.
    """
    waited = 0 if awaited_since is None else now - awaited_since
    return unread > 0 and waited >= 0 and waited + unread * MS_PER_TEXT <= VECTORS_WAIT_MS


def readiness(
    basis_id: str,
    unread: Unread,
    last: tuple[str, Unread] | None,
    hwm: Mapping[str, int],
    upto: Mapping[str, int],
    awaited_since: int | None,
    now: int,
) -> Ready | None:
    """Return what a version can be made from; None: it waits.

    Args:
        basis_id: of the configured model.
        unread: the insights of the window that it has not read.
        last: the model version of the last version, and the insights that lack a vector of it; None if there is no last
            version, or it is preliminary.
        hwm: up to which number of each channel the last version has its insights.
        upto: up to which number they could be clustered.
        awaited_since: when a request was first answered by waiting; None: never since the last version.
        now: milliseconds since 1970.
    """
    if not unread.total:
        return Ready(basis_id, upto)
    if last is None:
        return None if waits_for_vectors(unread.total, awaited_since, now) else Ready(None, upto, is_preliminary=True)
    last_basis, lacking = last
    if any(first <= hwm[channel] for channel, first in lacking.first.items()):
        return None  # without these the version would lose what it shows
    return Ready(
        last_basis, {channel: min(seq, lacking.first.get(channel, seq + 1) - 1) for channel, seq in upto.items()}
    )
