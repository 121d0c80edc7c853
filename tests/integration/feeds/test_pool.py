"""The pool of rebuild processes: real processes, real limits, real kills."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from highwater.connectors.feeds import pool as module
from highwater.connectors.feeds.pool import (
    ClusterPool,
    RebuildFailedError,
    RebuildInputError,
    RebuildMachineError,
    RebuildMemoryError,
    RebuildTimeoutError,
    RebuildWorkerLostError,
)
from highwater.schemas.errors import HighwaterError
from highwater.streams.feeds.recluster import recluster
from highwater.streams.feeds.versions import NewVersion, Window
from highwater.streams.progress import WorkLimit
from tests import ROOT
from tests.unit.feeds import sample

pytestmark = pytest.mark.long

PROJECT = ROOT


def job(n: int) -> Window:
    """A dataset of n insights from the sample, repeated with small deterministic differences past its end."""
    rows = np.arange(n) % len(sample.texts())
    vectors = sample.vectors()[rows]
    if n > len(sample.texts()):
        source = np.random.default_rng(5)
        vectors = vectors + source.normal(scale=0.02, size=vectors.shape).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    texts = tuple(sample.texts()[row] for row in rows)
    return Window(1, vectors, texts, tuple(f"i{row:06}" for row in range(n)))


def count(version: NewVersion) -> int:
    """How many insights a version accounts for."""
    return version.noise_count + sum(one.size for one in version.clusters)


def peak_bytes(process_id: int) -> int:
    """The largest resident size that a process has had."""
    (line,) = [
        line for line in Path(f"/proc/{process_id}/status").read_text().splitlines() if line.startswith("VmHWM:")
    ]
    return int(line.split()[1]) * 1024


def state_of(process_id: int) -> str:
    """The letter that the kernel gives a process: R runs, S sleeps, Z has ended."""
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]


async def until_gone(process_id: int) -> bool:
    """Whether a process ends within 10 s; a zombie has ended."""
    for _ in range(1000):
        try:
            if state_of(process_id) == "Z":
                return True
        except FileNotFoundError:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_a_process_finds_what_the_function_finds():
    """The pool's answer equals that of `recluster` in this process."""
    async with ClusterPool() as pool:
        found = await pool.run(job(600))
    assert found == recluster(job(600))
    assert len(found.clusters) >= 3
    assert count(found) == 600


def seconds_without_a_core() -> float:
    """How long this thread has waited for a core that others had, by the kernel's count."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


async def test_the_loop_never_waits_for_the_cpu():
    """While 3,000 insights are clustered, and their 5 MB are transferred, the product does not block the loop for 0.25 s.

    Time that other processes of the machine take does not count.
    """
    gaps: list[float] = []

    async def watch() -> None:
        while True:
            before, waited = time.perf_counter(), seconds_without_a_core()
            await asyncio.sleep(0)
            await asyncio.sleep(0.005)
            gaps.append(time.perf_counter() - before - (seconds_without_a_core() - waited))

    prepared = job(3000)
    async with ClusterPool() as pool:
        await pool.run(job(20))
        watcher = asyncio.create_task(watch())
        await pool.run(prepared)
        watcher.cancel()
    assert len(gaps) > 10
    assert max(gaps) < 0.25


async def test_twenty_thousand_insights_fit_in_one_gibibyte():
    """The largest rebuild (HIGHWATER_REBUILD_INSIGHTS_MAX) runs within the default limit, resident size measured."""
    async with ClusterPool() as pool:
        found = await pool.run(job(20_000))
        (process_id,) = pool.process_ids
        assert peak_bytes(process_id) < 1 << 30
    assert count(found) == 20_000
    assert len(found.clusters) >= 10


async def test_over_its_memory_a_rebuild_fails_alone():
    """Past the limit there is one clear error that is not retried; the next job gets a fresh process and succeeds."""
    async with ClusterPool(memory_bytes_max=250 << 20) as pool:
        await pool.run(job(50))
        (before,) = pool.process_ids
        with pytest.raises(RebuildMemoryError, match="over its memory limit of 250 MiB") as caught:
            await pool.run(job(18_000))
        assert not caught.value.retriable
        assert count(await pool.run(job(50))) == 50
        (after,) = pool.process_ids
        assert before != after


async def test_too_little_memory_for_the_vectors_is_the_same_error():
    """A process that cannot even hold the job replies before it has read all of it."""
    async with ClusterPool(memory_bytes_max=200 << 20) as pool:
        with pytest.raises(RebuildMemoryError):
            await pool.run(job(20_000))


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGKILL, RebuildMachineError), (signal.SIGSEGV, RebuildWorkerLostError)]
)
async def test_a_killed_process_fails_its_job_for_a_retry(number: signal.Signals, kind: type[HighwaterError]):
    """A retriable error that names the signal: the machine's (want of memory), or a crash; the pool continues with another."""
    async with ClusterPool() as pool:
        await pool.run(job(20))
        (victim,) = pool.process_ids
        running = asyncio.create_task(pool.run(job(9_000)))
        while state_of(victim) != "R":  # noqa: ASYNC110 the kernel sends no event
            await asyncio.sleep(0.01)
        os.kill(victim, number)
        with pytest.raises(kind, match=number.name) as caught:
            await running
        assert caught.value.retriable
        assert count(await pool.run(job(20))) == 20


