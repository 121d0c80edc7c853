"""Removes withdrawn sources from runs: answers, log lines, memories, and the model's output.

Invariants. A run is tagged with its sources when they are stored, under the lock that it shares with other documents.
Withdrawn texts leave ended runs in their own transaction; a run in progress records what was withdrawn, and its later
output is checked against that before it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from highwater.connectors.models.call_rows import erase_answers
from highwater.connectors.pages import surrogate_keys
from highwater.connectors.postgres.pool import Connection, Row
from highwater.connectors.queries.changes import Change
from highwater.connectors.queries.rows import whole_run_of
from highwater.connectors.queries.statements import QUERIES
from highwater.connectors.redaction import Withdrawn
from highwater.schemas.codec import Codec
from highwater.schemas.feeds import INSIGHT_INGESTED
from highwater.streams.queries.redaction import (
    WithdrawnSource,
    is_withdrawn,
    redacted_run,
    withdrawn_answer,
    withdrawn_memory,
)
from highwater.streams.queries.runs import Run

_KIND = "run"


async def redact_queries(tx: Connection, _codec: Codec, withdrawn: Sequence[Withdrawn], _now_ms: int) -> None:
    """Remove withdrawn objects from runs, and from their log lines and memories. A `RedactionStep`."""
    held = await surrogate_keys.holders(tx, _KIND, withdrawn)
    if not held:
        return
    rows = await tx.fetch(QUERIES["runs_to_redact"], [one.document for one in held])
    gone = [_source_of(one) for one in withdrawn]
    caused_by = withdrawn[-1].caused_by
    columns: list[tuple[Any, ...]] = []
    silenced: list[Run] = []
    for row in rows:
        run = whole_run_of(row)
        after = redacted_run(run, gone)
        is_at_work = not run.released
        if after.answer != run.answer:
            silenced.append(run)
        elif not (row["is_told"] or is_at_work):
            continue
        kept = orjson.dumps([list(one) for one in gone]).decode() if is_at_work else None
        columns.append(
            (run.id, _json(after.sources), after.answer, caused_by if row["is_told"] else run.caused_by, kept)
        )
    if columns:
        await tx.execute(QUERIES["redact_runs"], *map(list, zip(*columns, strict=True)))
    await _silence(tx, silenced)
    told = [str(row["id"]) for row in rows if row["is_told"] and row["released"]]
    await erase_answers(tx, sorted({*told, *(run.id for run in silenced)}))


async def _silence(tx: Connection, runs: Sequence[Run]) -> None:
    """Remove answers from the message log and from memories."""
    if runs:
        ids = [run.id for run in runs]
        await tx.execute(QUERIES["redact_raw_logs"], ids, [withdrawn_answer(run.query) for run in runs])
        await tx.execute(QUERIES["redact_memories"], ids, [withdrawn_memory(run.query).text for run in runs])


def _source_of(one: Withdrawn) -> WithdrawnSource:
    kind, _, rest = one.space.partition(":")
    channel_id = rest if kind == "channel" else rest.partition("|")[0]
    return WithdrawnSource(channel_id, one.object_id, one.text)


def _json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


# -- storing runs in progress
# ---------------------------------------------------------------------------------------------


async def without_withdrawn(tx: Connection, changes: Sequence[Change]) -> Sequence[Change]:
    """Return changes without texts that were withdrawn since their runs were notified; call it before rows of runs are
    locked.

    If one of them has a text, nothing is withdrawn until the transaction ends.
    """
    speaking = [change.before.id for change in changes if _speaks(change)]
    if not speaking:
        return changes
    await surrogate_keys.share(tx)
    rows = {row["id"]: row for row in await tx.fetch(QUERIES["withdrawn_of_runs"], speaking)}
    return [_redacted(change, rows[change.before.id]) if change.before.id in rows else change for change in changes]


def _speaks(change: Change) -> bool:
    before, after = change.before, change.after
    return change.memory is not None or after.answer is not before.answer or after.sources is not before.sources


def _redacted(change: Change, row: Row) -> Change:
    gone = [WithdrawnSource(*one) for one in orjson.loads(row["withdrawn"])]
    steps = tuple(redacted_run(step, gone) for step in change.steps)
    is_silenced = is_withdrawn(row["final_answer"]) or is_withdrawn(steps[-1].answer)
    memory = withdrawn_memory(change.after.query) if change.memory is not None and is_silenced else change.memory
    return replace(change, steps=steps, memory=memory)


async def tag_sources(tx: Connection, changes: Sequence[Change]) -> None:
    """Tag runs with the sources that are stored with them; a source retracted since it was read is withdrawn at once.

    An ended run keeps no tags.
    """
    for change in changes:
        if change.after.sources is not change.before.sources and change.after.sources:
            await _tag(tx, change)
    ended = [change.after.id for change in changes if change.after.released]
    if ended:
        rows = await tx.fetch(QUERIES["forget_contexts"], ended)
        await erase_answers(tx, [row["id"] for row in rows])


async def _tag(tx: Connection, change: Change) -> None:
    run = change.after
    sources = [one for one in run.sources or () if one["insight_id"]]
    insights = [one for one in sources if one["position"].startswith(f"{INSIGHT_INGESTED}/")]
    ids = [one["insight_id"] for one in insights]
    document = f"{_KIND}:{run.id}"
    await surrogate_keys.tag_insights(tx, document, 0, ids)
    chunks = [one for one in sources if one not in insights]
    await surrogate_keys.tag(
        tx, [(document, 0, *surrogate_keys.place_of_chunk(one["channel_id"], one["insight_id"])) for one in chunks]
    )
    gone = [_source_of(one) for one in await surrogate_keys.retracted_of(tx, ids, run.caused_by)]
    if gone:
        left = redacted_run(run, gone)
        kept = orjson.dumps([list(one) for one in gone]).decode()
        columns = [[run.id], [_json(left.sources)], [left.answer], [run.caused_by], [kept]]
        await tx.execute(QUERIES["redact_runs"], *columns)
