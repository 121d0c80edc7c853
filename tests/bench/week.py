"""A week of a steady load in minutes, by the product's clock: what grows, of memory, of tables and of keys.

Every virtual hour the clock is moved by 3,600 s in three steps, and the same number of events of every subsystem is sent by
the same readers, organizations and sources; then memory (PSS) of each role, the rows of every table, keys of Redis and the
worker's tables on disk are measured. Records of events (insights, runs, jobs, the numbers of usage) grow with it, and
`RECORDS` has the reason of each. Everything else has to become constant: it may hold no more in the last two days than in the
two before, apart from the variation of a sample. The window is two days, so that the removal of older data is seen.

Time of the machine does not pass faster: what ends by that (an expiry in Redis, a lease) is counted apart, as `expiring` keys, or
ends within minutes. The brokers' clock is not moved either, so retention of the log is not seen here.

    highwater bench week --minutes 15        writes docs/lasting/week.json and week.svg
"""

from __future__ import annotations

import itertools
import json
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from highwater.api.command.publishing import EventPublisher, Publisher
from highwater.schemas.json_events import event_from_json
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import ProductClock
from highwater.streams.settings import read_settings
from tests import ROOT
from tests.bench.data import insights
from tests.bench.figures import Figure, figure
from tests.bench.graph import Curve, Panel, Phase, draw
from tests.bench.league_stack import league_product
from tests.bench.watching import folder_mib, memory_mib, redis_keys, rows
from tests.product import Product

MINUTES = 15.0
HOURS = 7 * 24
OUT = ROOT / "docs" / "lasting"
STEPS = 3
WINDOW_DAYS = "2"
# An hour's load: a busy small installation, on two cores in seconds.
INSIGHTS, CHUNKS, READERS, SOURCES = 60, 6, 6, 12
_IDS = uuid.UUID("9d0f6b2e-2f6e-4b55-8f8c-8f2a4d3c9a01")
# From the fourth day on everything that is to come to a level has: two windows and a day.
LEVEL_HOURS = 48
# What samples of a level differ by: rows of work in progress, and memory by what the allocator keeps.
ROWS_SLACK, ROWS_SHARE = 200, 0.10
MEMORY_SLACK_MIB, MEMORY_SHARE = 6.0, 0.05
# Samples that are kept in the file: every fourth hour.
KEPT_EVERY = 4

# Tables that hold what happened, which is kept: they grow with the load, and no faster.
RECORDS: Mapping[str, str] = {
    "insights": "the events of channels, kept for good",
    "pipeline_runs": "queries and their answers",
    "raw_logs": "what was asked and answered",
    "lsm_storage": "the memory of a user's queries",
    "run_events": "the timeline of each query",
    "llm_calls": "each paid call of a model, by which no stage asks twice",
    "jobs": "what was asked for and became of it",
    "presentations": "decks",
    "usage_entries": "what organizations are charged for",
    "league_matches": "matches",
    "league_votes": "what readers voted",
    "league_vote_counts": "votes by match",
    "chunk_ingests": "ingests and what became of them",
    "surrogate_keys": "which documents hold which insight, while the document is kept",
    "chunks_archive": "chunks that left",
    "cluster_history": "the changes of the last 200 versions of each user's clusters; a week has fewer",
}


def run(runs: int = 1, *, minutes: float = MINUTES) -> list[Figure]:
    """The figures of one run; `runs` is ignored, since one takes a quarter of an hour."""
    del runs
    with league_product(
        keep=("HIGHWATER_CLOCK_FILE", "HIGHWATER_TICK_SECONDS"), HIGHWATER_WINDOW_DAYS=WINDOW_DAYS
    ) as product:
        week = Week(product)
        week.begin()
        samples = [week.hour(number, minutes * 60 / HOURS) for number in range(HOURS)]
        restarts = {part["name"]: part["restarts"] for part in product.status()["parts"] if part.get("restarts")}
    document: dict[str, Any] = {
        "hours": HOURS, "minutes": minutes, "window_days": float(WINDOW_DAYS), "restarts": restarts,
        "levels": levels(samples), "samples": samples[KEPT_EVERY - 1 :: KEPT_EVERY],
    }  # fmt: skip
    document["grows"] = sorted(name for name, one in document["levels"].items() if one["grows"])
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "week.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
    (OUT / "week.svg").write_text(_graph(samples), encoding="utf-8")
    return _figures(document)


