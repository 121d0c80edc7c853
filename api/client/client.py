"""Highwater in a notebook: topics and read models as Arrow, pandas or polars in one line.

    from highwater import Client

    hw = Client()
    hw.topic("feeds.insight-ingested", start="-1h").pandas()
    hw.clusters("ada").polars()

Invariants: reading changes neither offsets nor what the API serves. A read model that has not changed is not sent again (304). A
read that names the positions of a write (`after=`) returns a state that includes this write.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import httpx2
import pyarrow as pa

from highwater.api.client.frames import Frame, table_of
from highwater.api.client.read_models import READ_MODELS, ReadModel
from highwater.api.command.client import any_key
from highwater.api.command.connection import api_address, api_trust, kafka_client, stack_settings
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.schemas.topics import Topic, all_topics
from highwater.streams.clock import ProductClock, monotonic_seconds
from highwater.streams.settings import Settings, environment_with_file

if TYPE_CHECKING:
    from highwater.api.client.topic_frames import Moment

_REQUEST_SECONDS = 30.0
# A page that is being built (202) or a position that is not accounted for (503) is available within a second or two.
_PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.5
# Read models whose last answer is kept, so that repeating a request costs a 304.
_KEPT_MAX = 64
_TOPICS = {topic.name: topic for topic in all_topics()}


class RefusedError(HighwaterError):
    """The API refused the request. `status` is the HTTP status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"the API answered {status}: {detail}")
        self.status = status


class NoTopicError(HighwaterError):
    """There is no topic with this name. `Client.topics()` lists the topics."""


