"""The history of one topic or group, taken from that of all."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.api.dashboard.trends import of_one

HISTORY = {
    "metric": "lag",
    "series": [{"name": "insights", "values": [None, 3.0, 0.0]}, {"name": "users", "values": [None, 0.0, 1.0]}],
}


@pytest.mark.parametrize(
    ("name", "values"), [("insights", [None, 3.0, 0.0]), ("users", [None, 0.0, 1.0]), ("votes", [None, 0.0, 0.0])]
)
def test_one_series_is_left(name: str, values: list[Any]) -> None:
    """One that no sample holds is 0 where samples were taken, and has a gap where none was."""
    found = of_one(HISTORY, name)
    assert (found["metric"], found["series"]) == ("lag", [{"name": name, "values": values}])


def test_without_samples_there_is_no_series() -> None:
    """So that the chart says that nothing was recorded."""
    assert of_one({"series": []}, "insights")["series"] == []
