"""A backup, more work, and the database lost: payments, charges, messages, announcements and erasures since then
survive a restore.

On a separate product: its database is dropped, and "nothing differs" holds only if no other test wrote rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import subprocess
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Self

import asyncpg
import httpx2
import pytest

from highwater.api.cli.backup import run_restore
from highwater.api.cli.verify import run_verification
from highwater.connectors.backup.catching_up import Restored
from highwater.connectors.backup.manifest import BackupError, read_manifest, write_manifest
from highwater.connectors.verify.run import PARTS
from highwater.deploy.local.stack import Addresses, LocalStack
from highwater.schemas.envelope import header
from highwater.schemas.topics import TOPICS
from highwater.streams.settings import read_settings
from tests.integration.models.scripted_llm import ScriptedLLM, answer, status
from tests.product import Product

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
CHANNELS = ("north", "south")
STAYS, LEAVES = "reader-stays", "reader-leaves"
BUMPED, USAGE = "cache.version-bumped", "jobs.usage-recorded"
_SECONDS_MAX = 180


class Hook:
    """A webhook that counts its messages."""

    def __init__(self) -> None:
        told = self.told = Counter[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                told[self.headers["idempotency-key"]] += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    """Where alerts go."""
    with contextlib.closing(Hook()) as made:
        yield made


@pytest.fixture(scope="module")
def own(
    shared_registry: Addresses, tmp_path_factory: pytest.TempPathFactory, llm: ScriptedLLM, hook: Hook
) -> Iterator[Product]:
    """A product whose model and alerts are counted."""
    folder: Path = tmp_path_factory.mktemp("backup")
    llm.clear()
    llm.always(None, answer(usage={"prompt_tokens": 0, "completion_tokens": 2, "total_tokens": 2}))
    with contextlib.ExitStack() as running:
        local = running.enter_context(LocalStack(folder / "parts", shared_registry))
        product = Product(folder / "data", local)
        product.environment.update(
            LLM_BASE_URL=llm.url,
            LLM_API_KEY="key",
            LLM_MODEL="m",
            HIGHWATER_LLM_PRICES="m=0/72500",
            HIGHWATER_LLM_TIMEOUT_SECONDS="60",
            HIGHWATER_ALERT_WEBHOOK_URL=hook.url,
        )
        yield running.enter_context(product)


def publish_work(own: Product, part: int) -> None:
    """Insights, a match with its result and votes, and a source of chunks."""
    subjects = ("consumer group rebalance", "broker quota throttle", "schema registry cache")
    own.publish(
        "feeds.insight-ingested",
        [
            {
                "insight_id": f"i-{part}-{number}", "channel_id": CHANNELS[number % 2], "ts": "2026-11-01T12:00:00Z",
                "text": f"{subjects[number % 3]} changed in part {number // 7}",
            }
            for number in range(120)
        ],
    )  # fmt: skip
    match = {"match_id": f"m-{part}", "season": "2026"}
    scheduled = {"round": "1", "kickoff": "2026-11-01T12:00:00Z", "home": "A", "away": "B"}
    own.publish("league.match-scheduled", [{**match, **scheduled, "time_unknown": False, "status": "scheduled"}])
    result = {"home_goals": part, "away_goals": 0, "finalized_at": "2026-11-01T14:00:00Z"}
    own.publish("league.match-finalized", [{**match, **result}])
    votes = [
        {"match_id": f"m-{part}", "user_id": user, "choice": "home", "ts": "2026-11-01T11:00:00Z"}
        for user in (STAYS, LEAVES)
    ]
    own.publish("league.vote-cast", votes)
    source = {"ingest_id": f"in-{part}", "ns": "docs", "slot": "a", "source_id": "guide"}
    own.publish(
        "chunks.chunk-submitted",
        [{**source, "chunk_no": number, "content": f"chunk {number} of {part}"} for number in range(5)],
    )
    end = {"full": True, "expected_count": 5, "truncated": False, "ts": "2026-11-01T12:00:00Z"}
    own.publish("chunks.ingest-finished", [{**source, **end}])


def ask(own: Product, org: str, query: str = "What is new?") -> str:
    """Ask; the id of the run."""
    body = {"user_id": str(uuid.uuid4()), "query": query, "organization_id": org}
    answered = own.http.post("/api/query", json=body)
    assert answered.status_code == 202, answered.text
    return str(answered.json()["request_id"])


def make_deck(own: Product, org: str) -> str:
    """Have a deck made."""
    args = {"query": f"What is new in {uuid.uuid4().hex}?", "slides": 1, "source_document_ids": []}
    body = {"kind": "generation", "organization_id": org, "user_id": "ada", "args": args}
    answered = own.http.post("/api/jobs", json=body)
    assert answered.status_code == 202, answered.text
    return str(answered.json()["job_id"])


def one(own: Product, statement: str, *arguments: Any) -> Any:
    """The value of a statement."""
    rows = own.sql(statement, *arguments)
    return rows[0][0] if rows else None


def at_rest(own: Product, part: int, runs: int, jobs: int) -> bool:
    """Whether everything of the parts up to this one was dealt with and published."""
    return (
        one(own, "SELECT coalesce(sum(current_seq), 0) FROM channels") == 120 * part
        and one(
            own,
            "SELECT bool_and(h.last_seq = c.current_seq AND u.in_flight IS NULL) FROM user_cluster_hwm AS h "
            "JOIN channels AS c USING (channel_id) JOIN user_stats AS u USING (user_id)",
        )
        and one(own, "SELECT count(*) FROM pipeline_runs WHERE archive_status = 'STORED' OR status = 'FAILED'") == runs
        and one(own, "SELECT count(*) FROM jobs WHERE status = 'completed'") == jobs
        and one(own, "SELECT count(*) FROM chunk_ingests WHERE status = 'complete'") >= 1
        and one(own, "SELECT count(*) FROM league_matches WHERE result_ms IS NOT NULL") == part
        and one(own, "SELECT count(*) FROM outbox") == 0
    )


def settle(own: Product, part: int, *, runs: int, jobs: int) -> None:
    """Wait for it."""
    own.until(lambda: at_rest(own, part, runs, jobs), f"part {part} was not dealt with", _SECONDS_MAX)


def stop(own: Product) -> None:
    """Stop every role; the services keep running."""
    own.cli("down")


def start(own: Product) -> None:
    """Start every role."""
    own.cli("up", "--detach", "--no-sample", timeout_seconds=240)
    own.until_ready()


def drop_database(own: Product) -> None:
    """The database is lost, and an empty one stands in its place."""

    async def replace() -> None:
        url = own.environment["DATABASE_URL"]
        name = url.rsplit("/", 1)[1].split("?")[0]
        connection = await asyncpg.connect(url, database="postgres")
        try:
            await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
            await connection.execute(f'CREATE DATABASE "{name}"')
        finally:
            await connection.close()

    asyncio.run(replace())


def differences(own: Product, *parts: str) -> list[Any]:
    """The differences that a verification finds."""
    report = asyncio.run(run_verification(read_settings(own.environment), parts or PARTS, is_quiet=True))
    return [(checked.name, found.as_json()) for checked, found in report.listed()]


def repeated(own: Product) -> list[Any]:
    """Versions, tags and ids of events that the log has twice with other content."""
    codec = own.codec()
    seen: dict[Any, Any] = {}
    found = []

    def note(what: Any, content: Any) -> None:
        if seen.setdefault(what, content) != content:
            found.append((what, seen[what], content))

    for record in own.records(BUMPED):
        event = codec.decode(BUMPED, record.value())
        note((event["key"], event["version"]), event["etag"])
        note((event["key"], event["etag"]), event["version"])
    for record in own.records(USAGE):
        event = codec.decode(USAGE, record.value())
        note((event["organization_id"], event["period"], event["seq"]), event)
    for record in own.records("feeds.clusters-rebuilt"):
        event = codec.decode("feeds.clusters-rebuilt", record.value())
        note((event["user_id"], event["cluster_version"]), event)
    for topic in TOPICS.values():
        if "outbox" in topic.producers:
            for record in own.records(topic.name):
                event_id = header(record.headers(), "ce_id") or ""
                if event_id.startswith("outbox-"):
                    note(event_id, (record.topic(), record.key(), record.value()))
    return found


@pytest.fixture(scope="module")
def lost(own: Product, llm: ScriptedLLM, hook: Hook, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Work, a backup, more work; then the roles are stopped. Returns the state of that time."""
    folder = tmp_path_factory.mktemp("kept") / "backup"
    org = f"org-{uuid.uuid4().hex[:8]}"
    own.http.put(f"/api/organizations/{org}/plan", json={"plan": "enterprise"})
    for user in (STAYS, LEAVES):
        own.subscribe(user, CHANNELS)
    publish_work(own, 1)
    first = ask(own, org)
    make_deck(own, org)
    settle(own, 1, runs=1, jobs=1)
    own.cli("backup", str(folder))

    publish_work(own, 2)
    second = ask(own, org)
    make_deck(own, org)
    # Else the answer that fails may be given to this run.
    own.until(
        lambda: one(own, "SELECT status FROM pipeline_runs WHERE id = $1", second) == "COMPLETED",
        "not answered",
        _SECONDS_MAX,
    )
    llm.script("analyzer", status(400))
    failed = ask(own, org, "What fails?")
    own.until(lambda: sum(hook.told.values()) == 1, "nobody was told of the failure", _SECONDS_MAX)
    settle(own, 2, runs=3, jobs=2)
    assert own.http.request("DELETE", f"/api/users/{LEAVES}/data").status_code == 202
    own.until(lambda: not one(own, "SELECT 1 FROM user_stats WHERE user_id = $1", LEAVES), "not erased", _SECONDS_MAX)
    held = llm.hold("analyzer")
    begun = ask(own, org, "What is cut off?")
    assert held.reached.wait(60)
    own.until(lambda: one(own, "SELECT count(*) FROM outbox") == 0, "the outbox is not empty", _SECONDS_MAX)
    usage = own.get(f"/api/organizations/{org}/usage").json()
    stop(own)
    held.release.set()
    return {
        "folder": folder, "org": org, "runs": (first, second, failed), "begun": begun, "usage": usage,
        "paid": Counter(llm.by_key()), "told": Counter(hook.told),
    }  # fmt: skip


