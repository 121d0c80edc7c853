"""Ten times the ordinary load for minutes, with readers: what lags, what is refused, what memory is taken, how long reads take.

1. The sustainable rate: what the sink stores a second of 20,000 insights that lie in the log, with readers.
2. The ordinary rate is 0.15 of it, so that ten times the ordinary rate is half as much again as can be stored, and what waits at
   its end is stored within minutes. Two minutes of the ordinary rate, ten times it for `minutes`, then the ordinary rate again
   until nothing waits, and two minutes more.

Readers ask for feeds, league pages and searches, 20 a second in all, in an open loop: latency counts from when a read was due.
Writers offer the ordinary rate over HTTP, in batches of 100, and honour `Retry-After`; the other nine tenths are published to the
log, whose producers nobody sheds. Everything runs on one machine, whose other users are seen too: ratios and shapes are what
counts. Writes are shed once the sink is 30,000 events behind (`HIGHWATER_SHED_LAG_EVENTS`), so that what waits is stored within
minutes; all other settings are as shipped.

    highwater bench overload --minutes 10        writes docs/lasting/overload.json and overload.svg
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from highwater.schemas.errors import UnavailableError
from tests import ROOT
from tests.bench.data import insights
from tests.bench.figures import Figure, figure
from tests.bench.graph import Curve, Panel, Phase, Point, draw
from tests.bench.league_stack import league_product, load_season
from tests.bench.overload_clients import NS, READERS
from tests.bench.watching import memory_mib, waiting
from tests.product import Product

MINUTES = 10.0
OUT = ROOT / "docs" / "lasting"
SINK = "insights"
TIMES, SHARE = 10, 0.15
CALM_SECONDS = 120.0
# Ten seconds' worth or more, so that batches are full.
BURST = 20_000
# What is stored in a minute or so; as shipped it is a million.
SHED_EVENTS = 30_000
LOOK_SECONDS = 5.0
DRAIN_SECONDS_MAX = 1_800.0
_BUCKET_SECONDS = 10.0
_CHUNKS = 200


@dataclass
class Observed:
    """What was seen, with seconds since the beginning."""

    began: float
    samples: list[dict[str, Any]] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)

    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began


class Clients:
    """The processes that read and write."""

    def __init__(self, product: Product, folder: Path) -> None:
        self._folder = folder
        self._url = str(product.http.base_url)
        self._environment = product.environment
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Begin, with nothing to write."""
        self.set_rates(http=0, log=0)
        for sort in ("readers", "writers", "producers"):
            command = [sys.executable, "-m", "tests.bench.overload_clients", sort, self._url, str(self._file(sort))]
            environment = {**os.environ, **self._environment, "PYTHONPATH": str(ROOT)}
            self._processes.append(subprocess.Popen(command, cwd=ROOT, env=environment))
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(60)

    def set_rates(self, *, http: float, log: float) -> None:
        """Have N events offered per second over HTTP, and N published to the log."""
        for sort, events_per_second in (("writers", http), ("producers", log)):
            fresh = self._folder / "rate.new"
            fresh.write_text(str(events_per_second), encoding="ascii")
            fresh.replace(self._file(sort).with_suffix(".rate"))

    def written(self) -> list[dict[str, Any]]:
        """What was written over HTTP, second by second, as running sums."""
        return [json.loads(line) for line in _whole_lines(self._file("writers"))]

    def published(self) -> list[dict[str, Any]]:
        """What the log acknowledged, second by second, as a running sum."""
        return [json.loads(line) for line in _whole_lines(self._file("producers"))]

    def reads(self) -> list[tuple[float, float, int, str]]:
        """Every read: when it was due, how long it took in ms, its status, its sort."""
        rows = (line.split() for line in _whole_lines(self._file("readers")))
        return [(float(due), float(ms), int(status), sort) for due, ms, status, sort in rows]

    def _file(self, sort: str) -> Path:
        return self._folder / f"{sort}.out"


