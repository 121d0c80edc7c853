"""The materializer of jobs in Redis: checkpoints, the streams that watchers read, usage of the month (R2.11 to R2.19,
R2.35).

Invariants. Repeated events change nothing: an entry's id is the event's number, a checkpoint of a lower epoch never
replaces one of a higher, and a usage is added only if it is the next one. If usage does not continue from the value in
Redis, it is read from PostgreSQL. While Redis is unavailable the events wait in the log, so a Redis that kept its data
is complete when it recovers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, TypeAlias

import asyncpg
import orjson

from highwater.connectors.jobs import usage
from highwater.connectors.kafka.checking import divided
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event, of_topic
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.redis.keys import (
    CHECKPOINT,
    CHECKPOINT_SECONDS,
    PRESENTATION_VIEWS,
    PROGRESS,
    PROGRESS_BROADCAST,
    PROGRESS_ENTRIES_MAX,
    PROGRESS_SECONDS,
    USAGE,
    USAGE_SECONDS,
    key,
)
from highwater.connectors.redis.link import RedisLink
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.jobs import CHECKPOINT_SAVED, USAGE_RECORDED, CheckpointSaved, JobProgressed, UsageRecorded
from highwater.schemas.jobs import PROGRESS as PROGRESSED
from highwater.schemas.topic_names import event_of
from highwater.streams.checks import check_id
from highwater.streams.jobs.progress import ENDS
from highwater.streams.jobs.usage import month_of

# The topics shown in Redis.
Shown: TypeAlias = CheckpointSaved | JobProgressed | UsageRecorded

_OF_SLIDE: tuple[Literal["slide_number", "slide_id", "slide_title"], ...] = ("slide_number", "slide_id", "slide_title")

# Adds entries of one job, each [id, pct, ends, fields]. An existing one is skipped; one whose progress goes back is
# refused, unless it is the end, which watchers must see. For each: its progress as shown, -1 refused. `pcall` handles ids
# at or below the last one, which the stream remembers also for entries that it has dropped.
_ADD = """
local outcomes, added = {}, false
for n = 3, #ARGV do
  local id, pct, ends, fields = unpack(cjson.decode(ARGV[n]))
  local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  local held = 0
  if last then
    for at = 1, #last[2], 2 do if last[2][at] == 'progress_pct' then held = tonumber(last[2][at + 1]) end end
  end
  if ends == 1 and pct < held then pct = held end
  outcomes[n - 2] = pct
  table.insert(fields, 'progress_pct')
  table.insert(fields, tostring(pct))
  if pct < held then
    local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
    local is_past = tonumber(string.match(first[1], '%d+')) > tonumber(string.match(id, '%d+'))
    if not is_past and #redis.call('XRANGE', KEYS[1], id, id) == 0 then outcomes[n - 2] = -1 end
  else
    local found = redis.pcall('XADD', KEYS[1], 'MAXLEN', ARGV[1], id, unpack(fields))
    if type(found) ~= 'table' then added = true
    elseif not string.find(found.err, 'equal or smaller', 1, true) then return found end
  end
end
if added then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return outcomes
"""
# ARGV: epoch, status, seconds, fields. A failed job's checkpoint keeps its remaining time (R2.14); if there is none any
# more it is written in full, since without an expiry it would stay forever.
_SAVE = """
local held = redis.call('HMGET', KEYS[1], 'epoch', 'status')
if tonumber(held[1] or '-1') > tonumber(ARGV[1]) then return 0 end
if ARGV[2] == 'failed' and held[1] then
  redis.call('HSET', KEYS[1], 'status', ARGV[2], 'epoch', ARGV[1])
else
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1], unpack(ARGV, 4))
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
return 1
"""
# ARGV: seq, at, seconds, presentations, slides, tokens, cost_cents. 1 added, 0 counted already, -1: not the next of the
# stored ones.
_COUNT = """
local seq = tonumber(ARGV[1])
local held = redis.call('HGET', KEYS[1], 'seq')
if held and tonumber(held) >= seq then return 0 end
if (held and tonumber(held) ~= seq - 1) or (not held and seq ~= 1) then return -1 end
for n, name in ipairs({'presentations', 'slides', 'tokens', 'cost_cents'}) do
  redis.call('HINCRBY', KEYS[1], name, ARGV[3 + n])
