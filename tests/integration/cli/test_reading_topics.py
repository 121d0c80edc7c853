"""`highwater count`, `diff` and `top` against a real broker and registry."""

from __future__ import annotations

import json
from typing import Any

from highwater.schemas.envelope import iso_from_ms, ms_from_iso
from tests.integration.commands import printed, run
from tests.integration.connecting import fresh

PLANS = "feeds.plan-changed"


def publish(environment: dict[str, str], topic: str, rows: list[dict[str, Any]]) -> None:
    """Events through the command."""
    done = run(environment, "publish", topic, "-", stdin="".join(json.dumps(row) + "\n" for row in rows))
    assert done.returncode == 0, done.stderr


def test_records_are_counted_by_an_expression(environment):
    """All of them, the most frequent values first, and no more of them than asked for; a wrong expression shows its spot."""
    mark = fresh("count")
    rows = [{"insight_id": f"{mark}-{n}", "channel_id": f"{mark}-{min(n, 3)}", "ts": n, "text": "x"} for n in range(10)]
    publish(environment, "feeds.insight-ingested", rows)
    mine = ("feeds.insight-ingested", "--where", f"value != null && value.insight_id.startsWith('{mark}')")
    told = printed(run(environment, "count", *mine, "--by", "channel_id", "--top", "2", "--json"))
    assert (told["records"], told["distinct"], told["without_answer"]) == (10, 4, 0)
    assert told["values"] == [{"value": f"{mark}-3", "records": 7}, {"value": f"{mark}-0", "records": 1}]
    assert run(environment, "count", *mine).stdout == "10\n"
    shown = run(environment, "count", *mine, "--by", "value.ts > timestamp('1970-01-01T00:00:00.004Z')")
    assert [line.split() for line in shown.stdout.splitlines()[1:]] == [["false", "5", "50.0%"], ["true", "5", "50.0%"]]
    wrong = run(environment, "count", *mine, "--by", "value.chanel")
    assert wrong.returncode == 2
    assert "^" in wrong.stderr
    assert "--by, line 1, column 7: events of feeds.insight-ingested have no field 'chanel'" in wrong.stderr


def test_a_topic_is_compared_with_itself_earlier_and_with_another(environment):
    """Keys that were added and changed since, with the fields; the status is 1 where anything differs, 0 where nothing does."""
    mark = fresh("diff")
    publish(environment, PLANS, [{"user_id": f"{mark}-{n}", "plan": "free", "ts": 1} for n in "ab"])
    where = ("--where", f"value != null && value.user_id.startsWith('{mark}')")
    first = run(environment, "replay", PLANS, *where).stdout.splitlines()
    then = iso_from_ms(1 + max(ms_from_iso(json.loads(line)["timestamp"]) for line in first))
    later = {"b": "pro", "c": "free"}
    publish(environment, PLANS, [{"user_id": f"{mark}-{n}", "plan": plan, "ts": 1} for n, plan in later.items()])
    done = run(environment, "diff", PLANS, "--from", then, *where, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["added"], told["changed"], told["removed"]) == (1, 1, 1, 0)
    assert told["differences"] == [
        {"key": f"{mark}-b", "kind": "changed", "fields": {"plan": ["free", "pro"]}},
        {"key": f"{mark}-c", "kind": "added", "fields": {}},
    ]
    shown = run(environment, "diff", PLANS, "--from", then, *where)
    assert shown.stdout == f'~ {mark}-b\n    plan: "free" -> "pro"\n+ {mark}-c\n'
    assert shown.stderr == "1 added, 0 removed, 1 changed\n"
    assert run(environment, "diff", PLANS, "--from", then, *where, "--key", f"{mark}-a").returncode == 0
    assert run(environment, "diff", PLANS, PLANS, *where).returncode == 0
    assert run(environment, "diff", PLANS).returncode == 2


def test_top_shows_what_goes_on(api_environment):
    """Topics, consumers and routes as JSON and as tables; an unavailable part is named, and the status is 1."""
    told = printed(run(api_environment, "top", "--json", "--interval", "0.5"))
    assert {one["topic"] for one in told["topics"]} >= {PLANS, "feeds.insight-ingested"}
    assert {one["group"] for one in told["groups"]} >= {"alerts"}
    assert [one["work"] for one in told["slowest"]] == ["route /metrics"]
    assert told["problems"] == []
    shown = run(api_environment, "top", "--interval", "0.5", "--rows", "3")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[0].split() == ["topic", "records/s", "records"]
    away = run({**api_environment, "HIGHWATER_PORT": "1"}, "top", "--once", "--interval", "0.5")
    assert away.returncode == 1
    assert "api does not answer at http://127.0.0.1:1/metrics" in away.stderr
