"""`highwater jobs` against a running API, as a user runs it: output, exit status, Ctrl-C, an API that goes away."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from redis.asyncio import Redis

from highwater.api.app import server_of
from highwater.connectors.jobs.progress import Progress
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.redis.link import open_redis
from tests.integration import api_server
from tests.integration.api_server import Api, Seeds, running_api
from tests.integration.commands import ended, run, started
from tests.integration.jobs.watching import ADA, ORG, change_job, materialize, new_id, step, steps, store_job


def command(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """The command, started."""
    return started(environment, "jobs", *arguments)


@pytest.fixture
async def progress(seeds: Seeds, redis_url: str) -> AsyncIterator[Progress]:
    """The materializer."""
    link = await open_redis(redis_url)
    async with await open_pool(seeds.url, size_max=2) as pool:
        yield Progress(pool, link)
    await link.close()


async def outcome(environment: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    """Exit status and output of the command, run to its end."""
    done = await asyncio.to_thread(run, environment, "jobs", *arguments)
    return done.returncode, done.stdout, done.stderr


async def line(process: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert process.stdout is not None
    return await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 30)


async def test_a_job_is_watched_to_its_end(seeds, api, api_environment, progress):
    """In a pipe a line a step, then how it ended; exit status 0. What a terminal would obey is escaped."""
    job = await store_job(seeds)
    await materialize(progress, [step(job, 1, "slide_started", pct=40, slide_number=7, slide_title="Why\x1b[2J")])
    watching = command(api_environment, "watch", job)
    assert await line(watching) == "40% slide_started 7 Why\\x1b[2J\n"
    await change_job(seeds, job, seq=2, status="completed", progress_pct=100, result='{"presentation_id": "x"}')
    await materialize(progress, [step(job, 2, "generation_done", pct=100)])
    assert await ended(watching) == (0, f"100% generation_done\ncompleted /api/presentations/{job}\n", "")


async def test_a_job_that_failed(seeds, api, api_environment, progress):
    """Exit status 1; by `--json` each event, and last how the job stands."""
    job = await store_job(seeds, seq=1, status="failed", error="no model")
    await materialize(progress, [step(job, 1, "error", pct=0, error_message="no model")])
    code, out, err = await outcome(api_environment, "watch", job, "--json")
    event, document = (json.loads(one) for one in out.splitlines())
    assert (code, err, event["id"], event["error_message"]) == (1, "", "1-0", "no model")
    assert (document["status"], document["error"]) == ("failed", "no model")
    code, out, err = await outcome(api_environment, "show", job, "--json")
    assert (code, json.loads(out), err) == (0, document, "")


async def test_watching_goes_on_where_it_was(own_settings, seeds, api_environment, progress):
    """The API ends and another one comes: each step is shown once."""
    job = await store_job(seeds)
    await materialize(progress, steps(job, 1, 3))
    with running_api(own_settings()) as first:
        port = first.url.rsplit(":", 1)[1]
        await change_job(seeds, job, seq=3)
        watching = command({**api_environment, "HIGHWATER_PORT": port}, "watch", job, "--json")
        told = [json.loads(await line(watching)) for _ in range(3)]
    await change_job(seeds, job, seq=5, status="completed", progress_pct=100)
    await materialize(progress, steps(job, 4, 5, is_done=True))
    with _at_port(own_settings(), int(port)):
        code, out, err = await ended(watching)
    told += [json.loads(one) for one in out.splitlines()]
    assert [one.get("id") for one in told] == ["1-0", "2-0", "3-0", "4-0", "5-0", None]
    assert (code, err.count("\n") <= 1) == (0, True)


@contextmanager
def _at_port(settings: Any, port: int) -> Iterator[Api]:
    """The API at a given port."""
    with (
        patch.object(api_server, "server_of", lambda app, host, _port, **more: server_of(app, host, port, **more)),
        running_api(settings) as running,
    ):
        yield running


async def test_who_stops_watching_leaves_the_job_alone(seeds, api, api_environment, progress):
    """By Ctrl-C: 130, and the job is not revoked."""
    job = await store_job(seeds, seq=1)
    await materialize(progress, [step(job, 1)])
    watching = command(api_environment, "watch", job)
    await line(watching)
    watching.send_signal(signal.SIGINT)
    code, out, err = await ended(watching)
    assert (code, out, f"{job} continues" in err) == (130, "", True)


async def test_a_job_is_submitted(seeds, api, api_environment):
    """Its id is printed; the same key again is the same job; an invalid job is wrong use."""
    options = ("--organization", ORG, "--user", ADA)
    first = await outcome(
        api_environment, "submit", "generation", '{"query": "why?"}', *options, "--idempotency-key", "k"
    )
    again = await outcome(
        api_environment, "submit", "generation", '{"query": "why?"}', *options, "--idempotency-key", "k"
    )
    assert first == again
    assert (first[0], len(first[1].strip()), first[2]) == (0, 36, "")
    for arguments in (("dance", "{}"), ("generation", "{"), ("generation", "{}"), ("generation", "[]")):
        code, out, err = await outcome(api_environment, "submit", *arguments, *options)
        assert (code, out, err.count("\n")) == (2, "", 1), arguments


async def test_jobs_are_listed(seeds, api, api_environment):
    """The newest first; by the filters of the API, and none that it does not have."""
    jobs = [
        await store_job(seeds, organization_id="cli-list", status=status) for status in ("failed", "running", "failed")
    ]
    listing = ("list", "--organization", "cli-list")
    code, out, err = await outcome(api_environment, *listing, "--json")
    assert (code, {json.loads(one)["job_id"] for one in out.splitlines()}, err) == (0, set(jobs), "")
    code, out, err = await outcome(api_environment, *listing, "--status", "running")
    assert (code, [jobs[n] in out for n in range(3)], err) == (0, [False, True, False], "")
    code, out, err = await outcome(api_environment, *listing, "--limit", "1", "--json")
    assert (code, len(out.splitlines())) == (0, 1)
    code, out, err = await outcome(api_environment, *listing, "--status", "broken")
    assert (code, out, err.count("\n")) == (2, "", 1)


async def test_a_job_is_revoked_and_restarted(seeds, api, api_environment, progress):
    """Its id is printed; an impossible restart is reported. With `--watch` events after the old error are shown."""
    running_job = await store_job(seeds)
    assert await outcome(api_environment, "revoke", running_job) == (0, f"{running_job}\n", "")
    code, out, err = await outcome(api_environment, "restart", running_job)
    assert (code, out, "running" in err) == (1, "", True)
    failed = await store_job(seeds, status="failed", error="no model", seq=1)
    await materialize(progress, [step(failed, 1, "error", pct=0, error_message="no model")])
    assert await outcome(api_environment, "restart", failed) == (0, f"{failed}\n", "")
    await change_job(seeds, failed, status="running", error=None, seq=3)
    await materialize(progress, [step(failed, 2, "job_restarted", pct=0), step(failed, 3, "slide_started", pct=0)])
    watching = command(api_environment, "watch", failed)
    assert [await line(watching) for _ in range(3)] == [
        "0% error no model\n",
        "0% job_restarted\n",
        "0% slide_started\n",
    ]
    await change_job(seeds, failed, seq=4, status="completed", progress_pct=100, result='{"presentation_id": "x"}')
    await materialize(progress, [step(failed, 4, "generation_done", pct=100)])
    assert (await ended(watching))[:2] == (0, f"100% generation_done\ncompleted /api/presentations/{failed}\n")


async def test_failed_jobs_are_restarted_by_reason(seeds, api, api_environment):
    """Without `--execute` the plan is shown and nothing is published."""
    failed = {"organization_id": "cli-restart", "status": "failed"}
    job = await store_job(seeds, **failed, error="no model: slide 3")
    await store_job(seeds, **failed, error="timeout")
    arguments = ("restart-failed", "--organization", "cli-restart", "--reason", "no model")
    code, out, err = await outcome(api_environment, *arguments)
    assert (code, "1 of 1 failed jobs would be restarted" in out, job in out, err) == (0, True, True, "")
    code, out, err = await outcome(api_environment, *arguments, "--execute", "--json")
    found = json.loads(out)
    assert (code, [one["job_id"] for one in found["jobs"]], len(found["positions"])) == (0, [job], 1), err


async def test_an_outline_is_printed_edited_and_approved(seeds, api, api_environment, tmp_path):
    """Exit status 0 with the event's position; invalid JSON is wrong use, and a job that does not wait gives one line."""
    outline = {"title": "KRaft", "slides": [{"title": "One", "points": ["a"]}]}
    held = {"checkpoint": json.dumps({"outline": outline}), "approval_until_ms": 1_893_456_000_000}
    job = await store_job(seeds, **held, seq=1)
    code, out, err = await outcome(api_environment, "outline", job)
    assert (code, json.loads(out), err) == (0, outline, "")
    file = tmp_path / "outline.json"
    file.write_text(json.dumps({**outline, "title": "Mine"}))
    approved = command(api_environment, "approve", job, "--outline", str(file), "--json")
    code, out, err = await ended(approved)
    assert (code, err) == (0, "")
    assert json.loads(out)["positions"][0].startswith("jobs.control/")
    file.write_text("{")
    assert (await outcome(api_environment, "approve", job, "--outline", str(file)))[0] == 2
    await change_job(seeds, job, approval_until_ms=None)
    for action, words in (("approve", "is not waiting for approval"), ("outline", "no outline")):
        code, out, err = await outcome(api_environment, action, job)
        assert (code, out) == (1, "")
        assert words in err


