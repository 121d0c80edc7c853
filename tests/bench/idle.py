"""What a stack in which nothing happens costs: processor time, memory and wakes of every process over a minute at rest.

`highwater up` with its sample, left alone until what the sample set off has ended. Processor time and wakes come from /proc;
memory is the proportional share (PSS), which counts a page of several processes once. Statements are counted in a shorter span
after the minute, since PostgreSQL has to log them for that, and requests to the broker as segments with data that come to its
port, where `ss` is installed.

    python -m tests.bench.idle [--runs N]
"""

import argparse
import contextlib
import json
import re
import shutil
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench.figures import Figure, figure
from tests.bench.installed import Installed, installed

SETTLED_SECONDS = (
    60.0  # the first rebuild comes within half a minute; consumers rest ten seconds after their last event
)
MEASURED_SECONDS = 60.0
LOGGED_SECONDS = 20.0
ALL = "all"
CPU, MEMORY, WAKES = "processor", "memory (PSS)", "wakes"
STATEMENTS, REQUESTS = "statements", "requests to the broker"
CONFIGURED = Path("postgres") / "cluster" / "postgresql.auto.conf"
_STATEMENT = re.compile(r"(?:execute [^:]*|statement): (.*)")


@dataclass(frozen=True, slots=True)
class Used:
    """What a process and its descendants have used until now: seconds of processor, voluntary switches; MB they share in."""

    cpu_seconds: float
    wakes: int
    pss_mb: float


def used(pid: int, *, is_alone: bool = False) -> Used:
    """What a process and all below it used; of a child that has ended, what its parent has taken over.

    `is_alone`: without those below it.
    """
    seconds, wakes, pss = 0.0, 0, 0.0
    top = psutil.Process(pid)
    for process in (top, *([] if is_alone else top.children(recursive=True))):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            times = process.cpu_times()
            seconds += times.user + times.system
            seconds += 0.0 if is_alone else times.children_user + times.children_system
            pss += process.memory_full_info().pss / 1e6
            for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
                wakes += int(status.read_text().split("voluntary_ctxt_switches:")[1].split()[0])
    return Used(seconds, wakes, pss)


def _less(one: Used, other: Used) -> Used:
    return Used(one.cpu_seconds - other.cpu_seconds, one.wakes - other.wakes, one.pss_mb - other.pss_mb)


def used_by(processes: dict[str, int]) -> dict[str, Used]:
    """What each part used, the supervisor without those that it has started, and all of them together."""
    parts = {name: used(pid, is_alone=name == "supervisor") for name, pid in processes.items()}
    together = Used(
        sum(one.cpu_seconds for one in parts.values()),
        sum(one.wakes for one in parts.values()),
        sum(one.pss_mb for one in parts.values()),
    )
    return {ALL: together, **parts}


def requests_to(port: int) -> int | None:
    """Segments with data that came to a port over the connections that are open now; None without `ss`."""
    if shutil.which("ss") is None:
        return None
    told = subprocess.run(["ss", "-tinH", f"sport = :{port}"], capture_output=True, text=True, check=True)
    return sum(map(int, re.findall(r"data_segs_in:(\d+)", told.stdout)))


def log_statements(stack: Installed, seconds: float) -> Counter[str]:
    """Every statement of a span by its first words, from PostgreSQL's log, which is set to name them meanwhile.

    The setting is in its file, since the product's user may not change it.
    """
    log, configured = stack.data_dir / "logs" / "database.log", stack.data_dir / CONFIGURED
    server, text = psutil.Process(stack.processes()["database"]), configured.read_text(encoding="utf-8")
    configured.write_text(f"{text}log_statement = 'all'\n", encoding="utf-8")
    try:
        begin = log.stat().st_size
        server.send_signal(signal.SIGHUP)
        time.sleep(seconds)
    finally:
        configured.write_text(text, encoding="utf-8")
        server.send_signal(signal.SIGHUP)
    logged = log.read_bytes()[begin:].decode(errors="replace")
    return Counter(" ".join(one.split())[:90] for one in _STATEMENT.findall(logged))


@dataclass(frozen=True, slots=True)
class Rest:
    """What was seen of one stack at rest: by process, what a minute used; a second's statements and requests."""

    used: dict[str, Used]
    statements: Counter[str]
    requests: float | None


def at_rest(stack: Installed, seconds: float = MEASURED_SECONDS) -> Rest:
    """Measure a stack that has settled."""
    processes = stack.processes()
    port = int(stack.state()["kafka"].rpartition(":")[2])
    asked, began, before = requests_to(port), time.monotonic(), used_by(processes)
    time.sleep(seconds)
    after, took, asked_then = used_by(processes), time.monotonic() - began, requests_to(port)
    span = {name: _less(now, before[name]) for name, now in after.items()}
    shares = {name: Used(one.cpu_seconds / took, one.wakes / took, after[name].pss_mb) for name, one in span.items()}
    statements = log_statements(stack, LOGGED_SECONDS)
    return Rest(shares, statements, None if asked is None or asked_then is None else (asked_then - asked) / took)


def run(runs: int = 3) -> list[Figure]:
    """The figures: by process and for all together."""
    found = []
    for _ in range(runs):
        with installed() as stack:
            time.sleep(SETTLED_SECONDS)
            found.append(at_rest(stack))
    figures = []
    for name in found[0].used:
        figures += [
            figure(CPU, name, "% of a core", [100 * one.used[name].cpu_seconds for one in found]),
            figure(MEMORY, name, "MB", [one.used[name].pss_mb for one in found]),
            figure(WAKES, name, "/s", [one.used[name].wakes for one in found]),
        ]
    rates = [one.statements.total() / LOGGED_SECONDS for one in found]
    figures.append(figure(STATEMENTS, "database", "/s", rates))
    requests = [one.requests for one in found if one.requests is not None]
    if requests:
        figures.append(figure(REQUESTS, "kafka", "/s", requests))
    return figures


def table(figures: Sequence[Figure]) -> str:
    """The figures for a reader: a line for each process, and what goes between them."""
    by_system: dict[str, dict[str, Figure]] = defaultdict(dict)
    for one in figures:
        by_system[one["system"]][one["name"]] = one
    lines = [f"{'at rest':<16} {'% of a core':>12} {'MB (PSS)':>10} {'wakes/s':>9}"]
    for system, measures in by_system.items():
        cpu, memory, wakes = (measures[name]["value"] for name in (CPU, MEMORY, WAKES))
        lines.append(f"{system:<16} {cpu:>12.2f} {memory:>10.0f} {wakes:>9.0f}")
    between = [one for one in figures if one["name"] in {STATEMENTS, REQUESTS}]
    lines += [f"{one['name']}: {one['value']:.1f} a second" for one in between]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    for one_figure in run(parser.parse_args().runs):
        print(json.dumps(one_figure))
