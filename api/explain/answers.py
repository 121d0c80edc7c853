"""The answers of the routes of explanations, for the OpenAPI document.

Invariant: a member without a value is `None`. No answer has other members.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from highwater.api.core.answers import Time


class ExplainedStep(TypedDict):
    """A step from an event to the served resource. `missing` says why a step has no position; `numbers` depend on `kind`.

    `trace_id` is the trace of its event; `trace_url` is the page of this trace, if HIGHWATER_TRACE_URL is set.
    """

    kind: str
    about: str
    position: str | None
    at: Time | None
    delay_ms: int | None
    numbers: dict[str, Any]
    missing: str | None
    trace_id: str | None
    trace_url: str | None


class ExplainedTree(ExplainedStep):
    """A step with the steps that caused it, the one that waited longest first."""

    causes: list[ExplainedTree]


class Explanation(TypedDict):
    """The explanation of a resource: the chain from the first event, and all causes as a tree."""

    resource: str
    version: int
    etag: str | None
    chain: list[ExplainedStep]
    tree: ExplainedTree
