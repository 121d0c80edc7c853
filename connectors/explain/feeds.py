"""The trace of a feed: served, bump, rebuild, request, and for each channel novelty, dirty, advance, insights.

Invariant: that of `connectors/explain/explaining.py`. For each channel the first and the last of its new insights are
traced: the first made it pending, the last is how far the version reaches. An event after the request is not its cause:
the rebuild included it, so it appears below the rebuild and is marked as later than the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from highwater.connectors.explain.explanations import Step, with_causes
from highwater.connectors.explain.pages import bump_step, bumped
from highwater.connectors.kafka.finding import Finder
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.records import Event, Record
from highwater.schemas.cache import VersionBumped
from highwater.schemas.envelope import caused_by
from highwater.schemas.feeds import (
    CHANNEL_ADVANCED,
    CHANNEL_DIRTY,
    CLUSTERS_CURATED,
    NOVELTY,
    REBUILD_FINISHED,
    REBUILD_REQUESTED,
    USER_CHANGED,
    ChannelAdvanced,
    NoveltyFound,
    RebuildFinished,
    RebuildRequested,
    UserChanged,
)
from highwater.schemas.positions import Cause, Position
from highwater.schemas.topics import TOPICS

# Default number of traced channels: a screen of them. The rest is counted.
CHANNELS_DEFAULT, CHANNELS_MAX = 20, 1_000
# How far back a demand is searched: it waits for a request in flight, whose deadline is minutes.
_DEMAND_MS_MAX = 3_600_000
# The clocks of a cluster's brokers differ by less than this.
_SKEW_MS = 1_000
_LATE = "came_after_request"


class NovelChannel(NamedTuple):
    """A channel with new insights in a version: those with numbers above `after_seq` up to `upto_seq`."""

    channel_id: str
    after_seq: int
    upto_seq: int

    @property
    def number(self) -> int:
        """Return the number of new insights."""
        return self.upto_seq - self.after_seq


class NewInsight(NamedTuple):
    """A stored insight; `arrived_ms` is the broker's time."""

    insight_id: str
    text: str
    position: Position
    arrived_ms: int


@dataclass(frozen=True, slots=True)
class FeedFacts:
    """What PostgreSQL holds of a feed and the clusters that it shows; `insights` by channel and number."""

    user_id: str
    cluster_version: int
    feed_version: int
    feed_etag: str
    is_built: bool
    clusters_version: int
    request: Position | None
    numbers: Mapping[str, Any]
    channels: tuple[NovelChannel, ...]
    channels_left_out: int
    insights: Mapping[tuple[str, int], NewInsight]
    subscribed_ms: Mapping[str, int]
    erased: Cause | None = None


class _Probe(NamedTuple):
    """One insight of a channel to be traced."""

    channel_id: str
    seq: int
    insight: NewInsight


def novel_channels(hwm: Mapping[str, int] | None, before: Mapping[str, int] | None) -> list[NovelChannel]:
    """Return channels with new insights, most first. `before` None: the previous version does not exist or is no longer kept."""
    found = [NovelChannel(channel, (before or {}).get(channel, 0), seq) for channel, seq in (hwm or {}).items()]
    return sorted((one for one in found if one.number > 0), key=lambda one: (-one.number, one.channel_id))


def trace_feed(finder: Finder, facts: FeedFacts) -> Step:
    """Return the tree of a feed."""
    key = f"feed:{facts.user_id}"
    if facts.cluster_version == 0 or facts.request is None:
        return _empty_feed(facts)
    request = _request(finder, facts.request)
    from_ms = 0 if request is None else request.record.arrived_ms - _SKEW_MS
    finished = _finished(finder, facts, from_ms)
    clusters_key = f"clusters:{facts.user_id}"
    bump = bumped(finder, clusters_key, facts.clusters_version, from_ms)
    built = bumped(finder, key, facts.feed_version, from_ms) if facts.is_built else None
    told = Step("bump", f"version {facts.clusters_version} of {clusters_key}", missing=_GONE)
    if bump is not None:
        told = bump_step(bump, clusters_key)
    ways = _channel_steps(finder, facts, request)
    asked = _request_step(finder, facts, request, tuple(way for way in ways if not _is_late(way)))
    rebuild = with_causes(_rebuild_step(facts, finished), (asked, *filter(_is_late, ways)))
    return Step(
        "served",
        f"feed of {facts.user_id}, cluster version {facts.cluster_version}",
        position="" if built is None else str(built.record.position),
        at_ms=None if built is None else built.record.arrived_ms,
        numbers={"version": facts.feed_version, "etag": facts.feed_etag, "cluster_version": facts.cluster_version},
        missing=_missing_feed(facts, built),
        causes=(with_causes(told, (rebuild,)),),
    )


