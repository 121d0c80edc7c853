"""Queries from the outside: sent over HTTP, processed by the whole product with a scripted chat service, with killed workers."""
# ruff: noqa: RUF001 - Russian

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from highwater.schemas.envelope import header
from highwater.streams.models.tokens import count_tokens
from highwater.streams.queries.states import MOVES, Status
from tests.integration.models.scripted_llm import ScriptedLLM, answer, limited, status
from tests.product import Product

STAGES = ("analyzer", "assembler", "responder", "archivist")
STAGE, REQUESTED, ARCHIVED, SUBMITTED = (
    "queries.pipeline-stage", "queries.stage-requested", "queries.run-archived", "queries.query-submitted",
)  # fmt: skip
WAY = ["NEW", "ANALYZING", "ANALYZED", "ASSEMBLING", "READY", "RESPONDING", "COMPLETED"]


@pytest.fixture
def asked(scripted: Product, llm: ScriptedLLM) -> Product:
    """The product, and a service that has forgotten earlier calls."""
    llm.clear()
    return scripted


def ask(product: Product, query: str = "What is new?", user: str | None = None) -> str:
    """Ask; the id of the run."""
    answered = product.http.post("/api/query", json={"user_id": user or str(uuid.uuid4()), "query": query})
    assert answered.status_code == 202, answered.text
    assert answered.json()["status"] == "processing"
    return str(answered.json()["request_id"])


def run_of(product: Product, run_id: str) -> dict[str, Any]:
    """The row of a run; empty before it is stored."""
    rows = product.sql("SELECT * FROM pipeline_runs WHERE id = $1", run_id)
    return dict(rows[0]) if rows else {}


def until(
    product: Product, run_id: str, wanted: str, archive: str | None = None, seconds: float = 60
) -> dict[str, Any]:
    """The row of a run once it stands there."""

    def look() -> dict[str, Any] | None:
        row = run_of(product, run_id)
        is_there = row.get("status") == wanted and archive in (None, row["archive_status"])
        return row if is_there else None

    found: dict[str, Any] = product.until(look, f"{run_id} is not {wanted}: {run_of(product, run_id)}", seconds)
    return found