async def test_documents_are_put_and_saved(seeds, api, api_environment, tmp_path):
    """Under their own name, whole or not at all, and nothing is replaced unasked."""
    document = tmp_path / "Обзор.md"
    document.write_bytes(b"# KRaft\n")
    name = hashlib.sha256(document.read_bytes()).hexdigest()
    put = ("blobs", "put", str(document), "--organization", ORG)
    assert await outcome(api_environment, *put) == (0, f"{name}\n", "")
    folder = tmp_path / "saved"
    folder.mkdir()
    get = ("blobs", "get", name, "--organization", ORG)
    saved = folder / "Обзор.md"
    code, out, err = await ended(started(api_environment, "jobs", *get, cwd=folder))
    assert (code, out, err) == (0, "Обзор.md\n", "")
    assert saved.read_bytes() == document.read_bytes()
    code, out, err = await ended(started(api_environment, "jobs", *get, cwd=folder))
    assert (code, out, "--force" in err) == (1, "", True)
    assert (await ended(started(api_environment, "jobs", *get, "--force", cwd=folder)))[0] == 0
    assert await outcome(api_environment, *get, "--output", "-") == (0, "# KRaft\n", "")
    code, out, err = await outcome(api_environment, "blobs", "get", "0" * 64, "--organization", ORG)
    assert (code, out, "404" in err) == (1, "", True)
    assert [one.name for one in folder.iterdir()] == ["Обзор.md"]