def restored(own: Product, folder: Path | None, *, is_forced: bool = False) -> Restored:
    """The result of `highwater restore`, in this process: a command takes seconds of the processor to start."""
    settings = read_settings(own.environment)
    return asyncio.run(run_restore(settings, folder, lambda _step: None, is_forced=is_forced, seconds=300))


def refused(own: Product, folder: Path | None, *, is_forced: bool = False) -> str:
    """Why a restore is refused."""
    with pytest.raises(BackupError) as refusal:
        restored(own, folder, is_forced=is_forced)
    return str(refusal.value)


def check_rows(own: Product, lost: dict[str, Any]) -> None:
    """Checks before any role runs: no process could have repeated a decision of the log."""
    assert one(own, "SELECT count(*) FROM user_stats WHERE user_id = $1", LEAVES) == 0
    assert one(own, "SELECT count(*) FROM league_votes WHERE user_id = $1", LEAVES) == 0
    runs = {str(row[0]): row[1] for row in own.sql("SELECT id, status FROM pipeline_runs")}
    assert [runs[run] for run in (*lost["runs"], lost["begun"])] == ["COMPLETED", "COMPLETED", "FAILED", "FAILED"]
    assert {row[0] for row in own.sql("SELECT status FROM jobs")} == {"completed"}
    codec = own.codec()
    charged = [codec.decode(USAGE, record.value()) for record in own.records(USAGE)]
    assert one(own, "SELECT count(*) FROM usage_entries") == len(charged) == 4
    assert one(own, "SELECT last_seq FROM usage_sequences") == 4
    sent = {row[0].replace("/", ".") for row in own.sql("SELECT position FROM alerts_sent")}
    assert sent >= set(lost["told"])
    announced: dict[str, Any] = {}
    for record in own.records(BUMPED):
        event = codec.decode(BUMPED, record.value())
        announced[event["key"]] = max(announced.get(event["key"], (0, "")), (event["version"], event["etag"]))
    held = {row[0]: (row[1], row[2]) for row in own.sql("SELECT key, version, etag FROM resource_versions")}
    floor = one(own, "SELECT value FROM version_floor")
    for key, last in announced.items():
        assert (held[key] == last or held[key][0] > last[0]) if key in held else floor >= last[0], key
    ids = [
        header(r.headers(), "ce_id") or ""
        for t in TOPICS.values()
        if "outbox" in t.producers
        for r in own.records(t.name)
    ]
    published = max(int(one.removeprefix("outbox-")) for one in ids if one.startswith("outbox-"))
    waiting = [row[0] for row in own.sql("SELECT id FROM outbox")]
    assert min(waiting, default=published + 1) > published