end
redis.call('HSET', KEYS[1], 'seq', ARGV[1], 'at', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""
# The same arguments, absolute; the stored value is only replaced by a later one.
_SET = """
if tonumber(redis.call('HGET', KEYS[1], 'seq') or '0') >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'seq', ARGV[1], 'at', ARGV[2], 'presentations', ARGV[4], 'slides', ARGV[5], 'tokens', ARGV[6],
  'cost_cents', ARGV[7])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""


def check_materialized(topic: str, value: Shown) -> None:
    """Check that the values for Redis are valid.

    Raises:
        InvalidEventError: they are not; names the field.
    """
    if progressed := event_of(PROGRESSED, topic, value):
        _check_seq(progressed["seq"])
        percents = progressed["progress_pct"]
        if not 0 <= percents <= 100:
            raise InvalidEventError("bad_progress", f"progress {percents} is not 0 to 100", field="progress_pct")
    elif recorded := event_of(USAGE_RECORDED, topic, value):
        check_id("organization_id", recorded["organization_id"])
        month_of(recorded["period"])
        _check_seq(recorded["seq"])


def _check_seq(seq: int) -> None:
    if seq < 1:
        raise InvalidEventError("bad_seq", f"seq {seq} is below 1", field="seq")


def entry_fields(value: JobProgressed) -> list[str]:
    """Return the fields of an entry without its progress (R2.17), names and values in turn; unknown ones are left out."""
    fields = ["event_type", value["event_type"]]
    for name in _OF_SLIDE:
        if value[name] is not None:
            fields += [name, str(value[name])]
    fields += ["timestamp", str(value["at"])]
    if value["event_type"] == "error":
        fields += ["error_message", value["error_message"] or ""]
    return fields


def broadcast_of(value: JobProgressed, progress_pct: int) -> dict[str, str | dict[str, str]]:
    """Return the message of a step on `pubsub:gen_progress` (R2.22), with the entry's id in the job's stream and its progress."""
    fields = entry_fields(value)
    event = dict(zip(fields[::2], fields[1::2], strict=True))
    event |= {"id": f"{value['seq']}-0", "progress_pct": str(progress_pct)}
    return {"job_id": value["job_id"], "user_id": value["user_id"], "event": event}


def checkpoint_fields(value: CheckpointSaved) -> list[str]:
    """Return the fields of a checkpoint (R2.11), names and values in turn."""
    return [
        *("job_id", value["job_id"], "presentation_id", value["presentation_id"], "status", value["status"]),
        *("outline", value["outline"], "worker_id", value["worker_id"], "langgraph_state", value["state"]),
        *("slides_completed", str(value["slides_completed"]), "slides_total", str(value["slides_total"])),
        *("completed_slide_ids", orjson.dumps(value["completed_slide_ids"]).decode()),
        *("last_updated", iso_from_ms(value["at"])),
    ]


class Progress(Handler[Shown, list[DeadLetter]]):
    """Keeps Redis up to date with jobs, and wakes their watchers."""

    group = "progress"
    topics = (CHECKPOINT_SAVED, PROGRESSED, USAGE_RECORDED)
    tombstones = frozenset({CHECKPOINT_SAVED})
    # A step of 200 bytes takes some 20 us in Redis, so a full batch blocks it for 20 ms.
    batch_max = 1_000

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], link: RedisLink) -> None:
        self._pool = pool
        self._link = link
        self._add, self._save, self._count, self._set = map(link.script, (_ADD, _SAVE, _COUNT, _SET))

    async def prepare(self, events: Sequence[Event[Shown]]) -> list[DeadLetter]:
        """Write all of it to Redis.

        Raises:
            RedisAwayError: the batch is retried until Redis recovers.
        """
        self._link.require()
        good, dead = divided(events, check_materialized)
        await self._checkpoints(of_topic(good, CHECKPOINT_SAVED))
        dead += await self._progress(of_topic(good, PROGRESSED))
        await self._usage(of_topic(good, USAGE_RECORDED))
        return dead

    async def apply(
        self, tx: Connection, events: Sequence[Event[Shown]], prepared: list[DeadLetter]
    ) -> Sequence[DeadLetter]:
        """Store only the positions: Redis is not a source of truth."""
        return prepared

    async def _checkpoints(self, events: Sequence[Event[CheckpointSaved]]) -> None:
        pipe = self._link.require().pipeline(transaction=False)
        for record, value in events:
            if record.value is None:
                job_id = (record.key or b"").decode("utf-8", "replace")
                # An erased deck's number has no other end; that of a new deck is filled again when it is read.
                pipe.delete(key(CHECKPOINT, job_id=job_id))
                pipe.delete(key(PRESENTATION_VIEWS, presentation_id=job_id))
                continue
            arguments = [value["epoch"], value["status"], CHECKPOINT_SECONDS, *checkpoint_fields(value)]
            await self._save(keys=[key(CHECKPOINT, job_id=value["job_id"])], args=arguments, client=pipe)
        await self._link.run(pipe.execute())

    async def _progress(self, events: Sequence[Event[JobProgressed]]) -> list[DeadLetter]:
        jobs: dict[str, list[Event[JobProgressed]]] = defaultdict(list)
        for event in events:
            jobs[event.value["job_id"]].append(event)
        pipe = self._link.require().pipeline(transaction=False)
        for job_id, steps in jobs.items():
            arguments = [PROGRESS_ENTRIES_MAX, PROGRESS_SECONDS, *(_entry(value) for _, value in steps)]
            await self._add(keys=[key(PROGRESS, job_id=job_id)], args=arguments, client=pipe)
        outcomes = await self._link.run(pipe.execute())
        judged = [
            (event, outcome)
            for steps, of_job in zip(jobs.values(), outcomes, strict=True)
            for event, outcome in zip(steps, of_job, strict=True)
        ]
        # After the entries: a reader that is woken finds them. In one pipeline the nodes of a cluster would do both at once.
        # A repeated batch is broadcast again, since the first time may have been lost between the two.
        shown = [orjson.dumps(broadcast_of(event.value, pct)) for event, pct in judged if pct >= 0]
        await self._link.replies([("PUBLISH", PROGRESS_BROADCAST, message) for message in shown])
        return [
            DeadLetter(
                event.record,
                "progress_went_back",
                f"progress {event.value['progress_pct']} is below the reported progress",
            )
            for event, outcome in judged
            if outcome < 0
        ]

    async def _usage(self, events: Sequence[Event[UsageRecorded]]) -> None:
        pipe = self._link.require().pipeline(transaction=False)
        for _, value in events:
            arguments = [value["seq"], value["at"], USAGE_SECONDS, *usage.amounts_of(value)]
            await self._count(keys=[_usage_key(value)], args=arguments, client=pipe)
        outcomes = await self._link.run(pipe.execute())
        short = {
            (value["organization_id"], value["period"]): value
            for (_, value), outcome in zip(events, outcomes, strict=True)
            if outcome < 0
        }
        for (organization_id, period), value in short.items():
            found = await usage.usage_of(self._pool, organization_id, period)
            amounts = (found.presentations, found.slides, found.tokens, found.cost_cents)
            arguments = [found.upto_seq, found.upto_ms or value["at"], USAGE_SECONDS, *amounts]
            await self._link.run(self._set(keys=[_usage_key(value)], args=arguments))


def _usage_key(value: UsageRecorded) -> str:
    return key(USAGE, org=value["organization_id"], period=value["period"])


def _entry(value: JobProgressed) -> bytes:
    ends = int(value["event_type"] in ENDS)
    return orjson.dumps([f"{value['seq']}-0", value["progress_pct"], ends, entry_fields(value)])
