"""Stores readers' curations for the sink of users: under the lock of the user's row, in the order of the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import orjson

from highwater.connectors.identity.statements import QUERIES
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.feeds import CLUSTERS_CURATED
from highwater.streams.feeds.curations import (
    CURATIONS_MAX,
    Curation,
    CurationState,
    curation_from,
    curation_json,
    curation_of,
    fold_curations,
)
from highwater.streams.identity.users import Folded, UserStep
from highwater.streams.telemetry import get_log

_log = get_log("users")


async def store_curations(tx: Connection, folds: Mapping[str, Folded]) -> None:
    """Store users' curations after their events, and the revision of the change; call it after their erasures."""
    said = {user_id: _said(folded.curated) for user_id, folded in folds.items() if folded.curated}
    if not said:
        return
    held: dict[str, dict[str, Curation]] = defaultdict(dict)
    for row in await tx.fetch(QUERIES["curations_of_users"], list(said)):
        order = row["arrived_ms"], row["source_partition"], row["source_offset"]
        one = curation_from(orjson.loads(row["curation"]), row["curation_id"], order)
        held[row["user_id"]][one.curation_id] = one
    for user_id, curations in said.items():
        before, after = held[user_id], fold_curations(held[user_id], curations)
        if after.curations != before:
            await _store(tx, user_id, before, after)
            await tx.execute(QUERIES["note_curated"], user_id, folds[user_id].user.revision)
        if after.refused:
            _log.warning("curations_refused", user_id=user_id, count=len(after.refused), held=CURATIONS_MAX)


async def _store(tx: Connection, user_id: str, before: Mapping[str, Curation], after: CurationState) -> None:
    gone = [curation_id for curation_id in before if curation_id not in after.curations]
    await tx.execute(QUERIES["drop_curations"], user_id, gone)
    for curation_id, one in after.curations.items():
        if one != before.get(curation_id):
            stored = orjson.dumps(curation_json(one)).decode()
            await tx.execute(QUERIES["store_curation"], user_id, curation_id, stored, *one.order)


def _said(steps: Sequence[UserStep]) -> list[Curation]:
    return [
        curation_of(event, (step.arrived_ms, *step.place)) for step in steps if (event := step.of(CLUSTERS_CURATED))
    ]
