"""`highwater sql` against a real broker, registry and database: right, pruned, joined, bounded, and locked up."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from typing import Any

import asyncpg
import pyarrow.parquet as pq
import pytest

from highwater.api.command.connection import kafka_client
from highwater.connectors.kafka.registry_http import ask
from highwater.connectors.sql.answers import rows_of
from highwater.connectors.sql.catalogue import READ_MODELS, topics_by_table
from highwater.connectors.sql.engine import answered
from highwater.connectors.sql.query_task import InvalidQueryError, Limits, QueryTimeoutError, Sources
from highwater.schemas.topics import TOPICS
from highwater.streams.access import RegistryAccess
from highwater.streams.clock import wall_ns
from tests import ROOT
from tests.conftest import Stack
from tests.integration.broker.making import COUNT as COUNT_OF_OTHERS
from tests.integration.broker.making import TEXT, foreign_topic, schema
from tests.integration.commands import printed, run
from tests.integration.connecting import fresh, send
from tests.unit.replay.making import encoded

INSIGHTS = "feeds.insight-ingested"
TABLE = "feeds.insight_ingested"
COUNT = 3_000
# Enough for each of the eight partitions to have some, with any mark.
CHANNELS = 300


@dataclass(frozen=True)
class Published:
    """Insights of one mark: `channel_id` n % CHANNELS, `ts` n, a text of every third."""

    mark: str
    environment: dict[str, str]
    sources: Sources

    def sql(self, query: str, limit: int = 10_000, seconds: float = 60) -> dict[str, Any]:
        """The answer of a query, with a condition on the mark for `$MINE`; as `--json` gives it, in this process."""
        with answered(self.query(query), self.sources, Limits(limit, seconds, memory_mib=256)) as answer:
            rows = [row for batch in answer.batches() for row in rows_of(batch)]
            return {"names": [one["name"] for one in answer.columns], "data": rows, **answer.summary()}

    def query(self, query: str) -> str:
        """The query with its condition."""
        return query.replace("$MINE", f"insight_id LIKE '{self.mark}-%'")


@pytest.fixture(scope="module")
def published(stack, seeds, tmp_path_factory) -> Published:
    """3,000 insights over all partitions, and five users in the read models."""
    environment = stack.environment(HIGHWATER_DATA_DIR=str(tmp_path_factory.mktemp("sql")), DATABASE_URL=seeds.url)
    mark = fresh("sql")
    lines = [
        {
            "insight_id": f"{mark}-{n}",
            "channel_id": f"{mark}-c{n % CHANNELS}",
            "ts": n,
            "text": f'it\'s "{n}"' if n % 3 else "",
        }
        for n in range(COUNT)
    ]
    done = run(environment, "publish", INSIGHTS, "-", stdin="".join(json.dumps(line) + "\n" for line in lines))
    assert done.returncode == 0, done.stderr
    settings = stack.settings(DATABASE_URL=seeds.url)
    return Published(mark, environment, Sources(kafka_client(settings), settings.registry_access(), settings.database))


def only(answer: dict[str, Any]) -> dict[str, Any]:
    """The scan of the one table that the query read."""
    (one,) = answer["scanned"]
    return one


def test_a_query_answers_as_the_log_is(published: Published):
    """Counts, groups and sums over every record, with the names and types of the columns."""
    answer = published.sql(
        f"SELECT channel_id, count(*) AS n, sum(epoch_ms(ts)) AS total, min(_timestamp) AS first FROM {TABLE} "
        "WHERE $MINE GROUP BY ALL ORDER BY channel_id LIMIT 2"
    )
    assert answer["names"] == ["channel_id", "n", "total", "first"]
    rows = [n for n in range(COUNT) if n % CHANNELS == 0]
    assert answer["data"][0][:3] == [f"{published.mark}-c0", len(rows), sum(rows)]
    assert answer["data"][0][3].endswith("Z")
    assert (answer["rows"], answer["is_cut_off"]) == (2, False)
    assert only(answer)["scanned"] == only(answer)["held"] >= COUNT


def test_what_conditions_exclude_is_not_read(published: Published):
    """By partition, by offset and by time of arrival, also through a view and a join: the records of the answer are all there."""
    everything = published.sql(f"SELECT _partition, _offset, _timestamp FROM {TABLE} WHERE $MINE ORDER BY ALL")["data"]
    assert len(everything) == COUNT
    assert {one[0] for one in everything} == set(range(TOPICS[INSIGHTS].partitions))
    mine = [one for one in everything if one[0] == everything[0][0]]
    one = published.sql(f"SELECT count(*) FROM {TABLE} WHERE $MINE AND _partition = {mine[0][0]}")
    assert one["data"] == [[len(mine)]]
    assert len(mine) <= only(one)["scanned"] < only(one)["held"]
    some = published.sql(
        f"WITH t AS (SELECT * FROM {TABLE}) SELECT a._offset FROM t AS a LEFT JOIN models.channels AS c USING (channel_id) "
        f"WHERE a._partition = {mine[0][0]} AND a._offset BETWEEN {mine[3][1]} AND {mine[9][1]}"
    )
    assert only(some)["scanned"] <= mine[9][1] - mine[3][1] + 1
    last = max(one[2] for one in everything)
    late = published.sql(f"SELECT count(*) FROM {TABLE} WHERE $MINE AND _timestamp >= TIMESTAMPTZ '{last}'")
    assert late["data"] == [[len([one for one in everything if one[2] == last])]]
    assert only(late)["scanned"] < COUNT
    never = published.sql(f"SELECT count(*) FROM {TABLE} WHERE _timestamp > now() + INTERVAL 1 DAY")
    assert (never["data"], only(never)["scanned"]) == ([[0]], 0)


def documented(title: str) -> list[str]:
    """The statements under a heading of docs/sql.md."""
    section = (
        (ROOT / "docs" / "sql.md").read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    )
    return re.findall(r'highwater sql "([^"]+)"', section)


def test_the_windows_of_the_documents(published: Published):
    """Rates by the hour, and the minute with five times its channel's rate in the hour before, by the times of the insights."""
    rates, bursts = documented("Windows: rates and bursts")
    mine = f"SELECT * FROM ({rates}) WHERE channel_id LIKE '{published.mark}-c%'"
    hours = published.sql(mine)
    assert hours["names"] == ["channel_id", "hour", "insights"]
    assert sum(row[2] for row in hours["data"]) == COUNT
    # One insight a minute in twenty minutes, and in the last of them fifteen; another channel has one a minute alone.
    mark, begin = fresh("burst"), wall_ns() // 60_000_000_000 * 60 - 3_600
    minutes = {"calm": [*range(20)], "burst": [*range(20), *[19] * 14]}
    lines = [
        {
            "insight_id": f"{mark}-{name}-{n}",
            "channel_id": f"{mark}-{name}",
            "ts": (begin + 60 * minute) * 1000,
            "text": "",
        }
        for name, found in minutes.items()
        for n, minute in enumerate(found)
    ]
    done = run(
        published.environment, "publish", INSIGHTS, "-", stdin="".join(json.dumps(line) + "\n" for line in lines)
    )
    assert done.returncode == 0, done.stderr
    by_time_of_the_insight = bursts.replace("_timestamp", "ts")
    found = published.sql(f"SELECT * FROM ({by_time_of_the_insight}) WHERE channel_id LIKE '{mark}-%'")
    assert found["names"] == ["channel_id", "minute", "insights", "usual"]
    (row,) = found["data"]
    assert (row[0], row[2], row[3]) == (f"{mark}-burst", 15, pytest.approx(19 / 60))


