"""Removes withdrawn documents and users from decks and cached answers.

Invariants. A deck and a cached answer are tagged with the sources of their documents when they are stored, a cached
answer also with its user. Withdrawn texts can no longer be found once the withdrawal's transaction commits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import orjson

from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.pages import surrogate_keys
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.redaction import Withdrawn
from highwater.schemas.codec import Codec
from highwater.streams.jobs.redaction import redacted_slides, redacted_title
from highwater.streams.texts import Quotations

_DECK, _KEPT = "deck", "semantic"


async def redact_jobs(tx: Connection, _codec: Codec, withdrawn: Sequence[Withdrawn], _now_ms: int) -> None:
    """Remove withdrawn objects from decks, and reuse no cached answer that may quote one. A `RedactionStep`."""
    await _withdraw_kept(tx, withdrawn)
    decks = await surrogate_keys.holders(tx, _DECK, withdrawn)
    if decks:
        rows = await tx.fetch(QUERIES["decks_to_redact"], [one.document for one in decks])
        texts = {one.document: [said.text for said in one.withdrawn] for one in decks}
        await _redact(tx, [(row, Quotations(texts[row["presentation_id"]])) for row in rows])


async def _redact(tx: Connection, decks: Sequence[tuple[Any, Quotations]]) -> None:
    columns: list[tuple[str, str, str]] = []
    for row, quoted in decks:
        slides = orjson.loads(row["slides"])
        title, left = redacted_title(row["title"], quoted), redacted_slides(slides, quoted)
        if (title, left) != (row["title"], slides):
            columns.append((row["presentation_id"], title, orjson.dumps(left).decode()))
    if columns:
        await tx.execute(QUERIES["redact_decks"], *map(list, zip(*columns, strict=True)))


async def _withdraw_kept(tx: Connection, withdrawn: Sequence[Withdrawn]) -> None:
    kept = await surrogate_keys.holders(tx, _KEPT, withdrawn)
    if kept:
        hashes = [one.document for one in kept]
        await tx.execute(QUERIES["withdraw_semantic_vectors"], hashes)
        await surrogate_keys.untag(tx, [f"{_KEPT}:{one}" for one in hashes])


async def withdraw_users(tx: Connection, user_ids: Collection[str]) -> None:
    """Drop the cached answers of these users, who are erased."""
    await _withdraw_kept(
        tx, [Withdrawn(surrogate_keys.user_space(user_id), 0, user_id, "", "") for user_id in sorted(user_ids)]
    )


async def tag_deck(tx: Connection, presentation_id: str, documents: Sequence[str]) -> None:
    """Tag a deck that was just stored; quotes of chunks and insights that were withdrawn while it was made are removed
    at once.

    `documents`: ids of documents and of insights.
    """
    if not documents:
        return
    await surrogate_keys.share(tx)
    await tx.execute(QUERIES["tag_documents"], f"{_DECK}:{presentation_id}", list(documents))
    await surrogate_keys.tag_insights(tx, f"{_DECK}:{presentation_id}", 0, list(documents))
    deleted = [row["text"] for row in await tx.fetch(QUERIES["deleted_texts"], list(documents))]
    deleted += [one.text for one in await surrogate_keys.retracted_of(tx, list(documents), "")]
    if deleted:
        rows = await tx.fetch(QUERIES["decks_to_redact"], [presentation_id])
        quoted = Quotations(deleted)
        await _redact(tx, [(row, quoted) for row in rows])


async def tag_kept(tx: Connection, entry_hash: str, user_id: str, documents: Sequence[str], text: str) -> bool:
    """Tag an answer that is to be cached with its user and the sources of its documents.

    False: its `text` quotes a chunk that was deleted while it was made, so it must not be reused.
    """
    await surrogate_keys.share(tx)
    document = f"{_KEPT}:{entry_hash}"
    await surrogate_keys.tag(tx, [(document, 0, surrogate_keys.user_space(user_id), 0)])
    if not documents:
        return True
    await tx.execute(QUERIES["tag_documents"], document, list(documents))
    deleted = await tx.fetch(QUERIES["deleted_texts"], list(documents))
    return not deleted or text not in Quotations(row["text"] for row in deleted)
