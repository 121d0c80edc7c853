"""What an event must satisfy beyond its schema, the same at the API, in `publish` and in the sinks.

Decided from the event alone, never from the clock, so that a replay of the log accepts and refuses the same events:
a time of 1970 or 2100 is stored as told (a rebuild's window looks no further ahead than a day).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from schemas.errors import InvalidEventError
from streams.feeds.embedding import validate_embedding

# Ids are keys of Kafka records, rows and URLs; 512 bytes is far above any in use and keeps index entries small.
ID_BYTES_MAX = 512
# A text is shown to a reader and embedded from its beginning; whole documents belong to the chunks subsystem.
TEXT_BYTES_MAX = 1 << 20
URL_BYTES_MAX = 8 << 10
PLAN_BYTES_MAX = 64
# A user's subscriptions travel in one event and are summed at each decision.
CHANNELS_MAX = 1_000
# Years 1 to 9999: what a datetime, and so every reader of ours, can hold.
TS_MS_MIN, TS_MS_MAX = -62_135_596_800_000, 253_402_300_799_999

# Unicode categories Cc and Cs: what no store, URL or terminal takes as it is.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_IDS = ("insight_id", "channel_id", "user_id")


def check_event(topic: str, event: Mapping[str, Any], *, embedding_dimensions: int) -> None:
    """Check a decoded event of an outsider topic.

    Args:
        topic: name of the topic, for topics with rules of their own.
        event: the event as the codec decodes it; times in ms since 1970.
        embedding_dimensions: length of a vector.

    Raises:
        InvalidEventError: with the field at fault and a reason a program can rely on.
    """
    for name in _IDS:
        if name in event:
            check_id(name, event[name])
    if not TS_MS_MIN <= event.get("ts", 0) <= TS_MS_MAX:
        raise InvalidEventError("time_out_of_range", "ts lies outside the years 1 to 9999", field="ts")
    if topic == "feeds.insight-ingested":
        _check_insight(event, embedding_dimensions)
    elif topic == "feeds.subscriptions-replaced":
        _check_channels(event["channels"])
    elif topic == "feeds.plan-changed":
        _check_name("plan", event["plan"], PLAN_BYTES_MAX)


def check_id(name: str, value: str) -> None:
    """An id is 1 to 512 bytes of UTF-8 without control characters.

    Raises:
        InvalidEventError: it is not.
    """
    _check_name(name, value, ID_BYTES_MAX)


def _check_name(name: str, value: str, bytes_max: int) -> None:
    if not value.strip():
        raise InvalidEventError("empty_id", f"{name} is empty", field=name)
    if len(value.encode("utf-8", "surrogatepass")) > bytes_max:
        raise InvalidEventError("too_long", f"{name} is longer than {bytes_max} bytes", field=name)
    if _CONTROL.search(value):
        raise InvalidEventError("control_character", f"{name} holds a control character", field=name)


def _check_channels(channels: list[str]) -> None:
    if len(channels) > CHANNELS_MAX:
        raise InvalidEventError(
            "too_many", f"{len(channels)} channels; a user has at most {CHANNELS_MAX}", field="channels"
        )
    for channel_id in channels:
        _check_name("channels", channel_id, ID_BYTES_MAX)


def _check_insight(event: Mapping[str, Any], embedding_dimensions: int) -> None:
    for name, bytes_max in (("text", TEXT_BYTES_MAX), ("url", URL_BYTES_MAX), ("embedding_model", ID_BYTES_MAX)):
        value = event[name]
        if value is None:
            continue
        # A character takes at most four bytes, so most texts need no encoding to be seen short enough.
        if len(value) * 4 > bytes_max and len(value.encode("utf-8", "surrogatepass")) > bytes_max:
            raise InvalidEventError("too_long", f"{name} is longer than {bytes_max} bytes", field=name)
        if "\x00" in value:
            raise InvalidEventError("control_character", f"{name} holds a NUL character", field=name)
    if event["embedding"] is not None:
        try:
            validate_embedding(event["embedding"], embedding_dimensions)
        except ValueError as error:
            raise InvalidEventError("bad_embedding", str(error), field="embedding") from error
