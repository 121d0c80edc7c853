"""SQL over HTTP, against a real broker: rows as they come, files, who may, and that a query ends with its reader."""

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

from highwater.api.sql import queries
from highwater.connectors.sql.catalogue import READ_MODELS, topics_by_table
from tests.integration.api_server import Api, running_api, wait_until
from tests.integration.connecting import fresh

PATH = "/api/sql"
TABLE = "feeds.insight_ingested"
COUNT = 1_200
SETTING = "admin:root-key-00001,viewer:eye-key-000001,viewer:ann-key-000001:ann"


@pytest.fixture(scope="module")
def api(own_settings) -> Iterator[Api]:
    """An API with keys."""
    with running_api(own_settings(HIGHWATER_API_KEYS=SETTING)) as running:
        yield running


@pytest.fixture(scope="module")
def http(api: Api) -> Iterator[httpx2.Client]:
    """An operator."""
    with httpx2.Client(base_url=api.url, timeout=60, headers={"Authorization": "Bearer root-key-00001"}) as client:
        yield client


@pytest.fixture(scope="module")
def mark(http: httpx2.Client) -> str:
    """1,200 insights."""
    found = fresh("sql")
    lines = [
        json.dumps({"insight_id": f"{found}-{n}", "channel_id": found, "ts": n, "text": "a,b"}) for n in range(COUNT)
    ]
    kind = {"content-type": "application/x-ndjson"}
    answer = http.post("/api/events/feeds.insight-ingested", content="\n".join(lines), headers=kind)
    assert answer.status_code == 202, answer.text
    return found


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    """The lines of an answer."""
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_rows_come_with_columns_and_a_summary(http: httpx2.Client, mark: str):
    """Right, narrowed by the conditions, and cut off at the limit, which is reported."""
    query = f"SELECT channel_id, count(*) AS n FROM {TABLE} WHERE channel_id = '{mark}' GROUP BY ALL"
    begin, *between, end = events(http.post(PATH, json={"query": query}))
    assert begin == {
        "event": "begin",
        "columns": [{"name": "channel_id", "type": "VARCHAR"}, {"name": "n", "type": "BIGINT"}],
    }
    assert [one["values"] for one in between if one["event"] == "row"] == [[mark, COUNT]]
    (scanned,) = end["scanned"]
    assert (end["event"], end["rows"], end["is_cut_off"]) == ("end", 1, False)
    assert scanned["topic"] == "feeds.insight-ingested"
    assert scanned["scanned"] == scanned["held"] >= COUNT
    *rows, end = events(http.post(PATH, json={"query": f"SELECT 1 FROM {TABLE}", "limit": 7}))
    assert len([one for one in rows if one["event"] == "row"]) == 7
    assert end["is_cut_off"]


def test_all_rows_are_exported(http: httpx2.Client, mark: str):
    """As JSON lines, CSV and Parquet."""
    query = f"SELECT insight_id, text FROM {TABLE} WHERE channel_id = '{mark}'"
    files = {
        kind: http.post(f"{PATH}/export", json={"query": query, "format": kind}) for kind in ("jsonl", "csv", "parquet")
    }
    ids = {f"{mark}-{n}" for n in range(COUNT)}
    assert ids == {json.loads(line)["insight_id"] for line in files["jsonl"].text.splitlines()}
    assert ids == {row["insight_id"] for row in csv.DictReader(io.StringIO(files["csv"].text, newline=""))}
    assert ids == set(pq.read_table(io.BytesIO(files["parquet"].content))["insight_id"].to_pylist())
    assert files["csv"].headers["content-disposition"] == 'attachment; filename="query.csv"'


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT 1 FROM feeds.insigt_ingested", "did you mean feeds.insight_ingested"),
        ("SELECT * FROM read_text('/etc/passwd')", "disabled"),
        ("DROP VIEW feeds.insight_ingested", "only SELECT is allowed"),
    ],
)
def test_what_cannot_be_run_is_refused(http: httpx2.Client, query: str, said: str):
    """Before anything is answered."""
    for path in (PATH, f"{PATH}/export"):
        answer = http.post(path, json={"query": query})
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
        assert said in answer.json()["detail"]


def test_who_may_query(api: Api):
    """Operators: a caller that is bound to a user may not read the data of all."""
    for token, status in (("eye-key-000001", 200), ("ann-key-000001", 403), ("no-such-key", 401)):
        headers = {"Authorization": f"Bearer {token}"}
        for path in (PATH, f"{PATH}/export"):
            answer = httpx2.post(f"{api.url}{path}", headers=headers, json={"query": "SELECT 1"}, timeout=60)
            assert answer.status_code == status, (token, path)
        if status != 403:  # the plan of that key has no call left
            assert httpx2.get(f"{api.url}{PATH}/tables", headers=headers).status_code == status


def test_the_tables_are_listed(http: httpx2.Client):
    """Every topic and read model, with the columns and types that a query of it has."""
    tables = {one["name"]: one["columns"] for one in http.get(f"{PATH}/tables").json()["tables"]}
    assert {*topics_by_table(), *READ_MODELS} == {name for name in tables if not name.startswith('"')}
    for name in READ_MODELS:
        begin = (
            events(http.post(PATH, json={"query": f"SELECT * FROM {name} LIMIT 0"}))[0]
            if name.endswith("jobs")
            else None
        )
        assert begin is None or begin["columns"] == tables[name]
    assert {"name": "_timestamp", "type": "TIMESTAMP WITH TIME ZONE"} in tables[TABLE]


def test_a_query_ends_with_its_reader(http: httpx2.Client):
    """When the client leaves, its process ends, also before the first line."""
    running = queries._queries._running
    in_one_call = "SELECT levenshtein(repeat('a', 500000), repeat('b', 500000))"
    with pytest.raises(httpx2.ReadTimeout):
        http.post(f"{PATH}/export", json={"query": in_one_call}, timeout=httpx2.Timeout(60, read=0.5))
    wait_until(lambda: running.total() == 0, "the query ends")
    wait_until(lambda: not children(), "its process ends")
    endless = f"SELECT 1 FROM {TABLE} AS a, {TABLE} AS b, {TABLE} AS c"
    with http.stream("POST", PATH, json={"query": endless, "limit": 10_000}) as answer:
        assert answer.status_code == 200
        assert (running.total(), len(children())) == (1, 1)
    wait_until(lambda: running.total() == 0, "the query ends")
    wait_until(lambda: not children(), "its process ends")


def children() -> list[psutil.Process]:
    """The processes of queries that this one has started."""
    return [one for one in psutil.Process().children() if "query_process" in " ".join(one.cmdline())]
