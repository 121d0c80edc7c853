"""Surrogate keys: from an object to every document that holds it.

Invariants. A document is tagged with its objects in the transaction that stores it, under a lock that it shares with
other documents; a withdrawal holds that lock exclusively. So either the withdrawal finds the document, or the document
is stored after it and can see that the object is gone. An object has a number in a space (an insight in its channel, a
chunk in its source), and a document's objects of one space are stored as ranges of numbers: a window over a channel is
one row, however many insights it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from highwater.connectors.kafka import outbox
from highwater.connectors.pages.statements import QUERIES
from highwater.connectors.pages.versions import position_of
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.redaction import Withdrawn
from highwater.schemas.cache import VERSION_BUMPED, VersionBumped
from highwater.schemas.codec import Codec
from highwater.streams.clock import to_datetime

RETRACTED = "retracted"


class Holder(NamedTuple):
    """A version of a document, and which withdrawn objects it held; `document` is its id, without its kind."""

    document: str
    version: int
    withdrawn: tuple[Withdrawn, ...]


def channel_space(channel_id: str) -> str:
    """Return the space of a channel's insights, by `seq`."""
    return f"channel:{channel_id}"


def source_space(ns: str, slot: str, source_id: str) -> str:
    """Return the space of a source's chunks, by `chunk_no`."""
    return f"source:{ns}|{slot}|{source_id}"


def user_space(user_id: str) -> str:
    """Return the space of a user; the user is number 0 of it."""
    return f"user:{user_id}"


def place_of_chunk(ns: str, chunk_id: str) -> tuple[str, int]:
    """Return space and number of a chunk, by its namespace and its id there (`slot|source|number`)."""
    source, _, number = chunk_id.rpartition("|")
    return f"source:{ns}|{source}", int(number)


async def share(tx: Connection) -> None:
    """Take the lock for storing documents: nothing is withdrawn until the transaction ends. Take it before locking rows
    of documents.
    """
    await tx.execute(QUERIES["share_withdrawals"], LockClass.WITHDRAWALS, 0)


async def hold(tx: Connection) -> None:
    """Take the lock for withdrawing objects: no tagged document is stored until the transaction ends."""
    await tx.execute(QUERIES["hold_withdrawals"], LockClass.WITHDRAWALS, 0)


async def tag(tx: Connection, objects: Iterable[tuple[str, int, str, int]]) -> None:
    """Tag documents with objects: (document, version, space, number) each."""
    rows = list(objects)
    if rows:
        await tx.execute(QUERIES["tag_objects"], *map(list, zip(*rows, strict=True)))


async def tag_insights(tx: Connection, document: str, version: int, insight_ids: Sequence[str]) -> None:
    """Tag a version of a document with insights."""
    await tx.execute(QUERIES["tag_insights"], document, version, insight_ids)


async def retracted_of(tx: Connection, insight_ids: Sequence[str], caused_by: str) -> list[Withdrawn]:
    """Return which of these insights were retracted, for storing a document of them under the shared lock."""
    rows = await tx.fetch(QUERIES["retracted_of"], insight_ids)
    return [
        Withdrawn(channel_space(row["channel_id"]), row["seq"], row["insight_id"], row["text"] or "", caused_by)
        for row in rows
    ]


async def holders(tx: Connection, kind: str, withdrawn: Sequence[Withdrawn]) -> list[Holder]:
    """Return the versions of documents of a kind that hold withdrawn objects, in the order of ids and versions."""
    by_place = {(one.space, one.number): one for one in withdrawn}
    spaces, numbers = [space for space, _ in by_place], [number for _, number in by_place]
    held: dict[tuple[str, int], list[Withdrawn]] = defaultdict(list)
    for row in await tx.fetch(QUERIES["documents_with"], spaces, numbers, f"{kind}:"):
        document = row["document"].partition(":")[2]
        held[document, row["version"]].append(by_place[row["space"], row["number"]])
    return [Holder(document, version, tuple(found)) for (document, version), found in held.items()]


async def untag(tx: Connection, documents: Collection[str]) -> None:
    """Delete the tags of deleted documents."""
    await tx.execute(QUERIES["untag_documents"], list(documents))


async def untag_versions(tx: Connection, document: str, upto: int, *, but: Sequence[int] = ()) -> None:
    """Delete the tags of a document's versions up to one, except for some."""
    await tx.execute(QUERIES["untag_versions"], document, upto, list(but))


async def bump_holders(tx: Connection, codec: Codec, caused_by: Mapping[str, str], now_ms: int, *, source: str) -> None:
    """Create and publish the next version of resources (`caused_by`: key to position); skip those without a version."""
    if not caused_by:
        return
    rows = await tx.fetch(
        QUERIES["bump_known_versions"], list(caused_by), list(caused_by.values()), to_datetime(now_ms)
    )
    await outbox.add(
        tx,
        [
            outbox.event_row(
                codec,
                VERSION_BUMPED,
                VersionBumped(
                    key=row["key"], version=row["version"], etag=row["etag"], caused_by=row["position"],
                    bumped_at=now_ms, reason=RETRACTED,
                ),
                source=source,
                now_ms=now_ms,
                caused_by=position_of(row["position"]),
            )
            for row in sorted(rows, key=lambda row: str(row["key"]))
        ],
    )  # fmt: skip
