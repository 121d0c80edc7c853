"""The record of an action on `security.action-recorded`."""

from __future__ import annotations

from highwater.schemas.security import ActionRecorded


def action_record(
    action: str,
    outcome: str,
    *,
    request_id: str,
    source: str,
    now_ms: int,
    resource: str | None = None,
    address: str | None = None,
    by: str | None = None,
    count: int = 1,
) -> ActionRecorded:
    """Return a record without a principal; the caller adds it, if one was recognized.

    Args:
        action: method and route template, or the command without its values.
        outcome: permitted, done, failed, refused or suppressed.
        request_id: one per request or command.
        source: api or cli.
        now_ms: the product's clock, ms since 1970.
        resource: the object of the action; never a secret.
        address: of the client.
        by: user and host of a terminal.
        count: how many actions it stands for.
    """
    return {
        "action": action,
        "outcome": outcome,
        "request_id": request_id,
        "source": source,
        "status": None,
        "resource": resource,
        "role": None,
        "user_id": None,
        "organization_id": None,
        "key_id": None,
        "by": by,
        "address": address,
        "count": count,
        "recorded_at": now_ms,
    }