def _whole_lines(path: Path) -> list[str]:
    text = path.read_text(encoding="ascii") if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def run(runs: int = 1, *, minutes: float = MINUTES) -> list[Figure]:
    """The figures of one run; `runs` is ignored, since one takes half an hour."""
    del runs
    with (
        _loaded(HIGHWATER_SHED_LAG_EVENTS=str(SHED_EVENTS)) as (product, folder),
        Clients(product, folder) as clients,
    ):
        rate = _sustainable_rate(product)
        observed = Observed(time.monotonic())
        _phases(product, clients, observed, rate, minutes)
        problems = _problems(product, clients)
        document = _document(clients, observed, rate, minutes, problems)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "overload.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (OUT / "overload.svg").write_text(_graph(document), encoding="utf-8")
    return _figures(document)


@contextlib.contextmanager
def _loaded(**settings: str) -> Iterator[tuple[Product, Path]]:
    """The product with readers, a season and chunks."""
    with tempfile.TemporaryDirectory(prefix="highwater-overload-") as folder, league_product(**settings) as product:
        load_season(product)
        channels = sorted({line["channel_id"] for line in insights()})
        for reader in READERS:
            product.subscribe(reader, channels)
        rows = [
            {"chunk_no": number, "content": line["text"]}
            for number, line in enumerate(itertools.islice(insights(), _CHUNKS))
        ]
        body = {"ns": NS, "slot": "main", "source_id": "commits", "chunks": rows, "full": True}
        answer = product.http.post("/api/chunks/ingest", json=body)
        assert answer.status_code == 202, answer.text
        lines = "\n".join(json.dumps(line) for line in insights())
        answer = product.http.post(
            "/api/events/feeds.insight-ingested", content=lines, headers={"content-type": "application/x-ndjson"}
        )
        assert answer.status_code == 202, answer.text
        for path in (*(f"/api/users/{reader}/feed" for reader in READERS), f"/api/chunks/search?ns={NS}&q=broker"):
            product.until(lambda path=path: product.http.get(path).status_code == 200, f"{path} is not there", 240)
        yield product, Path(folder)


def _sustainable_rate(product: Product) -> float:
    """Insights that the sink stores a second of a burst that lies in the log, with readers; nothing waits afterwards.

    Not through the API: a flood of requests would measure how fast they are answered.
    """
    lines = itertools.islice(itertools.cycle(insights()), BURST)
    before = _stored(product)
    product.publish(
        "feeds.insight-ingested", ({**line, "insight_id": f"burst-{number}"} for number, line in enumerate(lines))
    )
    began, first = time.monotonic(), _stored(product)
    product.until(lambda: _stored(product) >= before + BURST, "the burst is not stored", DRAIN_SECONDS_MAX)
    return (before + BURST - first) / (time.monotonic() - began)


def _stored(product: Product) -> int:
    return int(product.sql("SELECT COALESCE(sum(current_seq), 0) FROM channels")[0][0])


def _phases(product: Product, clients: Clients, observed: Observed, rate: float, minutes: float) -> None:
    ordinary = rate * SHARE

    def phase(name: str, is_over: Callable[[float], bool], *, log: float = 0.0) -> None:
        begin = observed.now()
        clients.set_rates(http=ordinary, log=log)
        while not is_over(observed.now() - begin):
            with _unanswered():
                sample = {"at": observed.now(), "waiting": waiting(product), "memory": memory_mib(product)}
                sample["stored"] = _stored(product)
                observed.samples.append(sample)
                print(json.dumps({"phase": name, **sample}), file=sys.stderr, flush=True)
            time.sleep(LOOK_SECONDS)
        observed.phases.append(Phase(name, begin, observed.now()))

    phase("ordinary", lambda seconds: seconds >= CALM_SECONDS)
    phase("ten times", lambda seconds: seconds >= minutes * 60, log=ordinary * (TIMES - 1))
    # A second's worth of each is always in progress at the ordinary rate.
    at_rest = ordinary * 5

    def is_drained(seconds: float) -> bool:
        return seconds >= DRAIN_SECONDS_MAX or (
            seconds > LOOK_SECONDS * 2 and max(observed.samples[-1]["waiting"].values()) < at_rest
        )

    phase("drains", is_drained)
    phase("after", lambda seconds: seconds >= CALM_SECONDS)


@contextlib.contextmanager
def _unanswered() -> Iterator[None]:
    """Continue when a query of an overloaded stack is not answered in time: a sample is missing, and that is reported."""
    try:
        yield
    except UnavailableError as error:
        print(f"no sample: {error}", file=sys.stderr, flush=True)