_GONE = "the log does not hold this event any more"


def _empty_feed(facts: FeedFacts) -> Step:
    """Return the feed of a user without clusters: they were erased, or none were built."""
    about = f"the empty feed of {facts.user_id}"
    if facts.erased is None:
        return Step("served", about, missing="no clusters were made for this user yet")
    erased = Step("event", "the user was erased", position=facts.erased.position, at_ms=facts.erased.arrived_ms)
    return Step("served", about, missing="no clusters were made since the user was erased", causes=(erased,))


def _missing_feed(facts: FeedFacts, built: Event[VersionBumped] | None) -> str:
    if not facts.is_built:
        return "nobody has read the feed since this version was made; the next reader has it built"
    return "" if built is not None else _GONE


def _request(finder: Finder, position: Position) -> Event[RebuildRequested] | None:
    found = finder.at(position)
    value = None if found is None else found.of(REBUILD_REQUESTED)
    return None if found is None or value is None else Event(found.record, value)


def _finished(finder: Finder, facts: FeedFacts, from_ms: int) -> Event[RebuildFinished] | None:
    key, request = facts.user_id.encode(), str(facts.request)
    found = finder.first(
        (REBUILD_FINISHED, _partition(REBUILD_FINISHED, key)),
        from_ms,
        lambda record: record.key == key,
        {request: lambda event: event.value["request_position"] == request},
    )
    return found.get(request)


def _rebuild_step(facts: FeedFacts, finished: Event[RebuildFinished] | None) -> Step:
    numbers = {name: value for name, value in facts.numbers.items() if value is not None}
    clusters, size = facts.numbers.get("clusters"), facts.numbers.get("dataset_size")
    about = f"rebuilt: {clusters} clusters of {size} insights, cluster version {facts.cluster_version}"
    if finished is None:
        return Step("rebuild", about, numbers=numbers, missing=_GONE)
    return Step("rebuild", about, str(finished.record.position), finished.record.arrived_ms, numbers)


def _request_step(
    finder: Finder, facts: FeedFacts, request: Event[RebuildRequested] | None, ways: tuple[Step, ...]
) -> Step:
    if request is None:
        return Step("request", "asked for", str(facts.request), missing=_GONE, causes=ways)
    record, value = request
    demand = _demand(finder, facts.user_id, record) if value["trigger"] == "manual" else ()
    changed = " and the shown insights have changed" if value["is_changed"] else ""
    about = f"{value['trigger']}: {value['pending']} pending{changed}, plan {value['plan']}"
    decided_from = {
        "trigger": value["trigger"],
        "pending": value["pending"],
        "plan": value["plan"],
        "policy_hash": value["policy_hash"],
        "tick_position": value["tick_position"],
        "last_clustered_at": value["last_clustered_at"],
        "last_enqueued_at": value["last_enqueued_at"],
    }
    numbers: dict[str, Any] = {name: number for name, number in decided_from.items() if number is not None}
    if facts.channels_left_out:
        numbers["channels_left_out"] = facts.channels_left_out
    return Step("request", about, str(record.position), record.arrived_ms, numbers, causes=(*demand, *ways))


def _demand(finder: Finder, user_id: str, request: Record) -> tuple[Step, ...]:
    """Return the last demand before a manual request, if there was one."""
    key = user_id.encode()
    place = (USER_CHANGED, _partition(USER_CHANGED, key))
    last: Event[UserChanged] | None = None
    for event in finder.events(place, request.arrived_ms - _DEMAND_MS_MAX, lambda record: record.key == key):
        if event.record.arrived_ms > request.arrived_ms + _SKEW_MS:
            break
        if event.value["rebuild_demanded"]:
            last = event
    if last is None:
        return ()
    cause = caused_by(last.record.headers)
    is_curated = cause is not None and cause.topic == CLUSTERS_CURATED
    about = "the reader said what the clusters are" if is_curated else "an operator asked for a rebuild"
    return (_changed_step(finder, last, about, "demand"),)


