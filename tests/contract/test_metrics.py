"""The metrics: one catalogue, one prefix, and each is updated by some code."""

from __future__ import annotations

import re

import pytest
from prometheus_client.metrics import MetricWrapperBase

from highwater.streams import telemetry
from tests import ROOT

DECLARED = {name: metric for name, metric in vars(telemetry).items() if isinstance(metric, MetricWrapperBase)}
CODE = {
    path: path.read_text(encoding="utf-8")
    for folder in ("api", "connectors", "deploy", "schemas", "streams")
    for path in (ROOT / folder).rglob("*.py")
}


def test_every_metric_is_ours_by_name():
    """All names begin with `highwater_`, and the catalogue lists them all."""
    names = {metric._name for metric in DECLARED.values()}
    assert {name for name in names if name.startswith("highwater_")} == names == telemetry.METRIC_NAMES


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_every_metric_is_moved_somewhere(name: str):
    """Each is used by code other than its declaration, and says what it means."""
    assert DECLARED[name]._documentation.endswith(".")
    used = re.compile(rf"\b{name}\b\.|= {name}\b|, {name}\)")  # called, or handed to what calls it
    users = [path for path, text in CODE.items() if path.name != "telemetry.py" and name in text and used.search(text)]
    assert users


def test_metrics_are_declared_in_one_place():
    """No other module makes a metric."""
    makers = re.compile(r"\b(?:Counter|Gauge|Histogram|Summary)\(\s*\"")
    assert [path for path, text in CODE.items() if path.name != "telemetry.py" and makers.search(text)] == []
