"""The notebook client without a network: questions, tables, their types, and answers that come again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from highwater.api.client.client import Client, NoTopicError, RefusedError
from highwater.api.client.frames import TIME, Frame, table_of
from highwater.api.client.read_models import READ_MODELS
from highwater.api.client.topic_frames import text_of
from highwater.api.command.command import CommandFailedError
from highwater.schemas.errors import ConfigurationError, UnavailableError
from highwater.schemas.positions import Position
from highwater.streams.settings import SETTINGS

NOWHERE = "http://127.0.0.1:1"
CLUSTERS = {
    "user_id": "ada",
    "cluster_version": 7,
    "clusters": [
        {
            "cluster_id": "c1", "label": "raft", "title": "Raft", "keywords": ["raft", "log"], "summary": "s", "size": 2,
            "representative_id": "i1", "insight_ids": ["i1", "i2"], "confidences": [1.0, 0.5], "since": [3, 7],
            "positions": [[0, 0.5], [1, 1]], "position": [0.5, 0.75], "radius": 1.0, "born_version": 3, "changed_version": 7,
            "nearby_ids": ["i3"], "nearby_confidences": [0.4], "written_version": 0,
        }
    ],
    "noise": 2,
    "outside": {"insight_ids": ["i3", "i4"], "positions": [[2, 2], None]},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_no_installation_is_guessed() -> None:
    """In a folder without a stack, a client without an address refuses to read, and the error explains it."""
    with pytest.raises(CommandFailedError, match="no local stack runs in"):
        Client().clusters("ada")
    assert "no local stack runs in" in repr(Client())
    with pytest.raises(CommandFailedError, match="no local stack runs in"):
        Client(kafka="127.0.0.1:1").clusters("ada")
    assert repr(Client("http://api", kafka="k:1")) == "<Client of api http://api, Kafka k:1>"


def served(answer: Callable[[httpx2.Request], httpx2.Response]) -> Client:
    """A client whose API is a function."""
    hw = Client("http://api", api_key="k")
    hw._http = httpx2.Client(base_url="http://api", transport=httpx2.MockTransport(answer))
    return hw


def always(document: Any, status: int = 200, **headers: str) -> Callable[[httpx2.Request], httpx2.Response]:
    """An API that says one thing."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: httpx2.Response(status, json=document, headers=named)


def test_clusters_are_rows_of_their_types():
    """A cluster is a row, its place two numbers; the version and the event behind it are the frame's."""
    hw = served(always(CLUSTERS, x_resource_version="7", x_caused_by="feeds.clusters-rebuilt/0/4"))
    frame = hw.clusters("ada")
    assert (frame.version, frame.caused_by, len(frame)) == (7, "feeds.clusters-rebuilt/0/4", 1)
    assert frame.arrow().schema.equals(READ_MODELS["clusters"].schema)
    row = frame.rows()[0]
    assert (row["x"], row["y"], row["insight_ids"]) == (0.5, 0.75, ["i1", "i2"])


def test_members_are_every_insight_once():
    """Members with their cluster, then the others: with the cluster they lean to, and without a place if they have none."""
    rows = served(always(CLUSTERS)).members("ada").rows()
    assert [(row["insight_id"], row["cluster_id"], row["confidence"], row["since"]) for row in rows] == [
        ("i1", "c1", 1.0, 3), ("i2", "c1", 0.5, 7), ("i3", None, None, None), ("i4", None, None, None),
    ]  # fmt: skip
    assert [(row["leans_to"], row["leaning"], row["x"]) for row in rows[2:]] == [("c1", 0.4, 2.0), (None, None, None)]


def test_a_version_from_before_clusters_had_an_identity_has_members():
    """Missing fields are null."""
    old = {"clusters": [{"cluster_id": "c", "label": "l", "size": 1, "insight_ids": ["i"]}]}
    hw = served(always(old))
    assert (hw.members("ada").rows()[0]["since"], hw.clusters("ada").rows()[0]["x"]) == (None, None)


@pytest.mark.parametrize("name", sorted(READ_MODELS))
def test_an_empty_read_model_has_its_columns(name: str):
    """It has no rows, but the same columns and types in every library."""
    empty = {
        key: [] for key in ("clusters", "items", "events", "curations", "channels", "queries", "seasons", "table", "rounds",
                            "results", "users")
    }  # fmt: skip
    model = READ_MODELS[name]
    frame = Frame(table_of(list(model.rows({**empty, "by_channel": {}})), model.schema))
    assert frame.arrow().schema.equals(model.schema)
    assert list(frame.pandas().columns) == frame.polars().columns == model.schema.names


def test_what_the_catalogue_does_not_know_is_kept():
    """A new field is a column of its own type; one of several types is JSON."""
    table = table_of([{"a": "x", "new": 1, "odd": 1}, {"a": None, "odd": {"b": 2}}], pa.schema([("a", pa.string())]))
    assert table.to_pydict() == {"a": ["x", None], "new": [1, None], "odd": ["1", '{"b": 2}']}


def test_times_and_gaps_keep_their_types():
    """A time is a time in UTC, a whole number with gaps stays whole: in pandas as in polars."""
    rows = [{"kickoff": "2020-01-01T12:00:00Z", "home_goals": 2}, {"kickoff": None, "home_goals": None}]
    frame = Frame(table_of(rows, pa.schema([("kickoff", TIME), ("home_goals", pa.int64())])))
    pandas, polars = frame.pandas(), frame.polars()
    assert pandas["home_goals"].dtype == pd.ArrowDtype(pa.int64())
    assert pandas["kickoff"][0] == datetime(2020, 1, 1, 12, tzinfo=UTC)
    assert polars.schema == {"kickoff": pl.Datetime("ms", "UTC"), "home_goals": pl.Int64}