class Week:
    """The load of one week on a product."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self._lines = itertools.cycle(insights())
        self._channels = sorted({line["channel_id"] for line in insights()})
        self._numbers = itertools.count()
        self._clock = ProductClock(product.clock_file)
        self._codec = product.codec()
        self._publisher = Publisher(read_settings(product.environment).kafka_client())

    def begin(self) -> None:
        """Readers, and what they follow."""
        for number in range(READERS):
            self._product.subscribe(f"reader-{number}", self._channels)

    def hour(self, number: int, seconds: float) -> dict[str, Any]:
        """Let an hour pass in this many seconds; return the figures at its end."""
        began = time.monotonic()
        for step in range(STEPS):
            self._send(number, step)
            self._move_clock((number * STEPS + step + 1) * 3_600 // STEPS)
            due = began + seconds * (step + 1) / STEPS
            time.sleep(max(0.0, due - time.monotonic()))
        sample = {
            "hour": number + 1,
            "memory": memory_mib(self._product),
            "rows": rows(self._product),
            "keys": redis_keys(self._product),
            "disk": {"tables of the worker": folder_mib(self._product.data_dir / "faust")},
        }
        print(json.dumps(sample), file=sys.stderr, flush=True)
        return sample

    def _move_clock(self, offset_seconds: int) -> None:
        """Without a wait until all have read it: processes of a machine under load read it at times that differ, too."""
        fresh = self._product.clock_file.with_suffix(".new")
        fresh.write_text(str(offset_seconds), encoding="ascii")
        fresh.replace(self._product.clock_file)

    def _publish(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        topic = TOPICS[name]
        hand_over = EventPublisher(topic, self._publisher, self._codec, self._clock)
        for row in rows:
            hand_over(event_from_json(name, dict(row)), topic.key_of(row))

    def _send(self, hour: int, step: int) -> None:
        now_ms = self._clock()
        taken = itertools.islice(self._lines, INSIGHTS // STEPS)
        fresh = [{**line, "insight_id": f"week-{next(self._numbers)}", "ts": now_ms} for line in taken]
        self._publish("feeds.insight-ingested", fresh)
        reader = f"reader-{(hour + step) % READERS}"
        if step == 0:
            self._products_of_an_hour(hour, now_ms)
        self._publisher.flush()
        for path in self._pages(reader, hour):
            self._product.http.get(path)
        self._product.http.post(f"/api/users/{reader}/activity", json={})

    def _pages(self, reader: str, hour: int) -> Iterator[str]:
        yield f"/api/users/{reader}/feed"
        yield f"/api/users/{reader}/clusters"
        yield f"/api/users/{reader}/pending"
        yield f"/api/league/week-{hour // 24 % 2}/table"
        yield "/api/matches/live"
        yield "/api/chunks/search?ns=week&q=broker"

    def _products_of_an_hour(self, hour: int, now_ms: int) -> None:
        """A match with its result and votes, a query, a deck, an ingest that replaces a source."""
        product, match = self._product, f"week-{hour}"
        season = f"week-{hour // 24 % 2}"
        self._publish(
            "league.match-scheduled",
            [
                {"match_id": match, "season": season, "round": "1", "kickoff": now_ms + 1_800_000, "home": f"Home {hour % 10}",
                 "away": f"Away {hour % 10}", "time_unknown": False, "status": "scheduled"}
            ],
        )  # fmt: skip
        self._publish(
            "league.vote-cast",
            [
                {"match_id": match, "user_id": f"reader-{number}", "choice": "home", "ts": now_ms}
                for number in range(READERS)
            ],
        )
        if hour:
            self._publish(
                "league.match-finalized",
                [{"match_id": f"week-{hour - 1}", "season": f"week-{(hour - 1) // 24 % 2}", "home_goals": hour % 4,
                  "away_goals": 1, "finalized_at": now_ms}],
            )  # fmt: skip
        asker = str(uuid.uuid5(_IDS, f"asker-{hour % READERS}"))
        self._publish(
            "queries.query-submitted",
            [{"request_id": str(uuid.uuid5(_IDS, f"query-{hour}")), "user_id": asker, "query": f"What changed in part {hour}?",
              "ts": now_ms}],
        )  # fmt: skip
        if hour % 6 == 0:
            args = json.dumps({"query": f"What is part {hour}?", "slides": 2, "source_document_ids": []})
            self._publish(
                "jobs.job-submitted",
                [{"job_id": str(uuid.uuid5(_IDS, f"job-{hour}")), "kind": "generation", "user_id": "reader-0",
                  "organization_id": f"organization-{hour // 24}", "ts": now_ms, "args": args}],
            )  # fmt: skip
        chunks = [
            {"chunk_no": place, "content": f"page {place} of hour {hour}: consumer broker"} for place in range(CHUNKS)
        ]
        body = {"ns": "week", "slot": "main", "source_id": f"source-{hour % SOURCES}", "chunks": chunks, "full": True}
        answer = product.http.post("/api/chunks/ingest", json=body)
        assert answer.status_code == 202, answer.text


def levels(samples: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each measure the medians of days one, three, five and seven, and whether it grows beyond what samples vary by.

    A record of what happened grows when it does so faster than before: its last two days more than the two before by a tenth.
    """
    found: dict[str, dict[str, Any]] = {}
    for part in ("memory", "rows", "keys", "disk"):
        for name in sorted({name for sample in samples for name in sample[part]}):
            series = [float(sample[part].get(name, 0)) for sample in samples]
            if not any(series):
                continue
            days = {f"day {day}": median(series[(day - 1) * 24 : day * 24]) for day in (1, 3, 5, 7)}
            is_record = part == "rows" and name in RECORDS
            found[f"{part} {name}"] = {
                **days,
                "grows": _grows(part, series, is_record=is_record),
                **({"record": RECORDS[name]} if is_record else {}),
            }
    return found


