"""(a) Read models: the sinks store the log again in a separate database, and its rows are compared with the live ones.

Invariant: the live side is one snapshot, positions and rows together; the shadow ends exactly at those positions.
Fields that are not a function of the log are listed in `MODELS` with the reason, and a row that the log leaves
ambiguous is counted, never guessed. A model whose log has lost its beginning, or was recreated, is not compared and
reported as such. Both sides come a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.positions import Place
from highwater.connectors.verify.holes import holes_of, without_replaced
from highwater.connectors.verify.live import Row, Rows, live_snapshot
from highwater.connectors.verify.log import read_in_order
from highwater.connectors.verify.report import Checked, Difference
from highwater.connectors.verify.shadow import Ambiguous, Shadow
from highwater.connectors.verify.statements import QUERIES
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.connectors.verify.word_sums import verify_word_sums
from highwater.streams.settings import Settings

PART = "read models"
# Read alongside, so that the ambiguity they cause is known; no sink of the shadow stores them.
_NOTED = ("queries.run-controlled",)
# Group -> topics of others that decide the contents of its rows: without their beginning its rows are unknown too.
_ERASED_TOPIC = "feeds.user-erased"
_LEANS_ON: Mapping[str, tuple[str, ...]] = {
    "results": ("league.match-scheduled",),
    "votes": ("league.match-scheduled", _ERASED_TOPIC),
    "posts": ("league.match-scheduled", _ERASED_TOPIC),
    "queries": (_ERASED_TOPIC,),
    "jobs": (_ERASED_TOPIC,),
}

# Why a row that differs in these fields is ambiguous in the log; None = it is not.
Open = Callable[[Mapping[str, Any], frozenset[str], Ambiguous], str | None]


def _never(_row: Mapping[str, Any], _fields: frozenset[str], _found: Ambiguous) -> str | None:
    return None


def _erased(row: Mapping[str, Any], _fields: frozenset[str], found: Ambiguous) -> str | None:
    if row["user_id"] in found.erased_users:
        return "of a user who was erased: what other topics reported around it depends on the order of reading"
    return None


def _user(row: Mapping[str, Any], fields: frozenset[str], found: Ambiguous) -> str | None:
    if fields <= {"last_active_at"} and row["user_id"] in found.ahead_users:
        return "a time that lay ahead was stored as the moment in which the sink read it"
    return _erased(row, fields, found)


def _insight(row: Mapping[str, Any], fields: frozenset[str], found: Ambiguous) -> str | None:
    if "source_partition" in fields:
        return "sent to two partitions: which one was read first is not in the log"
    if fields <= {"seq"} and row["channel_id"] in found.spread_channels:
        return "of a channel in several partitions: its numbers follow the order of reading"
    return None


def _match(row: Mapping[str, Any], _fields: frozenset[str], found: Ambiguous) -> str | None:
    if row["match_id"] in found.early_matches:
        return "of a match that was reported before its schedule: what waits and what is refused depends on the time"
    return None


def _said(row: Mapping[str, Any], fields: frozenset[str], found: Ambiguous) -> str | None:
    return _match(row, fields, found) or _erased(row, fields, found)


def _run(row: Mapping[str, Any], fields: frozenset[str], found: Ambiguous) -> str | None:
    if fields <= {"ordinal"} and row["user_id"] in found.restarted_users | found.erased_users:
        return "a place in the order of a user who restarted a run or was erased: places are shared by two topics"
    return None


def _former(_row: Mapping[str, Any], fields: frozenset[str], _found: Ambiguous) -> str | None:
    if "row" in fields:
        return "the text of a chunk that was marked or taken away: ends of ingests and sweeps are decided by ticks"
    return None


@dataclass(frozen=True, slots=True)
class Model:
    """A table or part of one. Its query returns `columns`, the first `key` of them the key, then the position of the event."""

    name: str
    group: str
    query: str
    columns: tuple[str, ...]
    key: int = 1
    is_open: Open = _never
    excluded: Mapping[str, str] = field(default_factory=dict)
    is_subset: bool = False  # rows of the log may be deleted by the actions of other groups


def _columns(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_BATCHES = "follows from how the events fell into batches"
_CLOCK = "a time of day of the process that stored it"
_LANGUAGES = "texts that were stored before their language was known have none; sums of words are compared"
_WORKERS = "stored by workers, checked by the events that report it"

MODELS: tuple[Model, ...] = (
    Model(
        "channels", "insights", QUERIES["verify_channels"], _columns("channel_id current_seq last_insight_ts last_arrived_at"),
        excluded={
            "announced_seq": "how far a worker has published; moves with each tick",
            "retractions": "of two topics: one that was read before its insight is not counted",
        },
    ),
    Model(
        "insights", "insights", QUERIES["verify_insights"],
        _columns(
            "insight_id channel_id seq ts arrived_at text url embedding embedding_model is_retracted source_partition "
            "source_offset"
        ),
        is_open=_insight,
        excluded={
            "embedding, embedding_model of vectors that were made": "the log does not say which basis was active",
            "next_embedding, next_model": "the roll-out of a basis",
            "retracted_at": _CLOCK + "; that there is one is compared",
            "language": _LANGUAGES,
            "excluded_at": "how long a service did not answer",
            "retraction": "as retractions of channels",
        },
    ),
    Model(
        "user_stats", "users", QUERIES["verify_users"],
        _columns("user_id plan plan_changed_ms last_active_at subscriptions_replaced_ms"), is_open=_user,
        excluded={
            "revision, caused_by": _BATCHES + "; `revision` is compared with feeds.user-changed",
            "pending_insights_count, last_clustered_at, last_enqueued_at, last_checked_at, cluster_version, in_flight, "
            "in_flight_until, last_request, curated_shown, delayed_at, delay_reason, delays, vectors_awaited_since": _WORKERS,
            "curated_revision": "a revision of the user's; what it counts, the curations, is compared",
        },
    ),
    Model(
        "subscriptions", "users", QUERIES["verify_subscriptions"], _columns("user_id channel_id changed_ms"), key=2,
        is_open=_erased,
        excluded={"rows that are off": "there may be one or none, by which of two topics was read first"},
    ),
    Model(
        "cluster_curations", "users", QUERIES["verify_curations"],
        _columns("user_id curation_id curation arrived_ms source_partition source_offset"), key=2, is_open=_erased,
    ),
    Model(
        "league_matches", "results", QUERIES["verify_matches"],
        _columns(
            "match_id season round kickoff time_unknown status home away home_goals away_goals home_goals_extra_time "
            "away_goals_extra_time home_penalties away_penalties minute finalized_at schedule_ms schedule_position score_ms "
            "score_position result_ms result_position"
        ),
        is_open=_match,
        excluded={
            "score_ms, score_position of matches with a result": "scores after the result change nothing; two topics",
            "revision, created_ms, position of league_seasons": _BATCHES,
        },
    ),
    Model(
        "league_votes", "votes", QUERIES["verify_votes"], _columns("match_id user_id choice cast_at cast_ms position"), key=2,
        is_open=_said,
    ),
    Model(
        "league_predictions", "votes", QUERIES["verify_predictions"],
        _columns("match_id user_id home_goals away_goals made_at made_ms position"), key=2, is_open=_said,
    ),
    Model(
        "league_vote_counts", "votes", QUERIES["verify_vote_counts"], _columns("match_id home draw away"), is_open=_match,
        excluded={"cast_ms, position": "of the batch that counted last"},
    ),
    Model(
        "league_comments", "posts", QUERIES["verify_comments"],
        _columns("match_id position posted_ms user_id body posted_at"), key=2, is_open=_said,
    ),
    Model("league_rules", "posts", QUERIES["verify_rules"], _columns("season rules changed_ms position")),
    Model("league_ads", "posts", QUERIES["verify_ads"], _columns("ad_id payload changed_at changed_ms position")),
    Model(
        "pipeline_runs", "queries", QUERIES["verify_runs"],
        _columns("id user_id organization_id ordinal user_query arrived_ms position"),
        is_open=_run,
        excluded={
            "runs that were restarted, and all columns after the submission": "the work of the stages: answers of a model",
            "raw_logs, lsm_storage, llm_calls": "answers of a model",
        },
    ),
    Model(
        "system_prompts", "queries", QUERIES["verify_prompts"],
        _columns("position role_name prompt_template is_active arrived_ms"),
        excluded={"id, changed_at": _CLOCK},
    ),
    Model(
        "organizations", "organizations", QUERIES["verify_organizations"],
        _columns("organization_id plan subscription_status period_end arrived_ms position"),
        excluded={"changed_at": _CLOCK, "user_roles": "given by the API at once as well, before its event"},
    ),
    Model(
        "jobs", "jobs", QUERIES["verify_jobs"],
        _columns("job_id kind organization_id user_id args expires_ms arrived_ms position"), is_open=_erased,
        excluded={
            "status and all that follows": "limits are judged with what was used at that moment; the rest is work",
            "presentations, presentation_shares, presentation_links, blobs, semantic_vectors": "answers of a model, and uploads",
        },
    ),
    Model(
        "usage_records", "usage", QUERIES["verify_usage"],
        _columns("organization_id period presentations slides tokens cost_cents upto_seq"), key=2,
        excluded={"flushed_at": _CLOCK},
    ),
    Model(
        "chunks", "chunks", QUERIES["verify_chunks"],
        _columns(
            "ns slot source_id chunk_no content title url content_hash published_at ingest_id source_partition source_offset"
        ),
        key=4, is_subset=True,
        excluded={
            "embedding, embedding_model, embedding_stale, vector_text": "made by a worker, in a model of the moment",
            "to_delete, marked_at, content_since, and rows that are gone": "ends of ingests and sweeps, decided by ticks",
            "created_at, updated_at": _CLOCK,
            "language, words": _LANGUAGES,
            "chunk_ingests, chunk_failures, chunk_namespaces": "counts of an ingest depend on how its two topics were read",
        },
    ),
    Model(
        "former_chunks", "chunks", QUERIES["verify_former_chunks"],
        _columns(
            "ns slot source_id chunk_no source_partition source_offset content title url content_hash published_at ingest_id"
        ),
        key=6, is_open=_former, is_subset=True,
        excluded={
            "content_since, valid_until, and rows that are gone": "ends of ingests and sweeps, decided by ticks",
            "embedding, embedding_model, embedding_stale": "made by a worker, in a model of the moment",
            "created_at, updated_at": _CLOCK,
            "language, words": _LANGUAGES,
        },
    ),
)  # fmt: skip
# Tables that are not compared at all.
NOT_COMPARED: Mapping[str, str] = {
    "documents, feed_documents": "made when somebody asks, of what is stored by then",
    "resource_versions": "raised by readers and by workers; checked by cache.version-bumped",
    "user_clusters, user_cluster_hwm, user_cluster_marks, cluster_history, rebuild_demands": _WORKERS,
    "surrogate_keys": "follow from the documents that they name",
    "league_ratings, run_events, alerts_sent, digests_sent": _WORKERS,
    "positions, outbox, copy_leases, active_basis, bases, reembedding": "of the machinery, not of the log",
}


async def verify_models(
    context: ProcessContext, settings: Settings, shadow: Shadow, time_limit: TimeLimit
) -> list[Checked]:
    """Compare the read models with the result of the sinks over the log in the shadow."""
    time_limit.at("a snapshot of the database")
    async with live_snapshot(settings) as live:
        positions: dict[str, dict[Place, tuple[int, str]]] = {}
        for row in await live.fetch(QUERIES["verify_positions"]):
            positions.setdefault(row["group"], {})[row["topic"], row["partition"]] = (row["next"], row["topic_id"])
        spans, unusable = await _spans(context, shadow, positions)
        await shadow.fill(without_replaced(context, read_in_order(context.client, spans, time_limit)))
        async with shadow.pool.acquire() as made, made.transaction():
            found = []
            for model in MODELS:
                time_limit.at(f"rows of {model.name}")
                found.append(await _compared(model, live, made, shadow.ambiguous, unusable, time_limit))
            return [*found, await verify_word_sums(live, PART, time_limit)]


async def _spans(
    context: ProcessContext, shadow: Shadow, positions: Mapping[str, Mapping[Place, tuple[int, str]]]
) -> tuple[dict[Place, LogRange], dict[str, str]]:
    """Return what each sink has read, and the sinks whose log has changed."""
    topics = sorted({topic for sink in shadow.sinks for topic in sink.topics} | set(_NOTED))
    counts = await context.admin.partition_counts()
    ranges = await context.admin.log_ranges([(t, p) for t in topics for p in range(counts.get(t, 0))])
    topic_ids = await context.admin.topic_ids([topic for topic in topics if topic in counts])
    spans = {(t, p): ranges[t, p] for t in _NOTED for p in range(counts.get(t, 0))}
    holes = await holes_of(context)
    changed: dict[str, str] = {}
    for sink in shadow.sinks:
        for place, (upto, topic_id) in positions.get(sink.group, {}).items():
            topic = place[0]
            if topic not in sink.topics or place not in ranges:
                continue
            if topic_ids[topic] != topic_id:
                changed[topic] = f"{topic} was recreated since it was read"
            elif ranges[place].low > 0:
                changed[topic] = f"the log of {topic} no longer has its beginning"
            elif place in holes:
                changed[topic] = holes[place]
            spans[place] = LogRange(ranges[place].low, max(ranges[place].low, min(upto, ranges[place].high)))
    return spans, unusable_groups({sink.group: sink.topics for sink in shadow.sinks}, changed)


def unusable_groups(topics: Mapping[str, Sequence[str]], changed: Mapping[str, str]) -> dict[str, str]:
    """Return groups whose rows the log can no longer produce, with the reason; `changed` gives the reason by topic."""
    found = {}
    for group, own in topics.items():
        why = [changed[topic] for topic in (*own, *_LEANS_ON.get(group, ())) if topic in changed]
        if why:
            found[group] = "; ".join(why)
    return found


async def _compared(
    model: Model, live: Any, made: Any, ambiguous: Ambiguous, unusable: Mapping[str, str], time_limit: TimeLimit
) -> Checked:
    checked = Checked(PART, model.name)
    checked.skipped = unusable.get(model.group)
    if checked.skipped is not None:
        return checked
    ours, theirs = Rows(made, model.query), Rows(live, model.query)
    expected, found = await ours.next(), await theirs.next()
    while expected is not None or found is not None:
        time_limit.check()
        if found is None or (expected is not None and expected[: model.key] < found[: model.key]):
            if expected is not None and not model.is_subset:
                _differ(checked, model, ambiguous, expected, None)
            expected = await ours.next()
        elif expected is None or found[: model.key] < expected[: model.key]:
            _differ(checked, model, ambiguous, None, found)
            found = await theirs.next()
        else:
            checked.compared += 1
            if expected[:-1] != found[:-1]:
                _differ(checked, model, ambiguous, expected, found)
            expected, found = await ours.next(), await theirs.next()
    return checked


def _differ(checked: Checked, model: Model, ambiguous: Ambiguous, expected: Row | None, found: Row | None) -> None:
    """Count a difference, or an ambiguity of the log."""
    row = expected or found or ()
    named = dict(zip(model.columns, row, strict=False))
    fields: frozenset[str]
    if expected is None or found is None:
        fields = frozenset({"row"})
    else:
        fields = frozenset(n for n, one, other in zip(model.columns, expected, found, strict=False) if one != other)
    why = model.is_open(named, fields, ambiguous)
    if why is not None:
        checked.leave_out(why)
        return
    key = "|".join(map(str, row[: model.key]))
    if expected is None or found is None:
        checked.compared += 1
        shown = None if expected is None else _shown(model, expected), None if found is None else _shown(model, found)
        # A row that the log does not produce has no event, even if it names one.
        checked.differs(Difference(key, "row", *shown, None if expected is None else row[-1]))
        return
    for number, name in enumerate(model.columns):
        if expected[number] != found[number]:
            checked.differs(Difference(key, name, expected[number], found[number], expected[-1]))


def _shown(model: Model, row: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in zip(model.columns, row, strict=False))