async def test_a_process_killed_between_jobs_is_not_used_again():
    """An idle worker that died costs no job."""
    async with ClusterPool() as pool:
        await pool.run(job(20))
        (victim,) = pool.process_ids
        os.kill(victim, signal.SIGKILL)
        while pool.process_ids:  # noqa: ASYNC110 the pool does not signal a death
            await asyncio.sleep(0.01)
        assert count(await pool.run(job(20))) == 20


async def test_past_its_processor_time_a_rebuild_is_ended():
    """Over the limit the process is killed, the error is not retriable, and the next job succeeds."""
    async with ClusterPool(processor_seconds_max=2) as pool:  # a small job takes milliseconds
        with pytest.raises(RebuildTimeoutError, match="over 2 s of processor time") as caught:
            await pool.run(job(20_000))
        assert not caught.value.retriable
        assert pool.process_ids == ()
        assert count(await pool.run(job(20))) == 20


async def test_a_cancelled_rebuild_leaves_no_process_at_work():
    """Cancelling the caller kills the process that works for it and frees its place."""
    async with ClusterPool() as pool:
        await pool.run(job(20))
        (victim,) = pool.process_ids
        running = asyncio.create_task(pool.run(job(9_000)))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await until_gone(victim)
        assert count(await pool.run(job(20))) == 20


async def test_a_process_that_nobody_wants_ends():
    """Its memory is given back; the next job gets another one, and one that is wanted again in time stays."""
    async with ClusterPool(keep_seconds=600) as pool:
        await pool.run(job(20))
        (kept,) = pool.process_ids
        await pool.run(job(20))
        assert pool.process_ids == (kept,)
    async with ClusterPool(keep_seconds=0.1) as pool:
        await pool.run(job(20))
        async with asyncio.timeout(60):
            while pool.process_ids:  # noqa: ASYNC110 the pool does not signal an end
                await asyncio.sleep(0.01)
        assert count(await pool.run(job(20))) == 20


async def test_bad_vectors_are_an_error_of_input_and_the_process_lives(monkeypatch):
    """NaN raises RebuildInputError, not to be retried; the same process takes the next job. An oversized reply is a failure of
    the job, not of the machine.
    """
    bad = job(50)
    bad.vectors[7, 7] = np.nan
    async with ClusterPool() as pool:
        with pytest.raises(RebuildInputError, match="not finite"):
            await pool.run(bad)
        before = pool.process_ids
        await pool.run(job(50))
        assert pool.process_ids == before
        monkeypatch.setattr(module, "REPLY_BYTES_MAX", 100)
        with pytest.raises(RebuildFailedError, match="more than 100"):
            await pool.run(job(50))