def remembered(product: Product, *runs: str, seconds: float = 90) -> None:
    """Wait until runs are completed and archived."""

    def look() -> bool:
        rows = product.sql("SELECT count(*) FROM pipeline_runs WHERE id = ANY ($1) AND archive_status = 'STORED'", runs)
        return bool(rows[0][0] == len(runs))

    def where() -> list[tuple[Any, ...]]:
        rows = product.sql(
            "SELECT status, archive_status, worker, due_ms, error FROM pipeline_runs WHERE id = ANY ($1)", runs
        )
        return [tuple(row) for row in rows]

    try:
        product.until(look, "runs are not archived", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{where()}") from None


@contextlib.contextmanager
def locked(product: Product, statement: str, *arguments: Any) -> Iterator[None]:
    """A transaction of the test's own that holds what its statement locks."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(product.environment["DATABASE_URL"]))
    transaction = connection.transaction()
    loop.run_until_complete(transaction.start())
    try:
        loop.run_until_complete(connection.fetch(statement, *arguments))
        yield
    finally:
        loop.run_until_complete(transaction.rollback())
        loop.run_until_complete(connection.close())
        loop.close()


def at_each_stage(product: Product, llm: ScriptedLLM, stages: Sequence[str]) -> dict[str, str]:
    """Runs of different users, each with a call of another of these stages in progress: by stage."""
    runs = {}
    for stage in reversed(stages):  # the last stage first, else a run would be held by the script for another one
        held = llm.hold(stage)
        runs[stage] = ask(product, f"held in {stage}")
        assert held.reached.wait(30), f"no call of {stage}"
    return runs


def keys(runs: Sequence[str]) -> Counter[str]:
    """The keys of the calls of runs, each once."""
    return Counter(f"{run}/{stage}/1" for run in runs for stage in STAGES)


@pytest.mark.requirement("R1.1")
def test_a_query_is_answered_and_remembered(asked: Product, llm: ScriptedLLM):
    """202, then the answer; exactly four calls; the log has its events and the timeline shows them with positions."""
    run_id = ask(asked, "What is the answer?")
    remembered(asked, run_id)
    found = asked.get(f"/api/query/{run_id}/status").json()
    assert (found["status"], found["answer"]) == ("completed", run_of(asked, run_id)["final_answer"])
    assert [call.stage for call in llm.seen()] == list(STAGES)
    assert [event["status"] for event in way(asked, run_id)] == WAY

    def published() -> dict[str, Any] | None:
        timeline: dict[str, Any] = asked.get(f"/api/query/{run_id}/timeline").json()
        return timeline if len(timeline["events"]) == len(WAY) + 1 else None

    timeline = asked.until(published, "the timeline is not complete")
    assert [stage["stage"] for stage in timeline["stages"]] == list(STAGES)
    assert timeline["totals"]["calls"] == timeline["totals"]["sends"] == 4
    assert all(event["position"].startswith("queries.") for event in timeline["events"])
    for path in ("status", "timeline"):
        assert asked.own_token(f"/api/query/{run_id}/{path}").startswith("queries.")


def way(product: Product, run_id: str) -> list[dict[str, Any]]:
    """The events of a run in the log, without repeated publications."""
    codec = product.codec()
    found = {}
    for record in product.records(STAGE):
        event = codec.decode(STAGE, record.value())
        if event["id"] == run_id:
            found.setdefault(header(record.headers(), "ce_id"), event)
    return list(found.values())


@pytest.mark.requirement("R1.2", "R1.27")
def test_the_next_query_waits_for_the_memory(asked: Product, llm: ScriptedLLM):
    """Two at once, an Archivist of 6 s: the second begins when the row of the first one's memory is there (R1.2)."""
    user = str(uuid.uuid4())
    llm.script("archivist", answer(delay_seconds=6.0))
    first, second = ask(asked, "one", user), ask(asked, "two", user)
    asked.until(lambda: llm.seen("archivist"), "the Archivist of the first is not asked")
    other = ask(asked, "of somebody else")
    remembered(asked, other, seconds=20)
    assert run_of(asked, second)["status"] == "NEW"
    remembered(asked, first, second)
    stored, begun = asked.sql(
        "SELECT (SELECT created_at FROM lsm_storage WHERE pipeline_run_id = $1), "
        "(SELECT min(started_at) FROM llm_calls WHERE run_id = $2)", first, second,
    )[0]  # fmt: skip
    assert stored <= begun
    assert "one" in llm.seen("assembler")[-1].user


@contextlib.contextmanager
def everything_twice(product: Product, topics: Sequence[str]) -> Iterator[Counter[str]]:
    """Every record of these topics is put into the log a second time, right behind later ones."""
    copied: Counter[str] = Counter()
    stop = threading.Event()
    bootstrap = product.environment["KAFKA_BOOTSTRAP_SERVERS"]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "copier", "enable.auto.commit": False})
    ends = {topic: product.ends(topic) for topic in topics}
    consumer.assign([TopicPartition(topic, p, offset) for topic in topics for p, offset in ends[topic].items()])
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

    def copy() -> None:
        while not stop.is_set():
            record = consumer.poll(0.05)
            if record is None or record.error() or header(record.headers(), "copy"):
                continue
            headers = [*record.headers(), ("copy", b"1")]
            producer.produce(
                record.topic(), record.value(), record.key(), partition=record.partition(), headers=headers
            )
            producer.poll(0)
            copied[record.topic()] += 1
        producer.flush(10)
        consumer.close()

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        yield copied
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def second_worker(product: Product) -> Iterator[int]:
    """Another process that works on queries; its process id."""
    command = [str(Path(sys.executable).parent / "highwater"), "connect", "stages", "queries", "timeline"]
    with (product.data_dir / "second-worker.log").open("ab") as log:
        process = subprocess.Popen(command, env={**product.environment, "HIGHWATER_HEALTH_PORT": "0"}, stderr=log)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.requirement("R1.7")
def test_two_workers_and_every_event_twice(asked: Product, llm: ScriptedLLM):
    """Each stage's call is made exactly once, each run has one way and one memory."""
    users = [str(uuid.uuid4()) for _ in range(10)]
    topics = (SUBMITTED, STAGE, REQUESTED, ARCHIVED)
    with second_worker(asked), everything_twice(asked, topics) as copied:
        runs = [ask(asked, f"query {number}", user) for user in users for number in range(2)]
        remembered(asked, *runs)
        asked.until(lambda: copied[ARCHIVED] >= len(runs), "not everything was delivered twice")
    assert llm.by_key() == keys(runs)
    assert copied[SUBMITTED] >= len(runs)
    assert copied[REQUESTED] > 0  # events of each user's second run, which came while the first was running
    memories = asked.sql("SELECT count(*) FROM lsm_storage WHERE pipeline_run_id = ANY ($1)", runs)[0][0]
    lines = asked.sql("SELECT count(*) FROM raw_logs WHERE pipeline_run_id = ANY ($1)", runs)[0][0]
    assert (memories, lines) == (len(runs), 2 * len(runs))


