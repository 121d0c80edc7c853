"""The search of a topic over HTTP, against a real broker: complete, in order, page by page, and ended with its reader."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import psutil
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from highwater.api.records import searches
from highwater.connectors.kafka.registry_http import ask
from highwater.connectors.replay import searches as processes
from highwater.connectors.replay.searches import AT_ONCE_OF_CALLER_MAX
from highwater.schemas.envelope import ms_from_iso
from highwater.schemas.topics import TOPICS
from highwater.streams.access import RegistryAccess
from tests.conftest import Stack
from tests.integration.api_server import Api, running_api, wait_until
from tests.integration.broker.making import COUNT, TEXT, foreign_topic, schema
from tests.integration.connecting import fresh, send
from tests.integration.documented import check_answer_now
from tests.integration.record_search.endless import GONE
from tests.unit.replay.making import encoded

INSIGHTS = "feeds.insight-ingested"
PATH = f"/api/records/{INSIGHTS}"
SETTING = "admin:root-key-00001,viewer:eye-key-000001,viewer:ann-key-000001:ann"


@pytest.fixture(scope="module")
def api(own_settings) -> Iterator[Api]:
    """An API with keys."""
    with running_api(own_settings(HIGHWATER_API_KEYS=SETTING)) as running:
        yield running


@pytest.fixture(scope="module")
def http(api: Api) -> Iterator[httpx2.Client]:
    """An operator."""
    headers, hooks = {"Authorization": "Bearer root-key-00001"}, {"response": [check_answer_now]}
    with httpx2.Client(base_url=api.url, timeout=60, headers=headers, event_hooks=hooks) as client:
        yield client


def publish(http: httpx2.Client, mark: str, count: int, needles: int = 0) -> None:
    """Insights of one mark over all partitions; the first few contain a needle."""
    lines = [
        json.dumps({
            "insight_id": f"{mark}-{n}", "channel_id": f"{mark}-{n % 40}", "ts": n,
            "text": f'the "needle" is\nhere {n}' if n < needles else "straw",
        })
        for n in range(count)
    ]  # fmt: skip
    kind = {"content-type": "application/x-ndjson"}
    answer = http.post(f"/api/events/{INSIGHTS}", content="\n".join(lines), headers=kind)
    assert answer.status_code == 202, answer.text


@pytest.fixture(scope="module")
def mark(http: httpx2.Client) -> str:
    """4,503 insights, seven of which, the oldest, hold a needle."""
    found = fresh("search")
    publish(http, found, 4_503, needles=7)
    return found


def page(http: httpx2.Client, **asked: Any) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """How a page begins, its records, and how it ends."""
    answer = http.get(PATH, params=asked)
    assert answer.status_code == 200, answer.text
    events = [json.loads(line) for line in answer.text.splitlines()]
    assert (events[0]["event"], events[-1]["event"]) == ("begin", "end"), answer.text
    return events[0], [one for one in events if one["event"] == "record"], events[-1]


def of(mark: str) -> str:
    """The condition of one mark's insights."""
    return f'value != null && value.insight_id.startsWith("{mark}-")'


def test_what_is_far_from_the_end_is_found(http: httpx2.Client, mark: str):
    """Seven of 4,503, by a condition, by words with quotes in any case, and newest first as well as oldest first."""
    ids = [f"{mark}-{n}" for n in range(7)]
    for order in ("newest", "oldest"):
        for asked in (
            {"where": f'{of(mark)} && value.text.contains("needle")'},
            {"text": 'THE "NEEDLE" IS', "where": of(mark)},
        ):
            _, records, end = page(http, order=order, **asked)
            assert sorted(one["value"]["insight_id"] for one in records) == ids
            assert (end["reason"], end["found"], end["cursor"]) == ("all", 7, None)
            assert end["scanned"] == end["total"] >= 4_503


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_pages_follow_each_other_while_records_are_added(http: httpx2.Client, order: str):
    """Every record of the moment when the search began, once, in order of arrival; none that came later."""
    own = fresh("pages")
    publish(http, own, 300)
    given: list[dict[str, Any]] = []
    cursor = None
    while cursor is not None or not given:
        _, records, end = page(http, order=order, where=of(own), limit=120, **({"cursor": cursor} if cursor else {}))
        given += records
        assert end["found"] == len(given)
        cursor = end["cursor"]
        if len(given) == 120:
            publish(http, f"{own}-late", 100)

    def place(one: dict[str, Any]) -> tuple[int, int, int]:
        return ms_from_iso(one["timestamp"]), one["partition"], one["offset"]

    assert len(given) == len({place(one)[1:] for one in given}) == 300
    assert [place(one) for one in given] == sorted(map(place, given), reverse=order == "newest")
    # Forty channels do not always reach each of eight partitions.
    assert len({one["partition"] for one in given}) > TOPICS[INSIGHTS].partitions // 2