def test_whatever_takes_arrow_takes_a_frame():
    """The PyCapsule protocol: no copy through rows."""
    frame = Frame(pa.table({"a": [1, 2]}))
    assert pa.table(frame).equals(frame.arrow())
    assert pl.DataFrame(frame)["a"].to_list() == [1, 2]


def test_vectors_are_a_matrix():
    """Rows without a vector are left out; vectors of two lengths are refused, as they cannot be compared."""
    vectors = [np.array([1, 2], "<f4").tobytes(), None, np.array([3, 4], "<f4").tobytes()]
    assert Frame(pa.table({"embedding": vectors})).vectors().tolist() == [[1, 2], [3, 4]]
    assert Frame(pa.table({"embedding": pa.nulls(1, pa.binary())})).vectors().shape == (0, 0)
    with pytest.raises(ValueError, match="different lengths"):
        Frame(pa.table({"embedding": [b"1234", b"12345678"]})).vectors()


def test_a_list_is_read_to_its_end():
    """Pages are followed by their cursors, with everything else that was asked."""
    asked: list[dict[str, str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(dict(request.url.params))
        page = int(request.url.params.get("cursor", "0"))
        channels = [{"channel_id": f"c{page}", "current_seq": page, "last_insight_ts": None}]
        return httpx2.Response(200, json={"channels": channels, "next_cursor": str(page + 1) if page < 2 else None})

    assert served(answer).channels().arrow().column("channel_id").to_pylist() == ["c0", "c1", "c2"]
    assert asked == [{}, {"cursor": "1"}, {"cursor": "2"}]


def test_the_same_again_costs_a_304():
    """An unchanged answer is not sent again; another query is a new request; a new version is read."""
    tags, sent = ["v1"], []

    def answer(request: httpx2.Request) -> httpx2.Response:
        is_known = request.headers.get("if-none-match") == f'"{tags[0]}"'
        sent.append(304 if is_known else 200)
        return httpx2.Response(sent[-1], json=None if is_known else CLUSTERS, headers={"etag": f'"{tags[0]}"'})

    hw = served(answer)
    first = hw.clusters("ada")
    assert hw.clusters("ada") is first
    assert hw.clusters("ada", version=3) is not first
    assert len(hw.members("ada")) == 4
    tags[0] = "v2"
    assert hw.clusters("ada") is not first
    assert sent == [200, 304, 200, 200, 200]


def test_ids_and_positions_go_as_they_are():
    """A slash in an id is part of the id; positions are what the read has to have seen."""
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={"by_channel": {"aio-libs/aiokafka": 3}})

    frame = served(answer).pending("a/b", after=["t/0/1", "t/1/9"])
    assert frame.rows() == [{"channel_id": "aio-libs/aiokafka", "pending": 3}]
    assert seen[0].url.raw_path == b"/api/users/a%2Fb/pending"
    assert seen[0].headers["x-min-position"] == "t/0/1,t/1/9"


def test_what_is_not_there_yet_is_asked_for_again():
    """A page that is being made (202) and a position not accounted for (503) are waited for."""
    statuses = [202, 503, 200]

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(statuses.pop(0), json={"table": []}, headers={"retry-after": "0"})

    assert len(served(answer).table("s")) == 0
    assert statuses == []


def test_a_refusal_says_why():
    """The error contains the status and the API's own text; if the API is unavailable, it contains the address."""
    with pytest.raises(RefusedError, match=r"404: there is no season") as refused:
        served(always({"detail": "there is no season"}, 404)).table("s")
    assert refused.value.status == 404
    with pytest.raises(RefusedError, match="502"):
        served(lambda _: httpx2.Response(502, text="")).table("s")

    def away(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    with pytest.raises(UnavailableError, match="http://api"):
        served(away).channels()


def test_a_topic_that_is_none_is_said():
    """A name that is not in the catalogue is refused before anything is connected to."""
    with pytest.raises(NoTopicError, match=r"feeds\.insigt"):
        Client(kafka="127.0.0.1:1", schema_registry=NOWHERE).topic("feeds.insigt")


def test_the_catalogue_is_a_frame():
    """It lists every topic, also dead letters, with its key and its readers."""
    rows = {row["topic"]: row for row in Client().topics().rows()}
    assert rows["feeds.insight-ingested"]["key"] == "channel_id"
    assert "feeds.insight-ingested.dlq" in rows


def test_a_wrong_setting_is_said_as_everywhere(monkeypatch):
    """The client reads the settings that everything reads."""
    monkeypatch.setenv("HIGHWATER_NONSENSE", "1")
    with pytest.raises(ConfigurationError, match="HIGHWATER_NONSENSE"):
        Client().channels()


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        ("-1h", "1h"),
        ("2026-01-01", "2026-01-01"),
        (7, "7"),
        (timedelta(minutes=90), "5400000ms"),
        (datetime(2026, 1, 1, 12), "2026-01-01T12:00:00+00:00"),  # noqa: DTZ001 - as people write them
        (Position("t", 3, 9), "t/3/9"),
    ],
)
def test_bounds_are_what_the_command_takes(moment: Any, text: str):
    """Ages, times, datetimes, offsets and positions; a time without a zone is UTC."""
    assert text_of(moment) == text