def test_a_limit_ends_the_reading(published: Published):
    """Three rows are known long before everything is read."""
    answer = published.sql(f"SELECT _key, text FROM {TABLE} LIMIT 3")
    assert answer["rows"] == 3
    assert only(answer)["scanned"] < only(answer)["held"]


def test_topics_are_joined_with_read_models(published: Published, seeds_rows: list[str]):
    """Rows of PostgreSQL as they were at one moment, beside the log."""
    answer = published.sql(
        f"SELECT c.channel_id, c.current_seq, count(*) FROM {TABLE} AS i JOIN models.channels AS c USING (channel_id) "
        "WHERE $MINE GROUP BY ALL ORDER BY ALL"
    )
    assert answer["data"] == [[channel, 7, COUNT // CHANNELS] for channel in seeds_rows]


@pytest.fixture
async def seeds_rows(published: Published, seeds) -> list[str]:
    """Two channels of the mark in the read model."""
    channels = [f"{published.mark}-c{n}" for n in (1, 2)]
    connection = await asyncpg.connect(seeds.url)
    try:
        await connection.executemany(
            "INSERT INTO channels (channel_id, current_seq) VALUES ($1, 7)", [(one,) for one in channels]
        )
    finally:
        await connection.close()
    return channels


def test_every_format_gives_the_same(published: Published, tmp_path):
    """JSON lines and CSV to a pipe, Parquet to a file; with nulls, quotes and empty texts; a summary on standard error."""
    query = published.query(f"SELECT insight_id, text, url, _headers FROM {TABLE} WHERE $MINE ORDER BY ts LIMIT 50")
    lines = run(published.environment, "sql", query, "--format", "jsonl")
    expected = [(f"{published.mark}-{n}", f'it\'s "{n}"' if n % 3 else "") for n in range(50)]
    found = [json.loads(line) for line in lines.stdout.splitlines()]
    assert expected == [(one["insight_id"], one["text"]) for one in found]
    assert isinstance(found[0]["_headers"], dict)
    assert f"of {COUNT:,}" in lines.stderr or "records of feeds.insight-ingested" in lines.stderr
    table = run(published.environment, "sql", query, "--format", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(table, newline="")))
    assert expected == [(one["insight_id"], one["text"]) for one in rows]
    assert ',"",,' in table.splitlines()[1]  # an empty text, and no URL
    path = tmp_path / "out.parquet"
    told = printed(run(published.environment, "sql", query, "-o", str(path), "--json"))
    assert told["rows"] == 50
    assert expected == [(one["insight_id"], one["text"]) for one in pq.read_table(path).to_pylist()]


def test_rows_beyond_the_limit_are_reported(published: Published):
    """They are cut off, and both JSON and the line for people say so."""
    assert published.sql(f"SELECT 1 FROM {TABLE} WHERE $MINE", limit=10)["is_cut_off"]
    assert not published.sql(f"SELECT 1 FROM {TABLE} WHERE $MINE LIMIT 10", limit=10)["is_cut_off"]
    done = run(published.environment, "sql", f"SELECT ts FROM {TABLE}", "--limit", "10")
    assert len(done.stdout.splitlines()) == 11
    assert "10 rows (cut off; --limit allows more)" in done.stderr


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT 1 FROM feeds.insigt_ingested", "did you mean feeds.insight_ingested"),
        ("SELECT 1 FROM insight_ingested", "did you mean feeds.insight_ingested"),
        ("SELECT 1 FROM feeds.insight-ingested", "the topic feeds.insight-ingested is the table feeds.insight_ingested"),
        (f"SELECT chanel_id FROM {TABLE}", "there is no column 'chanel_id'; did you mean channel_id"),
        (f"SELECT i.chanel FROM {TABLE} AS i", "did you mean channel_id"),
        (f"SELECT nofun(1) FROM {TABLE}", "there is no scalar function 'nofun'"),
        ("SELEC 1", 'syntax error at or near "SELEC" (line 1, column 1)'),
        ("SELECT 1; SELECT 2", "only one statement can be run at a time"),
        ("", "the query is empty"),
        ("CREATE TABLE t (i INT)", "only SELECT is allowed"),
        ("SET threads = 9", "only SELECT is allowed"),
        ("COPY (SELECT 1) TO '/tmp/stolen.csv'", "only SELECT is allowed"),
        ("ATTACH '/tmp/x.db'", "only SELECT is allowed"),
        ("INSTALL httpfs", "only SELECT is allowed"),
        ("SELECT * FROM read_text('/etc/passwd')", "file system operations are disabled"),
        ("SELECT * FROM glob('/*')", "file system operations are disabled"),
        ("SELECT * FROM read_csv('https://127.0.0.1:1/x.csv')", "disabled"),
        ("SELECT * FROM '/etc/passwd'", "there is no table"),
        ("SELECT repeat('x', 1000000) FROM range(100000) ORDER BY random()", "more memory than it may have"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_in_one_line(published: Published, query: str, said: str):
    """With the nearest name or the place; nothing of the machine is read."""
    with pytest.raises(InvalidQueryError) as refused:
        published.sql(query)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_command_says_what_is_wrong_in_one_line(published: Published):
    """With status 1, or 2 where the command itself is used wrongly."""
    done = run(published.environment, "sql", "SELECT 1 FROM feeds.insigt_ingested")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("highwater: there is no table 'insigt_ingested'; did you mean feeds.insight_ingested")
    assert done.stderr.count("\n") == 1
    for arguments in ((), ("SELECT 1", "--tables"), ("SELECT 1", "--json", "--format", "csv")):
        assert run(published.environment, "sql", *arguments).returncode == 2


def test_a_query_ends_in_time(published: Published):
    """One that would run for hours is interrupted, in DuckDB's own work as well as over the log."""
    endless = "SELECT count(*) FROM range(1000000000000) AS t(i) WHERE i * i % 7 = 9"
    for query in (
        endless,
        f"SELECT count(*) FROM {TABLE} AS a, {TABLE} AS b, {TABLE} AS c WHERE a.ts < b.ts AND b.ts > c.ts",
    ):
        with pytest.raises(QueryTimeoutError, match="did not end within"):
            published.sql(query, seconds=0.5)


def test_the_tables_are_listed(published: Published):
    """Every topic and every read model, with columns; `DESCRIBE` works too."""
    answer = printed(run(published.environment, "sql", "--tables", "--json"))
    columns = dict(answer["data"])
    others = {name for name in columns if name.startswith('"')}
    assert {*topics_by_table(), *READ_MODELS} == set(columns) - others
    assert "_timestamp" in columns[TABLE]
    assert ["channel_id", "VARCHAR"] in [row[:2] for row in published.sql(f"DESCRIBE {TABLE}")["data"]]


def test_topics_of_other_applications_are_tables(published: Published, stack: Stack):
    """By name, in quotes; Avro by its fields, JSON and text as JSON; pruned, joined, listed, and hinted at."""
    with foreign_topic(str(stack.kafka), fresh("shop.orders-v1")) as name:
        subject = f"{name}-value"
        access = RegistryAccess.required(stack.schema_registry)
        schema_id = int(ask(access, "POST", f"subjects/{subject}/versions", {"schema": schema(TEXT)})["id"])
        send(str(stack.kafka), name, [("k", encoded({"text": "by schema"}, schema(TEXT), schema_id)), ("k", b"plain")])
        table = f'"{name}"'
        answer = published.sql(
            f"SELECT _offset, _key, _value.n, text, _value FROM {table} WHERE _offset >= {COUNT_OF_OTHERS - 1}"
        )
        assert answer["data"] == [
            [COUNT_OF_OTHERS - 1, None, "4", None, '{"n": 4}'],
            [COUNT_OF_OTHERS, "k", None, "by schema", '{"text":"by schema"}'],
            [COUNT_OF_OTHERS + 1, "k", None, None, '"plain"'],
        ]
        assert (only(answer)["table"], only(answer)["scanned"], only(answer)["held"]) == (table, 3, COUNT_OF_OTHERS + 2)
        joined = published.sql(f"SELECT count(*) FROM {table.upper()} AS o JOIN {TABLE} AS i ON o._key = i._key")
        assert joined["data"] == [[0]]
        listed = dict(
            published.sql(f"SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{name}'")[
                "data"
            ]
        )
        assert {"_value": "JSON", "_value_bytes": "BLOB", "text": "VARCHAR"}.items() <= listed.items()
        for query, said in (
            (f"SELECT 1 FROM {name}", f"the topic {name} needs quotes: {table}"),
            (f'SELECT 1 FROM "{name[:-1]}"', f"did you mean {table}"),
            (f"SELECT txt FROM {table}", "did you mean text"),
        ):
            with pytest.raises(InvalidQueryError) as refused:
                published.sql(query)
            assert said in str(refused.value)
