"""The tools of operators: alerts, their pages and the dashboard, against the catalogue; each alert fired once."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from highwater.api.cli import alert_rules
from highwater.streams.alert_rules import ALERTS, Alert
from highwater.streams.dashboard_panels import ROWS
from highwater.streams.metric_roles import ROLES_OF
from highwater.streams.telemetry import METRIC_NAMES
from tests import ROOT

RUNBOOKS = ROOT / "docs" / "runbooks"
QUERIES = {
    **{alert.name: alert.expr for alert in ALERTS},
    **{f"{panel.title} {n}": expr for row in ROWS for panel in row.panels for n, (expr, _) in enumerate(panel.queries)},
}
_ENDINGS = re.compile(r"_(total|bucket|count|sum)$")


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_every_metric_of_an_alert_or_panel_exists(name: str):
    """Each `highwater_*` that a query names is one of the catalogue, or a series of its histogram or counter."""
    named = set(re.findall(r"\bhighwater_\w+", QUERIES[name]))
    assert {one for one in named if one not in METRIC_NAMES and _ENDINGS.sub("", one) not in METRIC_NAMES} == set()
    assert named or name == "RoleDown"


def test_every_metric_is_of_some_role():
    """The list of roles and the catalogue name the same metrics."""
    assert set(ROLES_OF) == METRIC_NAMES


def test_the_files_are_made_of_the_catalogues():
    """`deploy/prometheus` and `deploy/grafana` are what the command writes."""
    assert alert_rules.stale() == []
    ids = [panel["id"] for panel in json.loads(alert_rules.dashboard())["panels"]]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_has_its_page(alert: Alert):
    """It is titled by the alert, and says the effect, where to look and what to do."""
    text = (RUNBOOKS / alert.page).read_text(encoding="utf-8")
    assert text.startswith(f"# {alert.name}\n")
    assert all(part in text for part in ("**Effect.**", "**Look**", "**Do**"))


def test_every_page_has_its_alert():
    """No page of an alert that there is not, and each is in the list of `docs/operating.md`."""
    pages = {path.name for path in RUNBOOKS.glob("*.md")}
    assert pages == {alert.page for alert in ALERTS}
    told = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert pages == set(re.findall(r"\(runbooks/([\w-]+\.md)\)", told))


def test_every_alert_fires_on_its_example_and_not_before_its_time():
    """Prometheus itself evaluates the rules as they are shipped (`promtool test rules`)."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    folder = ROOT / "deploy" / "prometheus"
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool, *command], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    text = (folder / "alerts_test.yml").read_text(encoding="utf-8")
    assert {alert.name for alert in ALERTS} == set(re.findall(r'alertname=\\"(\w+)\\"', text))