def test_a_kill_before_the_call_of_each_stage(asked: Product, llm: ScriptedLLM):
    """Captured and not yet called: four runs, one in each stage; killed; each completes and no key comes twice."""
    behind = at_each_stage(asked, llm, STAGES[:3])
    with locked(
        asked, "LOCK TABLE system_prompts IN ACCESS EXCLUSIVE MODE"
    ):  # a stage reads its prompts before its call
        llm.release_all()
        first = ask(asked, "held before the analyzer")
        until(asked, first, "ANALYZING")
        until(asked, behind["analyzer"], "ASSEMBLING")
        until(asked, behind["assembler"], "RESPONDING")
        until(asked, behind["responder"], "COMPLETED", "ARCHIVING")
        os.kill(asked.role_pid("workers"), signal.SIGKILL)
    runs = [first, *behind.values()]
    remembered(asked, *runs)
    assert llm.by_key() == keys(runs)


def test_a_kill_during_the_call_of_each_stage(asked: Product, llm: ScriptedLLM):
    """Only the interrupted call is repeated, under the same key, and the cost includes it."""
    runs = at_each_stage(asked, llm, STAGES)
    os.kill(asked.role_pid("workers"), signal.SIGKILL)
    asked.until(lambda: len(llm.by_key()) >= 4 and set(repeated(llm)) == under_way(runs), "the calls are repeated")
    llm.release_all()
    remembered(asked, *runs.values())
    assert llm.by_key() == keys(list(runs.values())) + Counter(under_way(runs))
    sends = asked.sql("SELECT run_id::text || '/' || stage || '/' || attempt AS key FROM llm_calls WHERE sends = 2")
    assert {row["key"] for row in sends} >= under_way(runs)


def under_way(runs: dict[str, str]) -> set[str]:
    """The keys of calls that were held."""
    return {f"{run_id}/{stage}/1" for stage, run_id in runs.items()}


def repeated(llm: ScriptedLLM) -> list[str]:
    """Keys that came more than once."""
    return [key for key, count in llm.by_key().items() if count > 1]


def test_a_kill_after_the_call_of_each_stage(asked: Product, llm: ScriptedLLM):
    """The answer is stored without its consequences: the call is not repeated."""
    runs = at_each_stage(asked, llm, STAGES)
    ids = list(runs.values())
    with locked(asked, "SELECT FROM pipeline_runs WHERE id = ANY ($1) FOR UPDATE", ids):
        llm.release_all()
        asked.until(lambda: answered(asked, runs) == 4, "the answers are not stored")
        os.kill(asked.role_pid("workers"), signal.SIGKILL)
    remembered(asked, *ids)
    assert llm.by_key() == keys(ids)
    assert asked.sql("SELECT max(sends) FROM llm_calls WHERE run_id = ANY ($1)", ids)[0][0] == 1


def answered(product: Product, runs: dict[str, str]) -> int:
    """How many of the held calls have their answer stored."""
    wanted = [f"{run_id}/{stage}" for stage, run_id in runs.items()]
    statement = "SELECT count(*) FROM llm_calls WHERE run_id::text || '/' || stage = ANY ($1) AND outcome = 'answered'"
    return int(product.sql(statement, wanted)[0][0])


@pytest.mark.requirement("R1.32")
def test_two_timeouts_then_an_answer(asked: Product, llm: ScriptedLLM):
    """Three calls with 2 s and 4 s between them by the product's clock (R1.32)."""
    llm.script("responder", status(504), status(504))
    run_id = ask(asked)
    remembered(asked, run_id)
    calls = asked.sql("SELECT * FROM llm_calls WHERE run_id = $1 AND stage = 'responder' ORDER BY attempt", run_id)
    assert [call["outcome"] for call in calls] == ["timeout", "timeout", "answered"]
    waits = [(after["started_at"] - before["ended_at"]).total_seconds() for before, after in itertools.pairwise(calls)]
    for wait, wanted in zip(waits, (2, 4), strict=True):
        assert wanted <= wait < wanted + 1.9  # the next wait in line would be twice as long


