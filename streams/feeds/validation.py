"""Rules for events of the feeds beyond their schema, the same at the API, in `publish` and in the sinks.

Decided from the event alone, never from the clock: a time of 1970 or 2100 is stored unchanged (a rebuild's window
extends at most a day ahead).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.feeds import (
    CLUSTERS_CURATED,
    INSIGHT_INGESTED,
    PLAN_CHANGED,
    SUBSCRIPTIONS_REPLACED,
    InsightIngested,
)
from highwater.schemas.topic_names import event_of
from highwater.streams.checks import ID_BYTES_MAX, check_id, check_name, check_text, check_time
from highwater.streams.feeds.curations import check_curated
from highwater.streams.feeds.embedding import validate_embedding

# A text is shown to a reader and embedded from its beginning; whole documents belong to the chunks subsystem.
TEXT_BYTES_MAX = 1 << 20
URL_BYTES_MAX = 8 << 10
PLAN_BYTES_MAX = 64
# A user's subscriptions are one event and are summed at each decision.
CHANNELS_MAX = 1_000

_IDS = ("insight_id", "user_id")
# Wildcards of shells, Redis and people: a name with one in it was probably meant as a pattern.
_WILDCARDS = ("*", "?")


def check_channel(name: str, value: str) -> None:
    """Check that a channel's name is an id that is not a pattern, and not a path of dots, which no URL can name.

    Raises:
        InvalidEventError: it is not.
    """
    check_id(name, value)
    if any(one in value for one in _WILDCARDS):
        detail = f"{name} {value!r} holds a wildcard (* or ?); a channel is named in full"
        raise InvalidEventError("wildcard", detail, field=name)
    if not value.strip(". \u00a0"):
        raise InvalidEventError("bad_channel", f"{name} {value!r} consists of dots alone", field=name)


def check_feeds_event(topic: str, event: Mapping[str, Any], *, embedding_dimensions: int) -> None:
    """Check a decoded event of a topic of the feeds.

    Args:
        topic: name of the topic, for topics with rules of their own.
        event: the event as the codec decodes it; times in ms since 1970.
        embedding_dimensions: dimension of a vector.

    Raises:
        InvalidEventError: names the field at fault and a machine-readable reason.
    """
    for name in _IDS:
        if name in event:
            check_id(name, event[name])
    if "channel_id" in event:
        check_channel("channel_id", event["channel_id"])
    check_time("ts", event.get("ts", 0))
    if insight := event_of(INSIGHT_INGESTED, topic, event):
        _check_insight(insight, embedding_dimensions)
    elif replaced := event_of(SUBSCRIPTIONS_REPLACED, topic, event):
        _check_channels(replaced["channels"])
    elif changed := event_of(PLAN_CHANGED, topic, event):
        check_name("plan", changed["plan"], PLAN_BYTES_MAX)
    elif curated := event_of(CLUSTERS_CURATED, topic, event):
        check_curated(curated)


def are_plain_insights(events: Sequence[InsightIngested]) -> bool:
    """Return whether `check_feeds_event` certainly accepts each of many insights, checked at once; after False,
    check each of them.
    """
    if not events:
        return True
    ids, names = [event["insight_id"] for event in events], {event["channel_id"] for event in events}
    try:
        for name in names:
            check_channel("channel_id", name)
        # A character takes at most four bytes, and a character that the joined ids do not contain is in no id.
        check_name("insight_id", "".join(ids), len(ids) * ID_BYTES_MAX)
        for name, texts, bytes_max in (
            ("text", [event["text"] or "" for event in events], TEXT_BYTES_MAX),
            ("url", [event["url"] or "" for event in events], URL_BYTES_MAX),
        ):
            if max(map(len, texts), default=0) * 4 > bytes_max:
                return False
            check_text(name, "".join(texts), len(texts) * bytes_max)
        for edge in (min, max):
            check_time("ts", edge([event["ts"] for event in events]))
    except InvalidEventError:
        return False
    return (
        all(map(str.strip, ids))
        and max(map(len, ids)) * 4 <= ID_BYTES_MAX
        and all(event["embedding"] is None and event["embedding_model"] is None for event in events)
    )


def _check_channels(channels: list[str]) -> None:
    if len(channels) > CHANNELS_MAX:
        raise InvalidEventError(
            "too_many", f"{len(channels)} channels; a user has at most {CHANNELS_MAX}", field="channels"
        )
    for channel_id in channels:
        check_channel("channels", channel_id)


def _check_insight(event: InsightIngested, embedding_dimensions: int) -> None:
    for name, text, bytes_max in (
        ("text", event["text"], TEXT_BYTES_MAX),
        ("url", event["url"], URL_BYTES_MAX),
        ("embedding_model", event["embedding_model"], ID_BYTES_MAX),
    ):
        if text is not None:
            check_text(name, text, bytes_max)
    if event["embedding"] is not None:
        try:
            validate_embedding(event["embedding"], embedding_dimensions)
        except ValueError as error:
            raise InvalidEventError("bad_embedding", str(error), field="embedding") from error