def _problems(product: Product, clients: Clients) -> list[str]:
    """What must not be once all is stored."""
    clients.set_rates(http=0, log=0)
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    is_drained = False
    while not is_drained and time.monotonic() < deadline:
        with _unanswered():
            found = waiting(product)
            is_drained = not any(found[name] for name in (SINK, "outbox rows"))
        time.sleep(1)
    counts = clients.written()[-1]
    stored = int(product.sql("SELECT count(*) FROM insights WHERE insight_id LIKE 'load-%'")[0][0])
    problems = []
    if not counts["accepted"] <= stored <= counts["accepted"] + counts["unknown"]:
        problems.append(f"{stored} are stored of {counts['accepted']} accepted and {counts['unknown']} unanswered")
    published = clients.published()[-1]["published"]
    from_log = int(product.sql("SELECT count(*) FROM insights WHERE insight_id LIKE 'log-%'")[0][0])
    if from_log != published:
        problems.append(f"{from_log} are stored of {published} published")
    if counts["retry_after_missing"]:
        problems.append(f"{counts['retry_after_missing']} refusals without Retry-After")
    if counts["wrong"]:
        problems.append(f"a write was answered {counts['wrong']}")
    broken = product.sql(
        "SELECT channel_id FROM channels LEFT JOIN insights USING (channel_id) GROUP BY channel_id, current_seq"
        " HAVING count(seq) <> current_seq OR max(seq) <> current_seq"
    )
    problems += [f"the sequence of {row[0]} is not dense" for row in broken]
    restarted = {part["name"]: part["restarts"] for part in product.status()["parts"] if part.get("restarts")}
    return problems + ([f"restarted: {restarted}"] if restarted else [])


def _document(
    clients: Clients,
    observed: Observed,
    rate: float,
    minutes: float,
    problems: list[str],
) -> dict[str, Any]:
    reads = [(due - observed.began, ms, status, sort) for due, ms, status, sort in clients.reads()]
    written = [{**row, "at": row["at"] - observed.began} for row in _joined(clients.written(), clients.published())]
    return {
        "sustainable_per_second": round(rate),
        "ordinary_per_second": round(rate * SHARE),
        "offered_per_second": round(rate * SHARE * TIMES),
        "minutes": minutes,
        "shed_lag_events": SHED_EVENTS,
        "problems": problems,
        "phases": [_told(phase, reads, written, observed) for phase in observed.phases],
        "writes": _rates(written),
        "reads": _buckets(reads),
        "samples": [{**sample, "at": round(sample["at"], 1)} for sample in observed.samples],
    }