def median(values: Sequence[float]) -> float:
    """Of what samples there are; 0 of none."""
    return sorted(values)[len(values) // 2] if values else 0.0


def _grows(part: str, series: Sequence[float], *, is_record: bool) -> bool:
    if len(series) < 3 * LEVEL_HOURS:
        return False  # nothing is known of so short a time
    before, last = series[-2 * LEVEL_HOURS : -LEVEL_HOURS], series[-LEVEL_HOURS:]
    slack, share = (MEMORY_SLACK_MIB, MEMORY_SHARE) if part in ("memory", "disk") else (ROWS_SLACK, ROWS_SHARE)
    if is_record:
        return last[-1] - last[0] > (before[-1] - before[0]) * (1 + share) + slack
    return median(last) - median(before) > slack + share * median(before)


def table(figures: Sequence[Figure]) -> str:
    """The measures by day."""
    lines = [f"{'':<44} {'day 1':>10} {'day 3':>10} {'day 5':>10} {'day 7':>10}"]
    by_name: dict[str, dict[str, float]] = {}
    for one in figures:
        by_name.setdefault(one["name"], {})[one["system"]] = one["value"]
    for name, days in by_name.items():
        values = " ".join(f"{days.get(f'day {day}', 0):>10,.0f}" for day in (1, 3, 5, 7))
        lines.append(f"{name:<44} {values}{'  grows' if days.get('grows') else ''}")
    return "\n".join(lines)


def _figures(document: Mapping[str, Any]) -> list[Figure]:
    return [
        figure(name, of, "MiB" if name.startswith(("memory", "disk")) else "count", [float(one[of])])
        for name, one in document["levels"].items()
        for of in ("day 1", "day 3", "day 5", "day 7", "grows")
    ]


def _graph(samples: Sequence[Mapping[str, Any]]) -> str:
    def curves(part: str, names: Sequence[str]) -> list[Curve]:
        return [Curve(name, [(s["hour"] / 24, s[part].get(name, 0)) for s in samples]) for name in names]

    roles = [name for name in sorted(samples[-1]["memory"]) if name not in ("kafka", "schema_registry")]
    kept = sorted((n for n in samples[-1]["rows"] if n not in RECORDS), key=lambda n: -samples[-1]["rows"][n])[:7]
    panels = [
        Panel("memory (PSS), MiB", curves("memory", roles[:7])),
        Panel("rows that come to a level", curves("rows", kept)),
        Panel("keys of Redis", curves("keys", sorted(samples[-1]["keys"]))),
    ]
    days = [Phase(f"day {day + 1}", day, day + 1) for day in range(-(-samples[-1]["hour"] // 24))]
    return draw("A week by the product's clock", panels, days, "days")