@pytest.mark.requirement("R1.33")
def test_a_rate_limit_is_waited_for_by_the_product_clock(asked: Product, llm: ScriptedLLM):
    """A minute, of which a rehearsal waits a moment: no call before, one when the clock file says so (R1.33)."""
    llm.script("analyzer", limited(1))
    run_id = ask(asked)
    asked.until(lambda: run_of(asked, run_id).get("due_ms"), "it does not wait")
    asked.move_clock(55)
    llm.script("responder", status(504))
    remembered(asked, ask(asked, "waits for 2 s, so whoever watches has looked since"))
    assert [call.key for call in llm.seen("analyzer") if run_id in str(call.key)] == [f"{run_id}/analyzer/1"]
    asked.move_clock(7)
    remembered(asked, run_id)
    own = [call.key for call in llm.seen("analyzer") if run_id in str(call.key)]
    assert own == [f"{run_id}/analyzer/1", f"{run_id}/analyzer/2"]


RUSSIAN = {
    "Лимит на размер документа равен десяти мегабайтам.": "Чему равен лимит на размер документа?",
    "Резервная копия базы создаётся каждые шесть часов.": "Как часто создаётся резервная копия базы?",
    "Сертификаты обновляются за тридцать дней до окончания срока.": "За сколько дней до срока надо обновить сертификаты?",
    "Журнал хранится семь дней, затем удаляется.": "Сколько дней хранится журнал событий на диске?",
}


def test_questions_in_a_language_that_the_model_does_not_read_are_answered_by_words(asked: Product):
    """Four questions in Russian find the sentence that answers them, and one that nothing answers finds none of them."""
    channel = f"ru-{uuid.uuid4().hex[:8]}"
    asked.publish(
        "feeds.insight-ingested",
        [
            {"insight_id": f"{channel}-{number}", "channel_id": channel, "ts": 1_764_400_000_000 + number, "text": text}
            for number, text in enumerate(RUSSIAN)
        ],
    )
    stored = "SELECT count(*) FROM insights WHERE channel_id = $1"
    asked.until(lambda: asked.sql(stored, channel)[0][0] == len(RUSSIAN), "the sentences are not stored")
    runs = [ask(asked, question) for question in (*RUSSIAN.values(), "Кто выиграл чемпионат мира по футболу?")]
    remembered(asked, *runs)
    found = [[one["insight_id"] for one in orjson.loads(run_of(asked, run_id)["sources"])] for run_id in runs]
    assert [ids[:1] for ids in found[:-1]] == [[f"{channel}-{number}"] for number in range(len(RUSSIAN))]
    assert not [insight_id for insight_id in found[-1] if insight_id.startswith(channel)]


@pytest.mark.requirement("R1.22", "R1.23")
def test_oversized_input_ends_within_its_tokens(asked: Product, llm: ScriptedLLM):
    """The longest query, long answers before, an Assembler without measure: 8,000 tokens, the query whole (R1.22, R1.23)."""
    user = str(uuid.uuid4())
    llm.answers["responder"] = lambda _call: "a long answer about nothing in particular " * 3_000
    llm.answers["assembler"] = lambda call: f"<context>{call.user}</context>" + "more and more of it " * 20_000
    try:
        former = [ask(asked, f"short {number}", user) for number in range(3)]
        words = [f"word{number}" for number in range(10_000)]
        most = next(n for n in range(len(words), 0, -50) if count_tokens(" ".join(words[:n])) <= 4_000)
        query = " ".join(words[:most])
        run_id = ask(asked, query, user)
        remembered(asked, *former, run_id)
    finally:
        for stage in ("responder", "assembler"):
            del llm.answers[stage]
        llm.answers.update(ScriptedLLM().answers)
    payload = run_of(asked, run_id)["final_context_payload"]
    assert query in payload
    assert 7_000 < count_tokens(payload) <= 8_000


def test_cancelled_and_begun_again(asked: Product, llm: ScriptedLLM):
    """A cancelled run fails and lets the next one begin; begun again from a stage it takes over what it had."""
    user = str(uuid.uuid4())
    held = llm.hold("responder")
    first, second = ask(asked, "one", user), ask(asked, "two", user)
    assert held.reached.wait(30)
    assert asked.http.post(f"/api/query/{first}/cancel").status_code == 202
    row = until(asked, first, "FAILED")
    llm.release_all()
    remembered(asked, second)
    assert asked.get(f"/api/query/{first}/status").json()["error"] == row["error"]
    llm.clear()
    again = asked.http.post(f"/api/query/{first}/restart", json={"stage": "responder"})
    assert again.status_code == 202, again.text
    remembered(asked, again.json()["request_id"])
    assert llm.by_stage() == {"responder": 1, "archivist": 1}
    assert run_of(asked, first)["status"] == "FAILED"


