"""The state of a user before a rebuild, whether the rebuild would change anything, and what its answer accounts for.

Invariant: everything is counted up to numbers that were read before the data set: later insights are not accounted for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.feeds.windows import Span, last_version_of, read_insight_ids, shown_ids
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.positions import Position, parse_position
from highwater.streams.clock import to_ms_or_none
from highwater.streams.feeds.readiness import Unread
from highwater.streams.feeds.rules import UserFacts


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is read of a user before a rebuild, by subscribed channel in order.

    `version_before` is what the next version follows: the current one, except for the first after an erasure. `upto` is
    the seq that the rebuild accounts for, never below the mark (R0.37); `basis_id`: the embedding model version of the
    current version, None without one; `is_preliminary`: it is of stand-ins (decision 53); `floor` as in `Span`; `retractions` and
    `retractions_hwm`: how many there are, and how many are accounted for. `has_other_channels`: the channels changed
    since the last answer. `curated_revision`: when the reader's curations last changed; `is_curated`: since the last
    version.
    """

    cluster_version: int
    version_before: int
    basis_id: str | None
    is_preliminary: bool
    vectors_awaited_since: int | None
    facts: UserFacts
    heads: Mapping[str, int]
    hwm: Mapping[str, int]
    upto: Mapping[str, int]
    floor: Mapping[str, int]
    retractions: Mapping[str, int]
    retractions_hwm: Mapping[str, int]
    last_request: Position | None
    has_other_channels: bool
    curated_revision: int
    is_curated: bool

    def up_to(self, upto: Mapping[str, int]) -> Snapshot:
        """Return the same with fewer insights that can be clustered now."""
        pending = sum(seq - self.hwm[channel] for channel, seq in upto.items())
        held_back = self.facts.held_back + self.facts.pending - pending
        return replace(self, upto=upto, facts=replace(self.facts, pending=pending, held_back=held_back))

    def span(self, upto: Mapping[str, int], since: datetime, until: datetime) -> Span:
        """Return the insights up to these numbers."""
        channels = list(self.heads)
        return Span(channels, list(self.floor.values()), [upto[channel] for channel in channels], since, until)


async def read_snapshot(tx: Connection, user_id: str, since: datetime) -> Snapshot | None:
    """Return the snapshot of a user whose window begins at `since`; None for an unknown user."""
    user = await tx.fetchrow(QUERIES["rebuild_user"], user_id)
    if user is None:
        return None
    rows = await tx.fetch(QUERIES["rebuild_channels"], user_id, since)
    heads = {row["channel_id"]: row["head"] for row in rows}
    hwm = {row["channel_id"]: row["hwm"] for row in rows}
    # A row without an embedding holds back its channel, not its number (R0.14).
    upto = {
        row["channel_id"]: max(
            row["hwm"],
            row["head"] if row["first_unembedded"] is None else min(row["head"], row["first_unembedded"] - 1),
        )
        for row in rows
    }
    pending = sum(max(0, heads[channel] - hwm[channel]) for channel in heads)
    now_possible = sum(upto[channel] - hwm[channel] for channel in heads)
    facts = UserFacts(
        plan=user["plan"],
        pending=now_possible,
        held_back=pending - now_possible,
        is_subscribed=bool(heads),
        last_active_at=to_ms_or_none(user["last_active_at"]),
        last_clustered_at=to_ms_or_none(user["last_clustered_at"]),
        last_checked_at=to_ms_or_none(user["last_checked_at"]),
        last_enqueued_at=to_ms_or_none(user["last_enqueued_at"]),
    )
    last = user["last_request"]
    # Before the first answer nothing is accounted for: then everything is simply new.
    is_answered = facts.last_clustered_at is not None or facts.last_checked_at is not None
    return Snapshot(
        user["cluster_version"], user["version_before"], user["basis_id"], user["is_preliminary"],
        to_ms_or_none(user["vectors_awaited_since"]), facts, heads, hwm, upto,
        floor={row["channel_id"]: row["floor"] for row in rows},
        retractions={row["channel_id"]: row["retractions"] for row in rows},
        retractions_hwm={row["channel_id"]: row["retractions_hwm"] for row in rows},
        last_request=parse_position(last) if last else None,
        has_other_channels=is_answered and (user["has_left"] or not all(row["is_shown"] for row in rows)),
        curated_revision=user["curated_revision"], is_curated=user["is_curated"],
    )  # fmt: skip


async def read_unread(tx: Connection, span: Span, basis_id: str) -> Unread:
    """Return the insights of a span that have no vector of this version yet, and only a built-in one."""
    rows = await tx.fetch(QUERIES["unread_insights"], *span.places, span.since, span.until, basis_id)
    return Unread(sum(row["count"] for row in rows), {row["channel_id"]: row["first"] for row in rows})


async def is_shown_otherwise(
    tx: Connection, user_id: str, snapshot: Snapshot, since: datetime, until: datetime, insights_max: int
) -> bool:
    """Return whether the insights of the last version have changed: by other channels, a retraction, the window, or a
    curation. New insights are `pending`; they make other channels matter also if nothing leaves the version.

    Another embedding model version would cluster the same insights differently: it waits for a rebuild with a reason of
    the user's own, or a demand.
    """
    if snapshot.is_curated or (snapshot.has_other_channels and snapshot.facts.pending > 0):
        return True
    span = snapshot.span(snapshot.hwm, since, until)
    known = list(snapshot.retractions_hwm.values())
    # Checked with the insights: a stored version may already lack what was retracted.
    if await tx.fetchval(QUERIES["has_retractions_beyond"], *span.places, span.since, span.until, known):
        return True
    row = await tx.fetchrow(QUERIES["last_version"], user_id, snapshot.cluster_version)
    shown = shown_ids(last_version_of(None if row is None else dict(row), ""))
    now = await read_insight_ids(tx, span, insights_max)
    return not shown <= now or len(now) - len(shown) != (0 if row is None else row["left_out"])


async def account_for(tx: Connection, user_id: str, snapshot: Snapshot, hwm: Mapping[str, int]) -> None:
    """Store what the answer accounts for: marks, retractions, and the channels."""
    channels = list(snapshot.heads)
    marks, retractions = [hwm[channel] for channel in channels], list(snapshot.retractions.values())
    await tx.execute(QUERIES["raise_hwm"], user_id, channels, marks, retractions)
    await tx.execute(QUERIES["hide_channels"], user_id, channels)
