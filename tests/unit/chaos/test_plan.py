"""Plans of faults: a seed stands for the same faults wherever it is asked, and a long plan has every fault there is."""

from __future__ import annotations

import os
import subprocess
import sys

from highwater.api.chaos.load import comes_to, round_of
from highwater.api.chaos.plan import RECOVERY_SECONDS, REGIONS, Fault, Kind, deck, plan_faults
from highwater.schemas.topics import TOPICS

WHOLE_DECK_SECONDS = 3600


def test_a_seed_is_the_same_faults_in_every_process():
    """The plan does not depend on Python's string hashing, so a failed seed can be repeated."""
    program = "from highwater.api.chaos.plan import plan_faults; print([str(f) for f in plan_faults(7, 120)])"
    for hashed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hashed}
        said = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert said.stdout.strip() == str([str(fault) for fault in plan_faults(7, 120)])


def test_seeds_differ_and_a_longer_plan_goes_on_where_the_shorter_ended():
    """Another seed is another order; more minutes add faults at the end."""
    assert plan_faults(1, 300) != plan_faults(2, 300)
    short, long = plan_faults(1, 60), plan_faults(1, 600)
    assert short == long[: len(short)]
    assert sum(fault.seconds + RECOVERY_SECONDS for fault in short) <= 60


def test_a_long_plan_has_every_fault_once_before_any_comes_twice():
    """Also the last kind that was added. In the second turn it also loses records, which `verify` cannot compare any more."""
    planned = [(fault.kind, fault.target) for fault in plan_faults(3, 2 * WHOLE_DECK_SECONDS)]
    turns = planned[: len(deck(0))], planned[len(deck(0)) : len(deck(0)) + len(deck(1))]
    assert [sorted(turn) for turn in turns] == [sorted(deck(0)), sorted(deck(1))]
    assert set(deck(1)) - set(deck(0)) == {(Kind.UNSYNCED, "kafka")}
    assert {kind for kind, _ in deck(1)} == set(Kind) - {Kind.STALE_STANDBY, Kind.ELECTION}


def test_a_fault_with_an_amount_has_one():
    """In every turn, and within its range: PostgreSQL refuses a time zone that does not exist."""
    planned = plan_faults(3, 3 * WHOLE_DECK_SECONDS)
    kinds = (Kind.CLOCK, Kind.REWIND, Kind.BUSY, Kind.RESET, Kind.REGION)
    assert all(fault.amount for fault in planned if fault.kind in kinds)
    assert {fault.kind for fault in planned} >= set(kinds)
    regions = plan_faults(3, 3600, kinds=[Kind.REGION])
    assert {fault.amount for fault in regions if fault.target == "worker"} == {*range(1, len(REGIONS) + 1)}
    assert max(fault.amount for fault in regions if fault.target == "database") == len(REGIONS) - 1
    assert str(Fault(Kind.REGION, "api", 0, len(REGIONS))) == "time-zone api Nowhere/Here"


def test_a_machine_is_busy_for_ten_minutes_in_a_long_run():
    """In the first turn of the faults it is for seconds, so that a short run has it too."""
    seconds = [fault.seconds for fault in plan_faults(3, 3 * WHOLE_DECK_SECONDS) if fault.kind is Kind.BUSY]
    assert 10 <= seconds[0] <= 30
    assert len(seconds) > 1
    assert set(seconds[1:]) == {600}


def test_kinds_that_are_named_are_the_only_ones_and_there_is_one_fault_at_least():
    """Also in no time."""
    assert {fault.kind for fault in plan_faults(1, 120, kinds=[Kind.CUT])} == {Kind.CUT}
    for kind in (Kind.STALE_STANDBY, Kind.ELECTION):
        assert {fault.kind for fault in plan_faults(1, 120, kinds=[kind])} == {kind}
    assert {fault.kind for fault in plan_faults(1, 120, kinds=[Kind.UNSYNCED])} == {
        Kind.UNSYNCED
    }  # in the first turn, too
    assert len(plan_faults(1, 0.001)) == 1


def test_the_load_has_events_of_every_subsystem_each_once():
    """By what they are called, in any number of rounds; every topic is one that anybody may write."""
    events = [event for number in range(16) for event in round_of(number, 0)]
    assert {name.split(".")[0] for name, _ in events} == {"feeds", "league", "queries", "jobs", "chunks"}
    assert all(TOPICS[name].outsider for name, _ in events)
    keys = [(name, str(sorted(event.items()))) for name, event in events]
    assert len(set(keys)) == len(keys)
    assert comes_to(16)["insights"] == 16 * 12
    assert comes_to(16)["results"] == 8