def test_a_search_is_narrowed(http: httpx2.Client, mark: str):
    """By key, by partition, by offsets and by time."""
    _, records, end = page(http, key=f"{mark}-3", limit=500)
    assert {one["key"] for one in records} == {f"{mark}-3"}
    assert len(records) == len([n for n in range(4_503) if n % 40 == 3])
    assert end["scanned"] == end["total"]
    one = records[5]
    begin, same, _ = page(
        http, **{"from": f"{one['partition']}/{one['offset']}", "to": f"{one['partition']}/{one['offset'] + 1}"}
    )
    assert ([{**one, "event": "record"}], 1) == (same, begin["total"])
    _, records, _ = page(http, partition=one["partition"], where=of(mark), order="oldest")
    assert {one["partition"] for one in records} == {one["partition"]}
    assert page(http, **{"from": "2100-01-01"})[2]["total"] == 0


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({"where": "value.nothing == 1"}, 422, "have no field 'nothing'"),
        ({"where": "value.text =="}, 422, "^"),
        ({"where": "0"}, 422, "not true or false"),
        ({"where": "value.text"}, 422, "not true or false"),
        ({"from": "2026-01-02", "to": "2026-01-01"}, 422, "the end is before the beginning"),
        ({"from": "yesterday-ish"}, 422, "is not one of"),
        ({"from": "3/99999999999"}, 422, "is not in"),
        ({"partition": 999}, 422, "has no partition 999"),
        ({"cursor": "bm90aGluZw"}, 422, "not a search cursor"),
        ({"limit": 0}, 422, "limit"),
    ],
)
def test_what_cannot_be_searched_is_refused(http: httpx2.Client, asked: dict[str, Any], status: int, said: str):
    """Before anything is answered, with the place that is wrong; of a page and of a file."""
    for path in (PATH, *([f"{PATH}/export"] if "limit" not in asked else [])):
        answer = http.get(path, params=asked)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), path
        assert said in answer.json()["detail"]


def test_a_condition_that_only_a_record_shows_to_be_none(http: httpx2.Client, mark: str):
    """A header may be anything: the file is refused before it begins, the page says in its last line why it ends."""
    asked = {"where": "headers.ce_type"}
    refused = http.get(f"{PATH}/export", params=asked)
    assert (refused.status_code, "not true or false" in refused.json()["detail"]) == (422, True)
    last = json.loads(http.get(PATH, params=asked).text.splitlines()[-1])
    assert (last["event"], "not true or false" in last["detail"]) == ("failed", True)


def test_a_topic_of_others_is_searched_and_exported(http: httpx2.Client, stack: Stack):
    """Avro of a schema of the registry, JSON and text as they are, other bytes as bytes; 404 where there is none."""
    with foreign_topic(str(stack.kafka), fresh("orders")) as name:
        access = RegistryAccess.required(stack.schema_registry)
        order = schema(TEXT)
        schema_id = int(ask(access, "POST", f"subjects/{name}-value/versions", {"schema": order})["id"])
        values = [encoded({"text": "by schema"}, order, schema_id), b"plain text", b"\x00\xff\xfe"]
        send(str(stack.kafka), name, [("k", value) for value in values])
        path = f"/api/records/{name}"
        lines = [json.loads(line) for line in http.get(path, params={"order": "oldest"}).text.splitlines()]
        found = [one for one in lines if one["event"] == "record"]
        assert [one["value"] for one in found] == [
            *({"n": n} for n in range(COUNT)), {"text": "by schema"}, "plain text", None,
        ]  # fmt: skip
        assert found[-1]["bytes_base64"] == "AP/+"
        for asked, count in (({"where": "value.n >= 3"}, 2), ({"text": "BY SCHEMA"}, 1), ({"key": "k"}, 3)):
            lines = [json.loads(line) for line in http.get(path, params=asked).text.splitlines()]
            assert [one["event"] for one in lines].count("record") == count, lines
        exported = http.get(f"{path}/export", params={"format": "csv"}).text
        assert next(row["value.json"] for row in csv.DictReader(io.StringIO(exported))) == '{"n":0}'
    missing = http.get("/api/records/no-such-topic")
    assert (missing.status_code, missing.json()["detail"]) == (404, "there is no topic 'no-such-topic' on the broker")


