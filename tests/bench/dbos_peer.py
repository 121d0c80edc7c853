"""The peer of `bench pipeline`: the five steps of a run as a workflow of DBOS (MIT), one process that follows commands on stdin.

Invariant: DBOS is configured as its documentation says, and for an open choice by the faster one. Steps are threads: its
async API still hands every call of its database to a thread. Runs are started in this process (no queue, so no polling) or
from a queue, polled every 10 ms instead of every second. The text work is ours, call by call; unlike ours it reads nothing of
the user and keeps prompts in memory. It runs where `dbos` is installed and needs orjson beside it.
"""

import json
import os
import re
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sqlalchemy
from dbos import DBOS

from highwater.schemas.envelope import iso_from_ms
from highwater.streams.clock import ProductClock, monotonic_seconds, to_datetime
from highwater.streams.models.answers import clean_text
from highwater.streams.models.tokens import count_tokens
from highwater.streams.queries.analysis import parse_analysis
from highwater.streams.queries.context import analyzer_input, draft_context, final_payload
from highwater.streams.queries.local_model import local_answer
from highwater.streams.queries.memory import archivist_input, parse_summary
from highwater.streams.queries.states import Stage
from tests import ROOT

MIGRATION = ROOT / "connectors" / "postgres" / "migrations" / "0008_queries.sql"
QUEUE = "queries"
# Runs at once in a process, and threads that submit; more than cores and connections gain nothing.
THREADS = 32
# 20 is its default; one for each run at once, so that none waits for a connection.
POOL = THREADS
POLLING_SECONDS = 0.01
RUN_SECONDS_MAX = 120.0

CLOCK = ProductClock()


def prompts() -> dict[str, str]:
    """The prompts that the product begins with."""
    found = re.findall(r"\('(\w+)', \$prompt\$(.*?)\$prompt\$", MIGRATION.read_text(encoding="utf-8"), re.DOTALL)
    return dict(found)


PROMPTS = prompts()
ENGINE = sqlalchemy.create_engine(os.environ["PEER_DATABASE"], pool_size=POOL, max_overflow=0)
_INTAKE = (
    "INSERT INTO pipeline_runs (id, user_id, ordinal, user_query, status, arrived_ms, position, caused_by, created_at, "
    "updated_at) VALUES (%s, %s, 1, %s, 'NEW', %s, '', '', %s, %s) ON CONFLICT DO NOTHING"
)
_ARCHIVE = (
    "INSERT INTO lsm_storage (user_id, time_bucket_start, time_bucket_end, tags, summary, raw_log_ids, pipeline_run_id, ordinal, "
    "created_at) VALUES (%s, %s, %s, %s, %s, '{}', %s, 1, %s) ON CONFLICT DO NOTHING"
)


def _store(statement: str, *values: Any) -> None:
    with ENGINE.begin() as connection:
        connection.exec_driver_sql(statement, values)


def _asked(stage: Stage, system: str, user: str) -> str:
    """As `LocalChat.complete`: the answer of the built-in model, and its tokens counted."""
    text = clean_text(local_answer(stage, system, user))
    _ = count_tokens(system) + count_tokens(user), count_tokens(text)
    return text


@DBOS.step()
def intake(run_id: str, user_id: str, query: str) -> None:
    """The row of the run."""
    now_ms = CLOCK()
    at = to_datetime(now_ms)
    _store(_INTAKE, run_id, user_id, query, now_ms, at, at)


@DBOS.step()
def analyze(query: str) -> dict[str, Any]:
    """The Analyzer."""
    return parse_analysis(_asked(Stage.ANALYZER, PROMPTS["Analyzer"], analyzer_input(query, [])))


@DBOS.step()
def assemble(query: str, analysis: dict[str, Any]) -> str:
    """The Assembler."""
    draft = draft_context(query, [], analysis, [], [], PROMPTS["Mentor"])
    return final_payload(query, _asked(Stage.ASSEMBLER, PROMPTS["Assembler"], draft))


@DBOS.step()
def respond(payload: str) -> str:
    """The Responder."""
    return _asked(Stage.RESPONDER, PROMPTS["Mentor"], payload)


