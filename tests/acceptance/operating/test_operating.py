"""An operator's view of the running product: one trace from a write to the page that shows it, and metrics of each role."""

from __future__ import annotations

import re
import secrets
import uuid
from typing import Any

import httpx2
import pytest

from highwater.streams.metric_roles import ROLES_OF, Role
from highwater.streams.telemetry import METRIC_NAMES
from tests.product import Product

ROLE_OF = {"api": Role.API, "worker": Role.WORKER}


def metrics_of(product: Product) -> dict[str, str]:
    """The text of `/metrics` of each role, by its name."""
    found = {}
    for part in product.status()["parts"]:
        if part["kind"] == "role" and part.get("ready_url"):
            answer = httpx2.get(part["ready_url"].rpartition("/")[0] + "/metrics", trust_env=False)
            assert answer.status_code == 200
            found[part["name"]] = answer.text
    return found


def values(text: str, name: str) -> dict[str, float]:
    """The samples of a metric by their labels."""
    found = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def test_one_trace_from_a_write_to_the_page_that_shows_it(product: Product):
    """A `traceparent` is carried through every hop: the API, Kafka, the sink, the outbox, the worker, the page, its reader."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    season = f"traced-{uuid.uuid4().hex[:8]}"
    match = {
        "match_id": uuid.uuid4().hex[:20], "season": season, "round": "Matchday 1", "kickoff": "2030-01-01T15:00:00Z",
        "home": "Home", "away": "Away",
    }  # fmt: skip
    answer = product.http.post(
        "/api/events/league.match-scheduled", json=match,
        headers={"traceparent": f"00-{trace_id}-{span_id}-01", "tracestate": "vendor=1"},
    )  # fmt: skip
    assert answer.status_code == 202, answer.text
    (position,) = answer.json()["positions"]
    path = f"/api/league/{season}/schedule"
    page = product.until(
        lambda: (got := product.get(path, X_Min_Position=position)).status_code == 200 and got, "the page is not made"
    )
    assert page.headers["X-Caused-By"] == position

    wanted = {
        ("highwater-api", "POST /api/events/{topic}"),
        ("highwater-api", "publish league.match-scheduled"),
        ("highwater-connect", "process league.match-scheduled"),
        ("highwater-connect", "publish league.match-changed"),
        ("highwater-worker", "process league.match-changed"),
        ("highwater-api", "serve"),
    }

    def missing() -> set[tuple[str, str]]:
        return wanted - {(span.service, span.name) for span in product.collector.of(trace_id)}

    def whole() -> bool:
        """Each role sends its spans by itself, so a parent may come after its children."""
        spans = product.collector.of(trace_id)
        return not missing() and {span.parent_id for span in spans} <= {span.span_id for span in spans} | {span_id}

    product.until(whole, f"spans of {trace_id} are missing")
    spans = product.collector.of(trace_id)
    ids = {span.span_id: span for span in spans}
    assert len(ids) == len(spans)
    # One tree: every span but the first, which is below the caller's, is below another span of the trace that began before it.
    assert [span.name for span in spans if span.parent_id == span_id] == ["POST /api/events/{topic}"]
    for span in spans:
        assert span.parent_id == span_id or ids[span.parent_id or ""].start_ns <= span.start_ns, span
    by_name = {span.name: span for span in spans}
    chain = ["process league.match-changed", "publish league.match-changed", "process league.match-scheduled",
             "publish league.match-scheduled", "POST /api/events/{topic}"]  # fmt: skip
    span = by_name[chain[0]]
    for name in chain[1:]:
        span = ids[span.parent_id or ""]
        assert span.name == name
    changed, *_ = [one for one in product.records("league.match-changed") if trace_id.encode() in header_values(one)]
    headers = dict(changed.headers())
    assert headers["ce_tracestate"] == b"vendor=1"
    assert headers["ce_causedby"] == position.encode()
    assert int(headers["ce_origintime"]) <= changed.timestamp()[1]


def header_values(message: Any) -> bytes:
    """All values of a record's headers."""
    return b" ".join(value for _, value in message.headers() or () if value is not None)


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "ff-" + "1" * 32 + "-" + "1" * 16 + "-01",
        "00-xyz-1-01",
        "1" * 5000,
    ],
)
def test_a_malformed_traceparent_is_none(product: Product, traceparent: str):
    """The write is taken, and what it publishes belongs to no trace."""
    user = f"u-{uuid.uuid4().hex[:8]}"
    answer = product.http.post(
        f"/api/users/{user}/activity", json={}, headers={"traceparent": traceparent} if traceparent else {}
    )
    assert answer.status_code == 202, answer.text
    (record,) = [one for one in product.records("feeds.user-active") if one.key() == user.encode()]
    assert "ce_traceparent" not in dict(record.headers())


@pytest.mark.requirement("R0.39")
def test_each_role_reports_its_own_metrics(product: Product):
    """No role shows a metric that cannot move there, and what an operator watches is there: lag, outbox, freshness, letters."""
    user = f"u-{uuid.uuid4().hex[:8]}"
    product.subscribe(user, ["observed"])

    def measured() -> dict[str, str] | None:
        found = metrics_of(product)
        connect = "\n".join(text for name, text in found.items() if name not in ROLE_OF)
        is_there = (
            values(connect, "highwater_lag_events")
            and values(connect, "highwater_outbox_rows")
            and values(found["worker"], "highwater_lag_seconds")
            and any('group="users"' in labels for labels in values(connect, "highwater_freshness_seconds_count"))
        )
        return found if is_there else None

    found = product.until(measured, "lag, outbox or freshness is not measured")
    assert len(found) >= 3
    for name, text in found.items():
        role = ROLE_OF.get(name, Role.CONNECT)
        names = set(re.findall(r"^# TYPE (highwater_\w+?)(?:_total|_created)? ", text, re.MULTILINE))
        assert names, name
        for metric in names & METRIC_NAMES:
            moved = any(value for labels, value in values(text, rf"{metric}\w*").items())
            assert role in ROLES_OF[metric] or moved, f"{name} shows {metric}"
    assert "highwater_http_seconds" not in found["worker"]
    assert "highwater_tick_lag_seconds" not in found["api"]
