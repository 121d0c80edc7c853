"""Rules for events of outsider topics, the same at the API, in `publish` and in the sinks: by subsystem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from highwater.streams.chunks.validation import check_chunks_event
from highwater.streams.feeds.validation import check_feeds_event
from highwater.streams.jobs.validation import check_jobs_event
from highwater.streams.league.validation import check_league_event
from highwater.streams.queries.validation import check_queries_event


def check_event(topic: str, event: Mapping[str, Any], *, embedding_dimensions: int) -> None:
    """Check a decoded event of an outsider topic.

    Args:
        topic: name of the topic.
        event: the event as the codec decodes it; times in ms since 1970.
        embedding_dimensions: dimension of a vector.

    Raises:
        InvalidEventError: names the field at fault and a machine-readable reason.
    """
    if topic.startswith("league."):
        check_league_event(topic, event)
    elif topic.startswith("queries."):
        check_queries_event(topic, event)
    elif topic.startswith("jobs."):
        check_jobs_event(topic, event)
    elif topic.startswith("chunks."):
        check_chunks_event(topic, event)
    else:
        check_feeds_event(topic, event, embedding_dimensions=embedding_dimensions)