@DBOS.step()
def archive(run_id: str, user_id: str, query: str, answer: str) -> None:
    """The Archivist, and the row of the memory."""
    now_ms = CLOCK()
    said = archivist_input(query, answer, iso_from_ms(now_ms))
    summary = parse_summary(_asked(Stage.ARCHIVIST, PROMPTS["Archivist"], said))
    at = to_datetime(now_ms)
    _store(_ARCHIVE, user_id, at.date(), at.date(), list(summary.tags), summary.text, run_id, at)


class Told:
    """When the runs of this process were completed (step four is recorded) and archived, in ms since 1970."""

    def __init__(self) -> None:
        self.completed: list[int] = []
        self.archived: list[int] = []
        self.waiting: dict[str, threading.Event] = {}

    def take(self) -> dict[str, list[int]]:
        """The records since the last call."""
        taken = {"completed": self.completed, "archived": self.archived}
        self.completed, self.archived = [], []
        return taken


TOLD = Told()


@DBOS.workflow()
def answered(run_id: str, user_id: str, query: str) -> None:
    """A run from intake to memory."""
    intake(run_id, user_id, query)
    analysis = analyze(query)
    respond_to = assemble(query, analysis)
    answer = respond(respond_to)
    TOLD.completed.append(CLOCK())
    waiting = TOLD.waiting.pop(run_id, None)
    if waiting is not None:
        waiting.set()
    archive(run_id, user_id, query, answer)
    TOLD.archived.append(CLOCK())


def _direct(*run: str) -> None:
    DBOS.start_workflow(answered, *run)


def _queued(*run: str) -> None:
    DBOS.enqueue_workflow(QUEUE, answered, *run)


def _submitter(command: dict[str, Any]) -> Callable[..., None]:
    return _queued if command["is_queued"] else _direct


def loop(command: dict[str, Any]) -> dict[str, Any]:
    """A closed loop: as many runs in flight as asked for, the next when one is completed; latencies in ms."""
    submit, queries = _submitter(command), iter(command["queries"])
    deadline = monotonic_seconds() + command["seconds_max"]
    lock, latencies = threading.Lock(), []

    def one_after_another() -> None:
        while monotonic_seconds() < deadline:
            with lock:
                query = next(queries, None)
            if query is None:
                return
            run_id, done = str(uuid.uuid4()), threading.Event()
            TOLD.waiting[run_id] = done
            began = monotonic_seconds()
            submit(run_id, str(uuid.uuid4()), query)
            if done.wait(max(0.0, deadline - monotonic_seconds())):
                latencies.append((monotonic_seconds() - began) * 1000)

    threads = [threading.Thread(target=one_after_another) for _ in range(command["in_flight"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"latencies_ms": latencies}


def burst(command: dict[str, Any]) -> dict[str, Any]:
    """Submit all at once, by as many threads as are useful. Started directly, no more are in progress than threads."""
    began, submit = CLOCK(), _submitter(command)
    deadline = monotonic_seconds() + command["seconds_max"]

    def one(query: str) -> None:
        if monotonic_seconds() > deadline:
            return
        run = str(uuid.uuid4()), str(uuid.uuid4()), query
        if command["is_queued"]:
            submit(*run)
        else:
            answered(*run)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(one, command["queries"]))
    return {"began_ms": began}


def told(_command: dict[str, Any]) -> dict[str, Any]:
    """When runs were completed and archived since the last call."""
    return dict(TOLD.take())


def main() -> None:
    """Follow commands, one JSON a line, until stdin ends."""
    DBOS(
        config={
            "name": "bench-pipeline",
            "system_database_url": os.environ["PEER_DATABASE"],
            "executor_id": os.environ["PEER_EXECUTOR"],
            "application_version": "1",
            "sys_db_pool_size": POOL,
            "log_level": "WARNING",
        }
    )
    DBOS.launch()
    # A limit a process: without one a burst becomes as many threads at once, which is slower.
    DBOS.register_queue(QUEUE, worker_concurrency=THREADS, polling_interval_sec=POLLING_SECONDS)
    commands: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"loop": loop, "burst": burst, "told": told}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(commands[command["do"]](command)), flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    main()
