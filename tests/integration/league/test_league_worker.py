"""The season side of the worker on a real broker: matches in, refreshes and prewarms out, through restarts and lost state."""

from __future__ import annotations

import signal
import uuid
from typing import Any

import pytest

from highwater.schemas.envelope import caused_by, header, make_headers
from tests.integration.agents import CODEC, Answer, Kafka, Worker, partition_of, until

CHANGED, REFRESH, PREWARM = "league.match-changed", "league.refresh-requested", "cache.prewarm-requested"
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


@pytest.fixture
def season(request: pytest.FixtureRequest) -> str:
    """A season of one test alone, named as people do."""
    return f"Ligue 1 / {request.node.name} {uuid.uuid4().hex[:8]}"


def tell(kafka: Kafka, season: str, match_id: str, kickoff: int, revision: int = 1, **more: Any) -> None:
    """Publish a match as the sinks do."""
    event: dict[str, Any] = {
        "match_id": match_id,
        "season": season,
        "changed": ["schedule"],
        "kickoff": kickoff,
        "status": "scheduled",
        "state": "scheduled",
        "home": "home",
        "away": "away",
        "former_teams": [],
        "home_goals": None,
        "away_goals": None,
        "finalized_at": None,
        "revision": revision,
    }
    kafka.send(CHANGED, season, **(event | more))


def refreshes(kafka: Kafka, season: str, reason: str = "match-changed") -> list[Answer]:
    """Requests of a season for one reason."""
    return [answer for answer in kafka.answers(REFRESH, season) if answer.event["reason"] == reason]


def dropped(kafka: Kafka, season: str) -> list[str]:
    """Live pages of a season that ended, once per publication."""
    return [key for answer in refreshes(kafka, season, "match-over") for key in answer.event["dropped"]]


def test_a_change_is_told_with_its_documents(worker: Worker, kafka: Kafka, season: str):
    """A result names the pages of its season, with the event behind it and the time at which the sink published it."""
    told_at = worker.now() - 5_000
    event = {
        "match_id": "m1",
        "season": season,
        "changed": ["result"],
        "kickoff": worker.now() - 2 * HOUR,
        "status": "scheduled",
        "state": "final",
        "home": "Olympique Lyonnais",
        "away": "AS Saint-Étienne",
        "former_teams": [],
        "home_goals": 2,
        "away_goals": 1,
        "finalized_at": worker.now(),
        "revision": 4,
    }
    headers = make_headers(event_id="e", event_type=CHANGED, source="sink", now_ms=told_at, caused_by=None)
    kafka.send_bytes(CHANGED, CODEC.encode(CHANGED, event), key=season.encode(), headers=headers)
    (answer,) = until(lambda: refreshes(kafka, season), "a refresh")
    cause = caused_by(answer.headers)
    assert cause is not None
    assert (cause.topic, cause.partition) == (CHANGED, partition_of(season))
    assert header(answer.headers, "ce_id") == f"{cause}#{REFRESH}#{season}"
    assert answer.partition == partition_of(season)
    assert (answer.event["scope"], answer.event["dropped"], answer.event["planned_at"]) == (season, [], told_at)
    expected = {f"league:table:{season}", "md:m1:live", "public:club:AS Saint-Étienne:matches", "cache:match-window:v1"}
    assert expected <= set(answer.event["keys"])


def test_a_goal_names_no_page_of_results(worker: Worker, kafka: Kafka, season: str):
    """A goal in play rebuilds the live pages and leaves table, schedule and results alone."""
    goal = {"changed": ["score"], "state": "live", "home_goals": 1, "away_goals": 0}
    tell(kafka, season, "m1", worker.now() - HOUR, **goal)
    (answer,) = until(lambda: refreshes(kafka, season), "a refresh")
    assert f"league:stats-live:{season}" in answer.event["keys"]
    assert not [key for key in answer.event["keys"] if key.startswith(("league:table", "league:results", "league:sch"))]


def test_a_window_that_begins_prewarms_its_season_once(worker: Worker, kafka: Kafka, season: str):
    """At 45 minutes before kickoff a round asks once for its season's pages, a later kickoff again; nothing before."""
    kickoff = worker.now() + 60 * MINUTE
    for number in range(5):
        tell(kafka, season, f"m{number}", kickoff)
    tell(kafka, season, "late", kickoff + 2 * HOUR)
    until(lambda: len(refreshes(kafka, season)) == 6, "six refreshes")
    worker.after_ticks(3)
    assert kafka.answers(PREWARM, season) == []
    worker.move_clock(16 * 60)
    (first,) = until(lambda: kafka.answers(PREWARM, season), "a prewarm")
    assert first.event["reason"] == "window-start"
    assert first.event["requested_at"] >= kickoff - 45 * MINUTE
    cause = caused_by(first.headers)
    assert cause is not None
    assert cause.topic == "streams.tick"
    worker.after_ticks(3)
    assert len(kafka.answers(PREWARM, season)) == 1
    worker.move_clock(2 * 3_600)
    until(lambda: len(kafka.answers(PREWARM, season)) == 2, "the prewarm of the later match")
    worker.after_ticks(3)
    assert len(kafka.answers(PREWARM, season)) == 2