@pytest.mark.requirement("R1.15", "R1.37")
def test_every_role_killed_on_the_way(asked: Product, llm: ScriptedLLM):
    """With any process killed at any time: every run completes by legal moves, no change of status without its event nor the
    reverse.
    """
    llm.always(None, answer(delay_seconds=0.1))
    users = [str(uuid.uuid4()) for _ in range(15)]
    runs = [ask(asked, f"query {number}", user) for number in range(4) for user in users]
    for role in ("workers", "worker", "sinks", "materializers", "workers"):
        done = asked.sql("SELECT count(*) FROM pipeline_runs WHERE id = ANY ($1) AND released", runs)[0][0]
        asked.kill(role)
        goal = min(done + 5, len(runs))
        asked.until(lambda n=goal: released(asked, runs) >= n, "nothing goes on")
    remembered(asked, *runs, seconds=180)
    codec = asked.codec()
    told: dict[str, dict[str, Any]] = defaultdict(dict)
    for record in asked.records(STAGE):
        event = codec.decode(STAGE, record.value())
        told[event["id"]].setdefault(header(record.headers(), "ce_id"), event)
    revisions = {str(row["id"]): row["revision"] for row in asked.sql("SELECT id, revision FROM pipeline_runs")}
    for run_id in runs:
        events = list(told[run_id].values())
        assert [event["revision"] for event in events] == list(range(1, revisions[run_id] + 1))
        for before, after in itertools.pairwise(events):
            assert Status(after["status"]) in {to for (at, _), to in MOVES.items() if at == before["status"]}
        assert (events[0]["status"], events[-1]["status"]) == ("NEW", "COMPLETED")
    sends = asked.sql(
        "SELECT run_id::text || '/' || stage || '/' || attempt AS key, sends FROM llm_calls WHERE run_id = ANY ($1)",
        runs,
    )
    assert llm.by_key().keys() == {row["key"] for row in sends}
    assert all(llm.by_key()[row["key"]] <= row["sends"] for row in sends)


def released(product: Product, runs: Sequence[str]) -> int:
    """How many of these runs have ended."""
    return int(product.sql("SELECT count(*) FROM pipeline_runs WHERE id = ANY ($1) AND released", runs)[0][0])


@pytest.mark.requirement("R1.31")
def test_postgresql_away_changes_no_status(asked: Product, llm: ScriptedLLM):
    """Stopped during calls and started again: the runs continue where they were (R1.31)."""
    held = llm.hold("assembler")
    run_id = ask(asked)
    assert held.reached.wait(30)
    asked.parts.stop_part("database")
    llm.release_all()
    log = asked.data_dir / "logs" / "workers.log"
    asked.until(lambda: "group_waits" in log.read_text(encoding="utf-8"), "the answer finds nowhere to be stored")
    asked.parts.start_part("database")
    remembered(asked, run_id)
    assert run_of(asked, run_id)["returns"] <= 1
    assert set(llm.by_key()) == set(keys([run_id]))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"user_id": "a\nb", "query": "x"}, 422),
        ({"user_id": "4d1c1f0a-9b1e-4f5e-8c3d-2a7b6c5d4e33", "query": " \n"}, 422),
        ({"user_id": "4d1c1f0a-9b1e-4f5e-8c3d-2a7b6c5d4e33", "query": "x" * 1_000_000}, 422),
        ({"user_id": "4d1c1f0a-9b1e-4f5e-8c3d-2a7b6c5d4e33"}, 422),
        ([], 422),
    ],
)
def test_what_is_no_query_is_refused(asked: Product, body: Any, wanted: int):
    """With a problem that names the field; nothing reaches the log."""
    before = asked.ends(SUBMITTED)
    refused = asked.http.post("/api/query", json=body)
    assert (refused.status_code, refused.headers["content-type"]) == (wanted, "application/problem+json")
    assert asked.ends(SUBMITTED) == before


def test_unknown_runs(asked: Product):
    """404 for one that was never asked, 422 for what names none."""
    assert asked.get(f"/api/query/{uuid.uuid4()}/status").status_code == 404
    assert asked.get("/api/query/nonsense/status").status_code == 422