def test_a_restore_that_cannot_be_is_refused(own: Product, lost: dict[str, Any], tmp_path: Path) -> None:
    """One clear error each, and nothing is changed: a database with rows, one in use, a damaged file, a log that is behind."""
    assert "the database is not empty; --force replaces" in refused(own, lost["folder"])

    async def while_used() -> str:
        connection = await asyncpg.connect(own.environment["DATABASE_URL"])
        try:
            return await asyncio.to_thread(refused, own, lost["folder"], is_forced=True)
        finally:
            await connection.close()

    assert "the database is in use (1 of an unnamed program connected): stop every role" in asyncio.run(while_used())

    damaged = tmp_path / "damaged"
    shutil.copytree(lost["folder"], damaged)
    path = damaged / "insights.copy.gz"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert refused(own, damaged, is_forced=True).endswith(
        "insights.copy.gz is damaged: its content does not match the manifest"
    )

    manifest = read_manifest(lost["folder"])
    ahead = tmp_path / "ahead"
    shutil.copytree(lost["folder"], ahead)
    manifest["positions"]["users"]["feeds.user-active"]["0"] = 1_000
    write_manifest(ahead, manifest)
    assert "the backup does not fit this log: group users had read up to 1000, the log ends at" in refused(
        own, ahead, is_forced=True
    )
    assert one(own, "SELECT count(*) FROM pipeline_runs") == 4