def _changed_step(finder: Finder, changed: Event[UserChanged], about: str, kind: str) -> Step:
    record = changed.record
    cause = caused_by(record.headers)
    origin = None if cause is None else finder.at(cause)
    causes: tuple[Step, ...] = ()
    if cause is not None:
        missing = _GONE if origin is None else ""
        at_ms = None if origin is None else origin.record.arrived_ms
        causes = (Step("event", TOPICS[cause.topic].about, str(cause), at_ms, missing=missing),)
    return Step(
        kind, about, str(record.position), record.arrived_ms, {"revision": changed.value["revision"]}, causes=causes
    )


# -- the traces of the channels ----------------------------------------------------------------------------------------


def _channel_steps(finder: Finder, facts: FeedFacts, request: Event[RebuildRequested] | None) -> tuple[Step, ...]:
    """Return the traces of the channels to a version, the longest-waiting insight first."""
    probes = [
        _Probe(one.channel_id, seq, facts.insights[one.channel_id, seq])
        for one in facts.channels
        for seq in dict.fromkeys((one.after_seq + 1, one.upto_seq))
        if (one.channel_id, seq) in facts.insights
    ]
    advances = _advances(finder, probes)
    novelties = _novelties(finder, facts, probes)
    counts = {one.channel_id: one.number for one in facts.channels}
    told: dict[tuple[str, str], list[_Probe]] = {}
    for probe in sorted(probes, key=lambda probe: probe.insight.arrived_ms):
        novelty = novelties.get(probe)
        told.setdefault((probe.channel_id, "" if novelty is None else str(novelty.record.position)), []).append(probe)
    steps = []
    for (channel_id, position), of_novelty in told.items():
        novelty = novelties.get(of_novelty[0])
        below = _below(finder, channel_id, novelty, of_novelty, advances)
        numbers: dict[str, Any] = {"channel_id": channel_id, "new": counts[channel_id]}
        if novelty is None:
            missing = (
                "no event reported it to this user before the rebuild, or the log does not hold the event any more"
            )
            steps.append(Step("novelty", f"{channel_id} is new", numbers=numbers, missing=missing, causes=below))
            continue
        is_late = request is not None and novelty.record.arrived_ms > request.record.arrived_ms
        if is_late:
            numbers[_LATE] = True
        head = next(entry["head"] for entry in novelty.value["heads"] if entry["channel_id"] == channel_id)
        about = f"{facts.user_id}: {channel_id} is at {head}"
        at_ms = novelty.record.arrived_ms
        told_of = {**numbers, "head": head}
        steps.append(Step("novelty", about, position, at_ms, told_of, causes=below, is_found=True))
    return tuple(sorted(steps, key=_waited_longest))


def _waited_longest(step: Step) -> tuple[bool, bool, int]:
    return (bool(step.missing), _is_late(step), _oldest_ms(step))


def _is_late(step: Step) -> bool:
    """Return whether it came after the request and was included."""
    return bool(step.numbers.get(_LATE))


def _oldest_ms(step: Step) -> int:
    below = [_oldest_ms(cause) for cause in step.causes]
    return min([*below, *([] if step.at_ms is None else [step.at_ms])], default=0)


def _below(
    finder: Finder,
    channel_id: str,
    novelty: Event[NoveltyFound] | None,
    probes: Sequence[_Probe],
    advances: Mapping[_Probe, Event[ChannelAdvanced]],
) -> tuple[Step, ...]:
    """Return what led to a novelty: the channel found dirty, or the subscription, and the advances with their insights."""
    by_advance: dict[str, list[_Probe]] = {}
    for probe in probes:
        advance = advances.get(probe)
        by_advance.setdefault("" if advance is None else str(advance.record.position), []).append(probe)
    steps = []
    for position, of_advance in by_advance.items():
        insights = tuple(_insight_step(probe) for probe in of_advance)
        advance = advances.get(of_advance[0])
        if advance is None:
            steps.append(Step("advance", f"{channel_id} moved", missing=_GONE, causes=insights))
            continue
        head = advance.value["head"]
        numbers = {"channel_id": channel_id, "head": head}
        at_ms = advance.record.arrived_ms
        about = f"{channel_id} reached {head}"
        steps.append(Step("advance", about, position, at_ms, numbers, causes=insights, is_found=True))
    cause = None if novelty is None else caused_by(novelty.record.headers)
    event = None if cause is None else finder.at(cause)
    if cause is None:
        return tuple(steps)
    if event is None:
        return (Step("dirty", f"{channel_id} moved", str(cause), missing=_GONE, causes=tuple(steps)),)
    if changed := event.of(USER_CHANGED):
        subscription = Event(event.record, changed)
        subscribed = _changed_step(finder, subscription, f"subscribed to {channel_id}", "subscription")
        # What the channel had at that time; what it reached later was reported together with it.
        before = [step for step in steps if not _is_after(step, subscribed)]
        after = [step for step in steps if _is_after(step, subscribed)]
        return (with_causes(subscribed, (*before, *subscribed.causes)), *after)
    dirty = event.of(CHANNEL_DIRTY)
    assert dirty is not None, cause  # nothing else leads to a novelty
    about = f"{channel_id} was found to have moved, at tick {dirty['tick']}"
    numbers = {"channel_id": channel_id, "head": dirty["head"], "tick": dirty["tick"]}
    return (Step("dirty", about, str(cause), event.record.arrived_ms, numbers, causes=tuple(steps)),)


