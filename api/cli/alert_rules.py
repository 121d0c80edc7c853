"""`python -m highwater.api.cli.alert_rules [--check]` generates the files for Prometheus and Grafana from the
catalogues in the code.

`deploy/prometheus/alerts.yml` (rules), `deploy/prometheus/alerts_test.yml` (an example for each rule, for `promtool
test rules`) and `deploy/grafana/highwater.json` (the dashboard). Invariant: nobody edits these files by hand; a
contract test compares them with this module.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from highwater.streams.alert_rules import ALERTS, GROUP, Alert
from highwater.streams.dashboard_panels import ROWS, Panel

_FOLDER = Path(__file__).resolve().parents[2] / "deploy"
_MADE_BY = "# Made by `python -m highwater.api.cli.alert_rules`; edit streams/alert_rules.py instead.\n"
_COLUMNS, _PANEL_WIDTH, _PANEL_HEIGHT = 24, 8, 8


def rules() -> str:
    """Return the rules as YAML: JSON strings are valid YAML."""
    lines = [_MADE_BY + "groups:", f"- name: {GROUP}", "  rules:"]
    for alert in ALERTS:
        lines += [
            f"  - alert: {alert.name}",
            f"    expr: {json.dumps(alert.expr)}",
            f"    for: {alert.minutes}m",
            "    labels:",
            f"      severity: {alert.severity}",
            "    annotations:",
            f"      summary: {json.dumps(alert.summary)}",
            f"      runbook: docs/runbooks/{alert.page}",
        ]
    return "\n".join(lines) + "\n"


def rules_test() -> str:
    """Return a test of each rule on its example: it fires, and not too early."""
    lines = [_MADE_BY + "rule_files: [alerts.yml]", "evaluation_interval: 1m", "tests:"]
    for alert in ALERTS:
        lines += ["- interval: 1m", "  input_series:"]
        for series, values in alert.example.items():
            lines += [f"  - series: {json.dumps(series)}", f"    values: {json.dumps(values)}"]
        # `promtool` compares labels and annotations exactly; the series ALERTS shows whether a rule fires at all.
        lines += [
            "  promql_expr_test:",
            f"  - expr: {json.dumps(_firing(alert))}",
            f"    eval_time: {alert.evaluated_at}m",
            "    exp_samples: [{labels: '{}', value: 1}]",
        ]
        if alert.minutes > 1:
            lines += [
                f"  - expr: {json.dumps(_firing(alert))}",
                "    eval_time: 0m",
                "    exp_samples: []",
            ]
    return "\n".join(lines) + "\n"


def _firing(alert: Alert) -> str:
    return f'count(ALERTS{{alertname="{alert.name}", alertstate="firing"}})'


def dashboard() -> str:
    """Return the dashboard: a row of panels for each question, and the firing alerts."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        panels.append(
            {
                "type": "row", "title": row.title, "id": len(panels) + 1, "collapsed": False, "panels": [],
                "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
            }
        )  # fmt: skip
        y += 1
        for number, panel in enumerate(row.panels):
            x = number * _PANEL_WIDTH % _COLUMNS
            below = number * _PANEL_WIDTH // _COLUMNS
            panels.append(_panel(panel, len(panels) + 1, x, y + below * _PANEL_HEIGHT))
        y += -(-len(row.panels) * _PANEL_WIDTH // _COLUMNS) * _PANEL_HEIGHT
    document = {
        "title": "Highwater", "uid": "highwater", "schemaVersion": 39, "version": 1, "editable": True, "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"}, "tags": ["highwater"], "panels": panels,
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}]
        },
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "type": "timeseries", "id": number, "title": panel.title, "description": panel.about, "datasource": source,
        "gridPos": {"x": x, "y": y, "w": _PANEL_WIDTH, "h": _PANEL_HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": expr, "legendFormat": legend, "datasource": source}
            for place, (expr, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip


FILES = {
    _FOLDER / "prometheus" / "alerts.yml": rules,
    _FOLDER / "prometheus" / "alerts_test.yml": rules_test,
    _FOLDER / "grafana" / "highwater.json": dashboard,
}


def stale() -> list[Path]:
    """Return the files that differ from the generated ones."""
    return [path for path, make in FILES.items() if not path.exists() or path.read_text(encoding="utf-8") != make()]


def main(arguments: Iterable[str]) -> int:
    """Write the files, or with `--check` name the outdated ones; return the exit status."""
    if "--check" in arguments:
        old = stale()
        for path in old:
            print(f"{path} is old; run `python -m highwater.api.cli.alert_rules`")
        return 1 if old else 0
    for path, make in FILES.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