def test_a_match_scheduled_within_its_window_is_prewarmed(worker: Worker, kafka: Kafka, season: str):
    """If a match is published ten minutes before kickoff, its season's pages are built at the next tick."""
    worker.after_ticks(1)
    tell(kafka, season, "m1", worker.now() + 10 * MINUTE)
    until(lambda: kafka.answers(PREWARM, season), "a prewarm")


def test_a_live_page_ends_three_hours_after_the_match(worker: Worker, kafka: Kafka, season: str):
    """Three hours after the result the page of the match in play is dropped, once, and no sooner."""
    tell(kafka, season, "m1", worker.now() - 2 * HOUR, changed=["result"], state="final", finalized_at=worker.now())
    until(lambda: refreshes(kafka, season), "a refresh")
    worker.move_clock(3 * 3_600 - 120)
    worker.after_ticks(3)
    assert dropped(kafka, season) == []
    worker.move_clock(121)
    until(lambda: dropped(kafka, season), "the end of the live page")
    worker.after_ticks(3)
    (answer,) = refreshes(kafka, season, "match-over")
    assert (answer.event["dropped"], answer.event["keys"]) == (["md:m1:live"], [])


def test_seasons_of_the_past_are_not_prewarmed(worker: Worker, kafka: Kafka, season: str):
    """Importing matches of years ago prewarms nothing, and their live pages end in a few requests, each once."""
    count = 60
    for number in range(count):
        kickoff = worker.now() - 900 * DAY + number * HOUR
        tell(kafka, season, f"m{number}", kickoff, changed=["result"], state="final", finalized_at=kickoff + 2 * HOUR)
    until(lambda: len(set(dropped(kafka, season))) == count, "all ended")
    worker.after_ticks(3)
    assert len(dropped(kafka, season)) == count
    assert len(refreshes(kafka, season)) == count
    assert kafka.answers(PREWARM, season) == []


def test_what_comes_again_is_told_again_and_moves_nothing_back(worker: Worker, kafka: Kafka, season: str):
    """A redelivered or older change is published to the documents, but the newest revision decides about windows."""
    tomorrow = worker.now() + DAY
    tell(kafka, season, "m1", tomorrow, revision=5)
    tell(kafka, season, "m1", tomorrow, revision=5)
    tell(kafka, season, "m1", worker.now() + 10 * MINUTE, revision=4)
    until(lambda: len(refreshes(kafka, season)) == 3, "three refreshes")
    worker.after_ticks(4)
    assert kafka.answers(PREWARM, season) == []


def test_killed_and_robbed_of_its_state_it_forgets_nothing(worker: Worker, kafka: Kafka, season: str):
    """After SIGKILL and the loss of all local state no window is prewarmed twice and no end is missed or published twice."""
    kickoff = worker.now() + 10 * MINUTE
    tell(kafka, season, "m1", kickoff)
    until(lambda: kafka.answers(PREWARM, season), "a prewarm")
    worker.until_committed(*kafka.answers(PREWARM, season))
    worker.end(signal.SIGKILL)
    worker.lose_state()
    worker.start()
    worker.after_ticks(3)
    assert len(kafka.answers(PREWARM, season)) == 1
    worker.move_clock(6 * 3_600)
    until(lambda: dropped(kafka, season), "the end of the live page")
    worker.until_committed(*refreshes(kafka, season, "match-over"))
    worker.end(signal.SIGKILL)
    worker.lose_state()
    worker.start()
    worker.after_ticks(3)
    assert dropped(kafka, season) == ["md:m1:live"]
    assert len(kafka.answers(PREWARM, season)) == 1


def test_a_window_that_began_while_it_was_down_is_prewarmed(worker: Worker, kafka: Kafka, season: str):
    """A worker that was down at the start of a window prewarms it while the window is open."""
    tell(kafka, season, "m1", worker.now() + 50 * MINUTE)
    until(lambda: refreshes(kafka, season), "a refresh")
    worker.after_ticks(2)
    worker.end(signal.SIGKILL)
    worker.move_clock(30 * 60)
    worker.start()
    until(lambda: kafka.answers(PREWARM, season), "a prewarm")


def test_every_change_is_told_though_the_worker_is_killed(worker: Worker, kafka: Kafka, season: str):
    """Killed in the midst of many changes, it publishes each of them at least once after the next start."""
    count = 400
    kickoff = worker.now() + DAY
    for number in range(count):
        tell(kafka, season, f"m{number}", kickoff)
        if number == count // 2:
            until(lambda: len(refreshes(kafka, season)) > 10, "some refreshes")
            worker.end(signal.SIGKILL)
    worker.start()

    def published() -> bool:
        keys = {key for answer in refreshes(kafka, season) for key in answer.event["keys"]}
        return {f"md:m{number}:live" for number in range(count)} <= keys

    until(published, "a refresh for every match")