def test_the_log_alone_gives_the_read_models(own: Product, lost: dict[str, Any], llm: ScriptedLLM) -> None:
    """Without a backup; answers of a model are lost, and are not paid for again.

    `HIGHWATER_RESTORES=1` has the roles run on it as well, which takes another minute.
    """
    drop_database(own)
    found = restored(own, None)
    assert (found.taken_at, found.counts["runs"], found.counts["charges"]) == (None, 4, 4)
    check_rows(own, lost)
    # Plans are read along, to judge by; their own sink has not run yet.
    assert [name for name, _ in differences(own, "models") if name != "organizations"] == []
    if os.environ.get("HIGHWATER_RESTORES"):
        start(own)
        settle(own, 2, runs=4, jobs=2)
        assert differences(own) == []
        assert repeated(own) == []
        assert Counter(llm.by_key()) == lost["paid"]
        stop(own)


def test_a_lost_database_is_restored_beside_the_log(
    own: Product, lost: dict[str, Any], llm: ScriptedLLM, hook: Hook
) -> None:
    """Nothing is paid, charged or sent twice, no version, tag, id or number names two things, the erased stay erased."""
    drop_database(own)
    assert "rows of a backup of" in own.cli("restore", str(lost["folder"])).stdout
    check_rows(own, lost)
    start(own)
    settle(own, 2, runs=4, jobs=2)
    assert differences(own) == []
    assert repeated(own) == []
    assert Counter(llm.by_key()) == lost["paid"]
    # While the database is busy, the copy in Redis answers, which says so (`source`).
    found = own.get(f"/api/organizations/{lost['org']}/usage").json()
    assert found | {"source": "postgresql"} == lost["usage"]
    first, second, _ = lost["runs"]
    answers = {str(row[0]): row[1] for row in own.sql("SELECT id, final_answer FROM pipeline_runs")}
    assert (answers[first] is not None, answers[second]) == (True, None)
    # The interrupted run has failed, and that was published once.
    own.until(lambda: sum(hook.told.values()) == 2, f"told: {hook.told}", _SECONDS_MAX)
    assert set(hook.told.values()) == {1}