def test_who_may_search(api: Api):
    """Operators: a caller that is bound to a user may not read the data of all."""
    for token, status in (("eye-key-000001", 200), ("ann-key-000001", 403), ("no-such-key", 401)):
        headers = {"Authorization": f"Bearer {token}"}
        for path in (f"{PATH}?from=latest", f"{PATH}/export?from=latest"):
            assert httpx2.get(f"{api.url}{path}", headers=headers, timeout=60).status_code == status, (token, path)
    headers = {"Authorization": "Bearer eye-key-000001"}
    assert httpx2.get(f"{api.url}/api/records/no.such", headers=headers, timeout=60).status_code == 404


def test_everything_is_exported(http: httpx2.Client, mark: str):
    """As JSON lines, CSV and Parquet: all seven, though a page is shorter."""
    asked = {"where": f'{of(mark)} && value.text.contains("needle")', "limit": 2}
    files = {kind: http.get(f"{PATH}/export", params={**asked, "format": kind}) for kind in ("jsonl", "csv", "parquet")}
    ids = {f"{mark}-{n}" for n in range(7)}
    assert ids == {json.loads(line)["value"]["insight_id"] for line in files["jsonl"].text.splitlines()}
    assert ids == {row["value.insight_id"] for row in csv.DictReader(io.StringIO(files["csv"].text, newline=""))}
    table = pq.read_table(io.BytesIO(files["parquet"].content))
    assert ids == {one["insight_id"] for one in table["value"].to_pylist()}
    assert files["csv"].headers["content-disposition"] == f'attachment; filename="{INSIGHTS}.csv"'


def test_searches_end_with_their_readers(http: httpx2.Client, monkeypatch: pytest.MonkeyPatch):
    """Two of one caller run at once, a third gets a retry time; when the readers leave, their processes end."""
    monkeypatch.setattr(processes, "_PROGRAM", "from tests.integration.record_search.endless import endless; endless()")
    running = searches._searches._running
    with http.stream("GET", PATH) as one, http.stream("GET", f"{PATH}/export") as two:
        assert (one.status_code, two.status_code) == (200, 200)
        assert running.total() == AT_ONCE_OF_CALLER_MAX
        refused = http.get(PATH)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        started = children()
        assert len(started) == AT_ONCE_OF_CALLER_MAX
    wait_until(lambda: running.total() == 0, "the searches end")
    wait_until(lambda: not children(), "their processes end")


def test_an_export_that_breaks_off_does_not_look_whole(
    http: httpx2.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
):
    """A client sees that the rest is missing; the log has one line with the reason, and no traceback."""
    monkeypatch.setattr(processes, "_PROGRAM", "from tests.integration.record_search.endless import broken; broken()")
    with capture_logs() as logs, pytest.raises(httpx2.RemoteProtocolError):
        http.get(f"{PATH}/export")
    wait_until(lambda: searches._searches._running.total() == 0, "the search ends")
    cut = [(one["event"], one["path"], one["reason"]) for one in logs if one["log_level"] not in ("debug", "info")]
    assert cut == [("an answer was cut off", f"{PATH}/export", GONE)]
    assert (caplog.messages, "Traceback" in capfd.readouterr().err) == ([], False)


def children() -> list[psutil.Process]:
    """The processes of searches that this one has started."""
    return [one for one in psutil.Process().children() if "record_search.endless" in " ".join(one.cmdline())]
