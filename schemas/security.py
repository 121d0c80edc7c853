"""Typed records of the security events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC. Below them stand their topics, from the catalogue.
"""

from __future__ import annotations

from typing import Final, TypedDict

from highwater.schemas.topic_names import TopicName


class ActionRecorded(TypedDict):
    """A request was refused, or a privileged action was performed. The event never contains a key, a session or a body."""

    action: str
    outcome: str
    request_id: str
    source: str
    status: int | None
    resource: str | None
    role: str | None
    user_id: str | None
    organization_id: str | None
    key_id: str | None
    by: str | None
    address: str | None
    count: int
    recorded_at: int


ACTION_RECORDED: Final = TopicName[ActionRecorded]("security.action-recorded")