class Reader:
    """A client that polls pages, and notes each answer's version, tag and content."""

    def __init__(self, own: Product, paths: Sequence[str]) -> None:
        self._own = own
        self._paths = paths
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="reader")
        self.seen: dict[tuple[str, int], set[tuple[str, str]]] = {}
        self.last: dict[str, int] = {}
        self.statuses = Counter[Any]()
        self.wrong: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._is_over.is_set():
            for path in self._paths:
                self._note(path, self._own.get(path))
            self._is_over.wait(0.05)

    def _note(self, path: str, answered: httpx2.Response) -> None:
        self.statuses[path, answered.status_code, answered.headers.get("x-stale")] += 1
        if answered.status_code != 200:
            return
        version = int(answered.headers["x-resource-version"])
        self.seen.setdefault((path, version), set()).add(
            (answered.headers["etag"], hashlib.sha256(answered.content).hexdigest())
        )
        if "x-stale" in answered.headers:
            return
        if version < self.last.get(path, 0):
            self.wrong.append(f"{path}: {version} after {self.last[path]}")
        self.last[path] = max(version, self.last.get(path, 0))

    def problems(self) -> list[Any]:
        """Versions that stood for two contents, and those that were followed by an older one."""
        return [(what, found) for what, found in self.seen.items() if len(found) > 1] + self.wrong


def swap_database(own: Product, other: Path) -> None:
    """Kill PostgreSQL, and start it on a copy of its folder from before."""
    own.parts.kill_part("database")
    folder = own.parts.part("database").folder
    folder.rename(folder.with_suffix(".newer"))
    other.rename(folder)
    own.parts.start_part("database")


def copy_database(own: Product, folder: Path) -> None:
    """Copy the folder of PostgreSQL while it is stopped."""
    own.parts.stop_part("database")
    subprocess.run(["cp", "-a", str(own.parts.part("database").folder), str(folder)], check=True)
    own.parts.start_part("database")
    own.until_ready()


def test_a_database_that_went_back_catches_up_before_anybody_reads(own: Product, llm: ScriptedLLM) -> None:
    """A copy of its folder is put in its place while the log and Redis are newer, and no role is stopped: what was published
    is not paid, charged or numbered again, and no reader sees an older version or another content of one.
    """
    older = own.parts.part("database").folder.with_suffix(".older")
    runs, jobs = one(own, "SELECT count(*) FROM pipeline_runs"), one(own, "SELECT count(*) FROM jobs")
    copy_database(own, older)
    pages = ("/api/league/2026/table", f"/api/users/{STAYS}/clusters")
    with Reader(own, pages) as reader:
        publish_work(own, 3)
        ask(own, "org-went-back")
        settle(own, 3, runs=runs + 1, jobs=jobs)
        own.until(lambda: all(path in reader.last for path in pages), f"not every page is read: {reader.statuses}")
        before = dict(reader.last)
        paid = Counter(llm.by_key())
        swap_database(own, older)
        own.until_ready()
        settle(own, 3, runs=runs + 1, jobs=jobs)
        publish_work(own, 4)
        settle(own, 4, runs=runs + 1, jobs=jobs)
        own.until(lambda: all(reader.last[path] > before[path] for path in pages), "no newer page is read")
    assert reader.problems() == []
    assert repeated(own) == []
    assert differences(own) == []
    assert Counter(llm.by_key()) == paid
