"""The scaling guide names metrics, settings and connectors that there are."""

from __future__ import annotations

import re

from highwater.connectors.run import CONNECTOR_GROUPS, CONNECTORS
from highwater.streams.settings import SETTINGS
from highwater.streams.telemetry import METRIC_NAMES
from tests import ROOT

TEXT = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")


def test_metrics_are_there():
    """Each name is a metric's; a counter's ends in `_total` where it is collected."""
    named = set(re.findall(r"`(highwater_\w+)`", TEXT))
    assert named
    assert {name.removesuffix("_total") for name in named} <= METRIC_NAMES


def test_settings_are_there():
    """Each name in capitals is a setting's."""
    named = set(re.findall(r"\b(HIGHWATER_[A-Z_]+|[A-Z_]+_URL)\b", TEXT))
    assert named
    assert named <= set(SETTINGS)


def test_connectors_are_there():
    """Each `highwater connect …` is a command that starts."""
    named = {name for names in re.findall(r"`(?:highwater )?connect ([a-z ]+)`", TEXT) for name in names.split()}
    assert {"sinks", "rebuild", "stages"} <= named
    assert named <= set(CONNECTORS) | set(CONNECTOR_GROUPS)