async def test_wrong_use(api, api_environment):
    """2 for an invalid id; 1 for a missing job, and without an API."""
    for arguments, status in (
        (("watch", "x"), 2),
        (("show", "x"), 2),
        (("watch", new_id()), 1),
        (("show", new_id()), 1),
    ):
        code, out, err = await outcome(api_environment, *arguments)
        assert (code, out, err.count("\n")) == (status, "", 1), arguments
    code, _, err = await outcome({**api_environment, "HIGHWATER_PORT": "1"}, "show", new_id())
    assert (code, "does not answer" in err) == (1, True)


async def test_public_links(seeds, api, api_environment):
    """Created with its address, listed without it, revoked; a link that the deck does not have is exit status 1."""
    deck = new_id()
    query = "INSERT INTO presentations VALUES ($1, $2, $3, 'Why', '[]', 'jobs.generation-requested/0/3', now())"
    await seeds.run(query, deck, ORG, ADA)
    code, out, _ = await outcome(api_environment, "links", "create", deck)
    address = out.strip()
    assert (code, address.startswith(f"{api.url}/read/shared/hwp_")) == (0, True)
    assert (await api.get(address.removeprefix(api.url))).status_code == 200
    code, out, _ = await outcome(api_environment, "links", "list", deck, "--json")
    (listed,) = map(json.loads, out.splitlines())
    assert (code, set(listed)) == (0, {"link_id", "created_at"})
    revoking = ("links", "revoke", deck, listed["link_id"])
    assert await outcome(api_environment, *revoking) == (0, f"{listed['link_id']}\n", "")
    assert (await api.get(address.removeprefix(api.url))).status_code == 404
    code, _, err = await outcome(api_environment, *revoking)
    assert (code, "there is no link" in err) == (1, True)
    assert (await outcome(api_environment, "links", "list", new_id()))[0] == 1


async def test_open_sockets_are_counted(api, api_environment, redis_url):
    """A line for each process and user, and the sum."""
    async with Redis.from_url(redis_url) as redis:
        await redis.zadd("ws_connections:ada", {"pod-1:a": api.clock(), "pod-1:b": api.clock()})
    code, out, _ = await outcome(api_environment, "sockets")
    lines = [line.split() for line in out.splitlines()]
    assert (code, lines[1:]) == (0, [["process", "pod-1", "2"], ["user", "ada", "2"], ["all", "2"]])