def _is_after(step: Step, other: Step) -> bool:
    return step.at_ms is not None and other.at_ms is not None and step.at_ms > other.at_ms


def _insight_step(probe: _Probe) -> Step:
    found = probe.insight
    numbers = {"insight_id": found.insight_id, "channel_id": probe.channel_id, "seq": probe.seq}
    about = found.text.strip().split("\n", 1)[0] or found.insight_id
    return Step("insight", about, str(found.position), found.arrived_ms, numbers)


def _advances(finder: Finder, probes: Iterable[_Probe]) -> dict[_Probe, Event[ChannelAdvanced]]:
    """Return for each insight the first advance that covers it, with one pass over each partition."""
    by_partition: dict[int, list[_Probe]] = {}
    for probe in probes:
        by_partition.setdefault(_partition(CHANNEL_ADVANCED, probe.channel_id.encode()), []).append(probe)
    found: dict[_Probe, Event[ChannelAdvanced]] = {}
    for partition, of_partition in by_partition.items():
        for near in _near(of_partition):
            keys = {probe.channel_id.encode() for probe in near}
            wanted = {probe: partial(_is_advance_of, probe) for probe in near}
            from_ms = min(probe.insight.arrived_ms for probe in near) - _SKEW_MS
            found |= finder.first((CHANNEL_ADVANCED, partition), from_ms, _has_key_in(keys), wanted)
    return found


def _novelties(finder: Finder, facts: FeedFacts, probes: Sequence[_Probe]) -> dict[_Probe, Event[NoveltyFound]]:
    """Return for each insight the first event that reported it to the user; later subscribers received it later."""
    user = facts.user_id.encode()
    place = (NOVELTY, _partition(NOVELTY, user))

    def since_ms(probe: _Probe) -> int:
        return max(probe.insight.arrived_ms, facts.subscribed_ms.get(probe.channel_id, 0))

    found: dict[_Probe, Event[NoveltyFound]] = {}
    for near in _near(probes, since_ms):
        wanted = {probe: partial(_is_novelty_of, facts.user_id, probe) for probe in near}
        from_ms = min(since_ms(probe) for probe in near) - _SKEW_MS
        found |= finder.first(place, from_ms, lambda record: user in (record.value or b""), wanted)
    return found


# Insights that arrived within this time of each other are searched in one pass; beyond it a seek is cheaper than
# reading.
_PASS_MS = 600_000


def _arrived_ms(probe: _Probe) -> int:
    return probe.insight.arrived_ms


def _near(probes: Iterable[_Probe], at_ms: Callable[[_Probe], int] = _arrived_ms) -> list[list[_Probe]]:
    runs: list[list[_Probe]] = []
    for probe in sorted(probes, key=at_ms):
        if runs and at_ms(probe) - at_ms(runs[-1][0]) <= _PASS_MS:
            runs[-1].append(probe)
        else:
            runs.append([probe])
    return runs


def _has_key_in(keys: set[bytes]) -> Callable[[Record], bool]:
    return lambda record: record.key in keys


def _is_advance_of(probe: _Probe, event: Event[ChannelAdvanced]) -> bool:
    return event.value["channel_id"] == probe.channel_id and event.value["head"] >= probe.seq


def _is_novelty_of(user_id: str, probe: _Probe, event: Event[NoveltyFound]) -> bool:
    return any(
        entry["channel_id"] == probe.channel_id and entry["head"] >= probe.seq and user_id in entry["users"]
        for entry in event.value["heads"]
    )


def _partition(topic: str, key: bytes) -> int:
    return murmur2_partition(key, TOPICS[topic].partitions)