def _joined(written: list[dict[str, Any]], published: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was written over HTTP, each second with what the log had acknowledged by then."""
    told = [one["at"] for one in published]
    return [
        {**row, "published": published[place - 1]["published"] if (place := bisect.bisect(told, row["at"])) else 0}
        for row in written
    ]


def _told(
    phase: Phase,
    reads: Sequence[tuple[float, float, int, str]],
    written: Sequence[dict[str, Any]],
    observed: Observed,
) -> dict[str, Any]:
    """One phase in figures."""
    mine = [one for one in reads if phase.begin <= one[0] < phase.end]
    rows = [row for row in written if phase.begin <= row["at"] <= phase.end]
    seconds = phase.end - phase.begin
    samples = [one for one in observed.samples if phase.begin <= one["at"] <= phase.end]
    sorts = sorted({sort for *_, sort in mine})
    return {
        "name": phase.name,
        "begin": round(phase.begin, 1),
        "seconds": round(seconds, 1),
        "read_ms": {sort: _quantiles([ms for _, ms, _, own in mine if own == sort]) for sort in sorts},
        "reads": len(mine),
        "reads_failed": sum(not 200 <= status < 400 for _, _, status, _ in mine),
        "per_second": {
            name: round((rows[-1][name] - rows[0][name]) / seconds)
            for name in ("offered", "accepted", "refused", "unknown", "published")
            if rows
        },
        "stored_per_second": round((samples[-1]["stored"] - samples[0]["stored"]) / seconds) if samples else 0,
        "waiting_most": _most(samples, "waiting"),
        "memory_most_mib": _most(samples, "memory"),
    }


def _most(samples: Sequence[dict[str, Any]], part: str) -> dict[str, float]:
    names = {name for sample in samples for name in sample[part]}
    found = {name: max(sample[part].get(name, 0) for sample in samples) for name in sorted(names)}
    return {name: value for name, value in found.items() if value}


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{share}": round(float(np.percentile(values, share)), 1) for share in (50, 95, 99)}


def _rates(written: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Events a second over stretches of ten."""
    found = []
    row = written[0]
    for later in written[1:]:
        seconds = later["at"] - row["at"]
        if seconds >= _BUCKET_SECONDS:
            rates = {
                name: round((later[name] - row[name]) / seconds)
                for name in ("offered", "accepted", "refused", "published")
            }
            found.append({"at": round(later["at"], 1), **rates})
            row = later
    return [one for one in found if one["at"] >= 0]


def _buckets(reads: Sequence[tuple[float, float, int, str]]) -> list[dict[str, Any]]:
    """The 99th percentile of each sort over stretches of ten seconds."""
    end = max((due for due, *_ in reads), default=0.0)
    found = []
    for begin in np.arange(0.0, end, _BUCKET_SECONDS):
        mine = [one for one in reads if begin <= one[0] < begin + _BUCKET_SECONDS]
        p99 = {
            sort: _quantiles([ms for _, ms, _, own in mine if own == sort])["p99"] for sort in {own for *_, own in mine}
        }
        found.append(
            {
                "at": float(begin),
                "p99_ms": dict(sorted(p99.items())),
                "failed": sum(not 200 <= s < 400 for _, _, s, _ in mine),
            }
        )
    return found


def _graph(document: dict[str, Any]) -> str:
    def curve(name: str, points: Iterator[Point]) -> Curve:
        return Curve(name, [(at / 60, value) for at, value in points])

    samples, writes, reads = document["samples"], document["writes"], document["reads"]
    roles = sorted(samples[0]["memory"])
    kept = [
        name
        for name in sorted(samples[0]["waiting"])
        if not name.startswith("outbox") and max(one["waiting"].get(name, 0) for one in samples) > 1_000
    ]
    panels = [
        Panel(
            "events a second",
            [curve(n, ((w["at"], w[n]) for w in writes)) for n in ("published", "offered", "accepted", "refused")],
        ),
        Panel(
            "events behind",
            [curve(n, ((s["at"], s["waiting"].get(n, 0)) for s in samples)) for n in kept]
            + [curve("outbox, rows", ((s["at"], s["waiting"]["outbox rows"]) for s in samples))],
        ),
        Panel(
            "oldest in the outbox, s",
            [curve("outbox, seconds", ((s["at"], s["waiting"]["outbox seconds"]) for s in samples))],
        ),
        Panel(
            "memory (PSS), MiB",
            [
                curve(n, ((s["at"], s["memory"][n]) for s in samples if n in s["memory"]))
                for n in roles
                if n in ("api", "sinks", "workers", "materializers", "worker", "database")
            ],
        ),
        Panel(
            "reads, 99th percentile of 10 s, ms",
            [
                curve(n, ((r["at"], r["p99_ms"][n]) for r in reads if n in r["p99_ms"]))
                for n in ("feed", "league", "search")
            ],
        ),
    ]
    phases = [Phase(p["name"], p["begin"] / 60, (p["begin"] + p["seconds"]) / 60) for p in document["phases"]]
    title = (
        f"{document['ordinary_per_second']:,} insights/s, then {document['offered_per_second']:,};"
        f" sustained: {document['sustainable_per_second']:,}"
    )
    return draw(title, panels, phases, "minutes")


def _figures(document: dict[str, Any]) -> list[Figure]:
    found = [figure("sustainable rate", "highwater", "insights/s", [document["sustainable_per_second"]])]
    for phase in document["phases"]:
        name = phase["name"]
        found += [figure(f"{sort} p99", name, "ms", [quantiles["p99"]]) for sort, quantiles in phase["read_ms"].items()]
        found.append(figure("reads failed", name, "reads", [phase["reads_failed"]]))
        found += [figure(what, name, "insights/s", [rate]) for what, rate in phase["per_second"].items()]
        found.append(figure("most behind", name, "events", [phase["waiting_most"].get(SINK, 0)]))
    found.append(figure("problems", "highwater", "problems", [len(document["problems"])]))
    return found