class Client:
    """Reads topics and read models of an installation of Highwater.

    Args:
        api: address of the API. By default it is taken from the settings, then from the local stack in `data_dir`, as the
            command does. If neither names one, reading fails: no port is guessed. `repr` shows which installation is read.
        api_key: key for the API. Default: the key of the settings with the highest role.
        kafka: addresses of the brokers, as in `KAFKA_BOOTSTRAP_SERVERS`.
        schema_registry: address of the registry, as in `SCHEMA_REGISTRY_URL`.
        data_dir: data folder of a local stack: `.highwater` in the folder in which it was started.
        ca_file: PEM file of certificates to trust for an https address, as in `HIGHWATER_CA_FILE`. Default: those of the system.

    Topics need Kafka and the registry, read models need the API; what is not used need not be available.
    """

    def __init__(
        self,
        api: str | None = None,
        *,
        api_key: str | None = None,
        kafka: str | None = None,
        schema_registry: str | None = None,
        data_dir: str | Path | None = None,
        ca_file: str | Path | None = None,
    ) -> None:
        given = {"KAFKA_BOOTSTRAP_SERVERS": kafka, "SCHEMA_REGISTRY_URL": schema_registry}
        folders = {"HIGHWATER_DATA_DIR": data_dir, "HIGHWATER_CA_FILE": ca_file}
        given |= {name: None if path is None else str(Path(path).expanduser()) for name, path in folders.items()}
        given["HIGHWATER_API_URL"] = api
        self._given = {name: value for name, value in given.items() if value}
        self._api_key = api_key
        self._http: httpx2.Client | None = None
        self._kept: OrderedDict[str, tuple[str, Frame]] = OrderedDict()

    def __enter__(self) -> Self:
        """Return the client; leaving the block closes its connections."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections to the API."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def __repr__(self) -> str:
        """Name the installation that the client reads."""
        try:
            settings = self._settings()
            named = {"api": self.api, "Kafka": settings.kafka}
        except HighwaterError as error:
            return f"<Client of no installation: {error}>"
        return f"<Client of {', '.join(f'{name} {address}' for name, address in named.items() if address)}>"

    @property
    def api(self) -> str:
        """The address of the API.

        Raises:
            CommandFailedError: neither an argument, nor a setting, nor a local stack in `data_dir` names it.
        """
        return str(self._client().base_url).rstrip("/")

    # -- topics ------------------------------------------------------------------------------------------------------

    def topics(self) -> Frame:
        """Return the catalogue of topics."""
        rows = [
            {
                "topic": topic.name,
                "about": topic.about,
                "key": topic.key,
                "schema": topic.schema,
                "partitions": topic.partitions,
                "producers": list(topic.producers),
                "consumers": list(topic.consumers),
            }
            for topic in _TOPICS.values()
        ]
        return Frame(pa.Table.from_pylist(rows))

    def topic(
        self,
        name: str,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        where: str | None = None,
        key: str | None = None,
        limit: int | None = None,
    ) -> Frame:
        """Return the events of a topic as one table, in order of arrival.

        Each field of an event is a column of its Avro type. `_partition`, `_offset`, `_arrived_at`, `_key` and
        `_headers` belong to the record; `_undecodable` and `_bytes` describe a value that is not an event. For a
        tombstone all fields are null.

        Args:
            name: name of the topic.
            start: first record to read: an offset, a position, a time, a datetime, or an age ("-1h", a timedelta).
            end: first record not to read. Default: the end of the topic at the time of the call.
            where: condition in CEL over value, key, headers, time, topic, partition and offset: `value.size > 10`.
            key: read only records with this key.
            limit: read up to this many records.

        Raises:
            NoTopicError, InvalidSelectionError, WhereError: the topic does not exist, or a bound or the condition is
                invalid.
            UnavailableError: Kafka or the registry is unavailable.
        """
        from highwater.api.client.topic_frames import in_order  # noqa: PLC0415 - a caller that reads no topics needs no Kafka client

        tables = list(self.batches(name, start=start, end=end, where=where, key=key, limit=limit))
        return Frame(in_order(pa.concat_tables(tables)))

    def batches(
        self,
        name: str,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        where: str | None = None,
        key: str | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the same table in batches, for topics that do not fit into memory; ordered within each partition.

        The first batch has no rows, so the columns are known even if no record is found.
        """
        from highwater.api.client.topic_frames import Selection, topic_batches  # noqa: PLC0415 - as above

        settings = self._settings("kafka", "schema_registry")
        selection = Selection(_topic(name), start, end, where, key, limit)
        now_ms = ProductClock(settings.clock_file)()
        yield from topic_batches(kafka_client(settings), settings.registry_access(), selection, now_ms)

    # -- read models -------------------------------------------------------------------------------------------------

    def clusters(
        self, user: str, *, version: int | None = None, since: int | None = None, after: str | Iterable[str] = ()
    ) -> Frame:
        """Return a user's clusters, one per row: the newest, those of `version`, or those changed after version `since`."""
        return self._read("clusters", user, after=after, version=version, since=since)

    def members(self, user: str, *, version: int | None = None, after: str | Iterable[str] = ()) -> Frame:
        """Return a user's insights with cluster, confidence and position on the map; insights in no cluster come last."""
        return self._read("members", user, after=after, version=version)

    def history(self, user: str, cluster_id: str, *, after: str | Iterable[str] = ()) -> Frame:
        """Return the changes of a cluster, version by version."""
        return self._read("history", user, cluster_id, after=after)

    def curations(self, user: str, *, after: str | Iterable[str] = ()) -> Frame:
        """Return a reader's active curations: renamed, merged and split clusters."""
        return self._read("curations", user, after=after)

    def feed(self, user: str, *, since: int | None = None, after: str | Iterable[str] = ()) -> Frame:
        """Return the items of a user's feed; with `since`, only those that changed after that version."""
        return self._read("feed", user, after=after, since=since)

    def pending(self, user: str, *, after: str | Iterable[str] = ()) -> Frame:
        """Return the insights that wait for a user's next rebuild, counted by channel."""
        return self._read("pending", user, after=after)

    def subscriptions(self, user: str, *, after: str | Iterable[str] = ()) -> Frame:
        """Return the channels that a user subscribes to."""
        return self._read("subscriptions", user, after=after)

    def queries(self, user: str, *, after: str | Iterable[str] = ()) -> Frame:
        """Return a user's queries, newest first."""
        return self._read("queries", user, after=after)

    def channels(self, *, after: str | Iterable[str] = ()) -> Frame:
        """Return every channel with the number of its insights."""
        return self._read("channels", after=after)

    def seasons(self, *, after: str | Iterable[str] = ()) -> Frame:
        """Return all seasons."""
        return self._read("seasons", after=after)

    def table(self, season: str, *, after: str | Iterable[str] = ()) -> Frame:
        """Return the standings of a season."""
        return self._read("table", season, after=after)

    def schedule(self, season: str, *, after: str | Iterable[str] = ()) -> Frame:
        """Return the matches of a season."""
        return self._read("schedule", season, after=after)

    def results(self, season: str, *, after: str | Iterable[str] = ()) -> Frame:
        """Return the results of a season, latest first."""
        return self._read("results", season, after=after)

    def leaderboard(self, *, after: str | Iterable[str] = ()) -> Frame:
        """Return the users with the best predictions."""
        return self._read("leaderboard", after=after)

    def search(self, ns: str, words: str, *, limit: int = 10, after: str | Iterable[str] = (), **more: Any) -> Frame:
        """Return the best chunks of a namespace for a question; `more` are other parameters of `GET /api/chunks/search`."""
        return self._read("search", after=after, ns=ns, q=words, limit=limit, **more)

    def document(self, path: str, **parameters: Any) -> Any:
        """Return any other response of the API as JSON: `hw.document("/api/cache/verdict")`."""
        return self._get(path, _given(parameters), {}).json()

    def _read(self, name: str, *about: str, after: str | Iterable[str], **parameters: Any) -> Frame:
        """Return a read model as a table; the cached one while the API reports that it is unchanged."""
        model = READ_MODELS[name]
        path = model.path.format(*(quote(part, safe="") for part in about))
        asked = _given(parameters)
        question = f"{name} {path} {sorted(asked.items())}"
        positions = after if isinstance(after, str) else ",".join(after)
        kept = self._kept.get(question)
        headers = {"X-Min-Position": positions} if positions else {}
        answer = self._get(path, asked, headers | ({"If-None-Match": kept[0]} if kept is not None else {}))
        if kept is not None and answer.status_code == httpx2.codes.NOT_MODIFIED:
            self._kept.move_to_end(question)
            return kept[1]
        document = answer.json()
        rows, is_whole = list(model.rows(document)), document.get("next_cursor") is None
        while document.get("next_cursor") is not None:
            document = self._get(path, {**asked, "cursor": document["next_cursor"]}, headers).json()
            rows += model.rows(document)
        frame = _frame(model, rows, answer.headers)
        if is_whole and "etag" in answer.headers:  # the ETag of a paged list is that of its first page
            self._kept[question] = (answer.headers["etag"], frame)
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        return frame

    def _get(self, path: str, parameters: Mapping[str, Any], headers: dict[str, str]) -> httpx2.Response:
        """Return a 2xx or 304 answer; retries while the resource is being built or the position is not accounted for.

        Raises:
            RefusedError: the API refuses.
            UnavailableError: it is unavailable.
        """
        deadline = monotonic_seconds() + _PATIENCE_SECONDS
        while True:
            try:
                answer = self._client().get(path, params=dict(parameters), headers=headers)
            except httpx2.HTTPError as error:
                raise UnavailableError(
                    f"the API at {self._client().base_url} does not answer ({str(error) or type(error).__name__})"
                ) from error
            if answer.status_code in (httpx2.codes.OK, httpx2.codes.NOT_MODIFIED):
                return answer
            if "retry-after" not in answer.headers or monotonic_seconds() >= deadline:
                raise RefusedError(answer.status_code, _detail(answer))
            time.sleep(_pause_seconds(answer.headers["retry-after"]))

    def _client(self) -> httpx2.Client:
        if self._http is None:
            settings = self._settings()
            environment = {**environment_with_file(), **self._given}
            address = api_address(settings, environment)
            key = self._api_key or any_key(settings)
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            # trust_env off: a proxy of the environment cannot reach this machine's own ports.
            self._http = httpx2.Client(
                base_url=address,
                headers=headers,
                timeout=_REQUEST_SECONDS,
                trust_env=False,
                follow_redirects=False,
                verify=api_trust(settings, address),
            )
        return self._http

    def _settings(self, *needed: str) -> Settings:
        return stack_settings(*needed, given=self._given)


def _frame(model: ReadModel, rows: list[dict[str, Any]], headers: httpx2.Headers) -> Frame:
    version = headers.get("x-resource-version")
    return Frame(
        table_of(rows, model.schema),
        version=None if version is None else int(version),
        caused_by=headers.get("x-caused-by") or None,
    )


def _topic(name: str) -> Topic:
    topic = _TOPICS.get(name)
    if topic is None:
        raise NoTopicError(f"there is no topic {name!r}; `Client().topics()` lists the topics")
    return topic


def _given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _pause_seconds(text: str) -> float:
    """Return the seconds of `Retry-After`, at most half a second: most resources are built sooner."""
    return min(float(text), _PAUSE_SECONDS) if text.isascii() and text.isdigit() else _PAUSE_SECONDS


def _detail(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200] or answer.reason_phrase
