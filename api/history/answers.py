"""The answers of the routes of the history, for the OpenAPI document.

Invariant: a member without a value is `None`. No answer has other members.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from highwater.api.core.answers import Time


class HistorySeries(TypedDict):
    """One line of a chart; `values` has a value per step, null if nothing was recorded."""

    name: str
    values: list[float | None]


class History(TypedDict):
    """A metric over a span: `about` says what it counts, `label` names its series."""

    metric: str
    title: str
    about: str
    unit: Literal["events/s", "events", "s", "ratio"]
    label: Literal["topic", "consumer", "stage", "cache", "partition"]
    # The span in whole steps: it may begin slightly earlier, and end later, than requested.
    begin: Time
    end: Time
    step_seconds: int
    series: list[HistorySeries]
