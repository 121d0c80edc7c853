"""What limits or pays is set by operators: over every topic that outsiders write, and every operation."""

from __future__ import annotations

import inspect
import json
from typing import Any, cast

import pytest
from fastapi.routing import iter_route_contexts

from highwater.api.app import create_app
from highwater.api.core.access import OwnedBy, access_of
from highwater.api.core.auth import Principal, Role
from highwater.api.core.errors import ForbiddenError
from highwater.api.core.events import ADMIN_TOPICS, OPERATOR_TOPICS, PUBLISH, _check_owner
from highwater.api.core.guard import Caller
from highwater.schemas.avro_files import schema_text
from highwater.schemas.topics import TOPICS
from highwater.streams.settings import Settings

# Fields that decide how much somebody may do or is charged, wherever they stand.
LIMITING = {"plan", "role", "period_end", "opens", "action", "subscription_status"}
BOUND = [Principal(Role.EDITOR, user_id="ada"), Principal(Role.EDITOR, user_id="ada", organization_id="acme"),
         Principal(Role.EDITOR, organization_id="acme")]  # fmt: skip


def test_topics_with_a_limit_are_written_by_operators() -> None:
    """A bound key that publishes to its own user would set its own limit."""
    with_limits = {
        name
        for name, topic in TOPICS.items()
        if topic.outsider and LIMITING & {field["name"] for field in json.loads(schema_text(topic.schema))["fields"]}
    }
    assert "feeds.plan-changed" in with_limits
    assert with_limits <= ADMIN_TOPICS | OPERATOR_TOPICS


@pytest.mark.parametrize("principal", BOUND)
def test_a_bound_key_publishes_no_plan(principal: Principal) -> None:
    """Not even for its own user; an unbound key and an admin do."""
    event = {"user_id": "ada", "plan": "enterprise"}
    with pytest.raises(ForbiddenError):
        _check_owner(Caller(cast("Any", None), PUBLISH, principal), "feeds.plan-changed", event)
    for operator in (Principal(Role.EDITOR), Principal(Role.ADMIN, user_id="ada")):
        _check_owner(Caller(cast("Any", None), PUBLISH, operator), "feeds.plan-changed", event)


def test_operations_with_a_limit_are_of_operators() -> None:
    """A body with such a field is taken from an admin, or from an unbound key."""
    found = {}
    for context in iter_route_contexts(create_app(Settings()).routes):
        endpoint = getattr(context.original_route, "endpoint", None)
        fields: set[str] = set()
        for parameter in inspect.signature(endpoint, eval_str=True).parameters.values() if endpoint else ():
            fields |= set(getattr(parameter.annotation, "model_fields", ()))
        if LIMITING & fields:
            found[endpoint.__name__] = access_of(endpoint)
    assert {"put_user_plan", "put_organization_plan"} <= set(found)
    unfit = {
        name for name, one in found.items() if one.role is not Role.ADMIN and one.owned_by is not OwnedBy.DEPLOYMENT
    }
    # It refuses a bound key that names a plan (test_sessions.py), since every user opens sessions of its own.
    assert unfit == {"post_session"}