async def test_two_processes_work_at_a_time_and_no_more():
    """Five jobs on two places: two processes; jobs of a closed pool fail."""
    async with ClusterPool(processes=2) as pool:
        results = await asyncio.gather(*(pool.run(job(300 + i)) for i in range(5)))
        assert [count(result) for result in results] == [300, 301, 302, 303, 304]
        assert len(pool.process_ids) == 2
    assert pool.process_ids == ()
    with pytest.raises(RebuildWorkerLostError, match="closed"):
        await pool.run(job(20))


async def test_a_process_dies_with_its_parent():
    """SIGKILL of the parent, which no handler sees, ends its workers."""
    program = (
        "import asyncio\n"
        "from highwater.connectors.feeds.pool import ClusterPool\n"
        "from tests.integration.feeds.test_pool import job\n"
        "async def main():\n"
        "    pool = ClusterPool()\n"
        "    await pool.run(job(20))\n"
        "    print(*pool.process_ids, flush=True)\n"
        "    await pool.run(job(20_000))\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", program),
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    worker = int(await parent.stdout.readline())
    parent.kill()
    await parent.wait()
    try:
        assert await until_gone(worker)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


async def test_a_process_that_does_not_start_is_a_failure_of_the_machine(monkeypatch):
    """A worker that ends before it is ready fails the job for a retry, and nothing stays behind."""
    monkeypatch.setattr(module, "_PROGRAM", "raise SystemExit(3)")
    async with ClusterPool(processes=4) as pool:
        with pytest.raises(RebuildMachineError, match=r"did not start \(exit 3\)"):
            await pool.run(job(20))
        assert pool.process_ids == ()
        assert pool.starts_at_once == 2


# Seconds without progress; a start takes longer than that on any machine, and much longer with a fifth of a core.
QUIET = WorkLimit(quiet_seconds_max=2.0, total_seconds_max=600.0)


async def test_a_slow_start_that_makes_progress_is_not_ended():
    """A process that is stopped for nine tenths of the time takes several times its limit to start, and does its job."""
    async with ClusterPool(start_limit=QUIET) as pool:
        began = time.monotonic()
        running = asyncio.create_task(pool.run(job(50)))
        while time.monotonic() < began + 3 * QUIET.quiet_seconds_max and not running.done():
            for process_id in pool.process_ids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGCONT)
                    await asyncio.sleep(0.02)
                    os.kill(process_id, signal.SIGSTOP)
            await asyncio.sleep(0.2)
        assert not running.done(), "the start was not slow"
        for process_id in pool.process_ids:
            os.kill(process_id, signal.SIGCONT)
        assert count(await running) == 50


async def test_a_start_without_progress_is_ended(monkeypatch):
    """After the quiet time, with the reason; the next job gets a new process, and a slow start makes fewer start at once."""
    program = module._PROGRAM
    monkeypatch.setattr(module, "_PROGRAM", "import time; time.sleep(600)")
    async with ClusterPool(processes=2, start_limit=QUIET) as pool:
        with pytest.raises(
            RebuildMachineError, match="the start of a rebuild process made no progress for 2 s"
        ) as caught:
            await pool.run(job(20))
        assert caught.value.retriable
        assert (pool.process_ids, pool.starts_at_once) == ((), 1)
        monkeypatch.setattr(module, "_PROGRAM", program)
        results = await asyncio.gather(pool.run(job(20)), pool.run(job(21)))
        assert [count(result) for result in results] == [20, 21]


async def test_a_rebuild_without_progress_is_ended():
    """A stopped process is ended after the quiet time, not after the hours that a working one has."""
    async with ClusterPool(rebuild_limit=QUIET) as pool:
        await pool.run(job(20))
        (victim,) = pool.process_ids
        os.kill(victim, signal.SIGSTOP)
        with pytest.raises(RebuildMachineError, match="a rebuild made no progress for 2 s"):
            await pool.run(job(300))
        assert await until_gone(victim)
        assert count(await pool.run(job(20))) == 20
