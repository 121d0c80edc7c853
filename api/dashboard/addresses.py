"""The pages of insights, topics, groups and schemas, and of the steps of an explanation, for a visitor. Pure.

Invariant: a record of a topic is linked only for visitors with access to topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from highwater.api.dashboard.record import record_address
from highwater.api.dashboard.view import segment
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.positions import parse_position


def insight_address(channel_id: str, insight_id: str) -> str:
    """Return the address of an insight's page."""
    return f"/insight?{urlencode({'channel': channel_id, 'id': insight_id})}"


def topic_address(topic: str) -> str:
    """Return the address of a topic's page."""
    return f"/topics/{segment(topic)}"


def group_address(group: str) -> str:
    """Return the address of a consumer group's page."""
    return f"/groups/{segment(group)}"


def schema_address(subject: str) -> str:
    """Return the address of a schema's page."""
    return f"/schemas/{segment(subject)}"


def step_address(step: Mapping[str, Any], *, sees_all: bool) -> str | None:
    """Return the page of a step of an explanation: its insight, else its match, else its record in the log; None if it
    has none.
    """
    numbers = step.get("numbers", {})
    if step["kind"] == "insight" and numbers.get("channel_id") and numbers.get("insight_id"):
        return insight_address(numbers["channel_id"], numbers["insight_id"])
    if numbers.get("match_id"):
        return f"/match?{urlencode({'id': numbers['match_id']})}"
    if not sees_all or not step.get("position"):
        return None
    try:
        return record_address(parse_position(step["position"]))
    except InvalidEventError:
        return None
