"""The reaction to a batch that could not be stored, by error and number of attempts."""

from __future__ import annotations

import asyncpg
import pytest
from asyncpg.exceptions import PostgresError

from highwater.connectors.kafka.failures import REFUSALS_MAX, Following, after_failure, is_refusal
from highwater.connectors.postgres.pool import AWAY, StatementTimeoutError, converting_to_unavailable, is_of_the_store
from highwater.schemas.errors import InvalidEventError, ModelUnavailableError, UnavailableError

# Codes of SQLSTATE that a statement may be answered with through no fault of its data.
PASSING = (
    "08006", "25006", "25P03", "40001", "40P01", "53100", "53200", "53300", "55P03", "57014", "57P01", "57P02", "57P03", "57P05",
    "58030", "72000",
)  # fmt: skip
# These are not the data's either, and do not pass by themselves.
OURS = ("21000", "25P02", "42601", "42P01", "42703", "54000", "58000", "58P01", "P0001", "XX000", "XX001", "ZZ999")
OF_DATA = ("22001", "22003", "22021", "22P05", "23502", "23503", "23505", "23514")


def answered(sqlstate: str) -> PostgresError:
    """The error that asyncpg makes of an answer of the server."""
    return asyncpg.PostgresError.new({"C": sqlstate, "M": f"as {sqlstate}"})


@pytest.mark.parametrize("sqlstate", PASSING)
@pytest.mark.parametrize("events", [1, 5_000])
def test_what_passes_is_repeated_without_end(sqlstate: str, events: int):
    """A cancelled statement, a full disk, a shutdown: never dead-lettered, and one error for all who wait."""
    assert after_failure(answered(sqlstate), events=events, refusals=REFUSALS_MAX) is Following.REPEAT
    assert after_failure(answered(sqlstate), events=1, refusals=10**6) is Following.REPEAT
    with pytest.raises(UnavailableError), converting_to_unavailable():
        raise answered(sqlstate)


@pytest.mark.parametrize("sqlstate", PASSING)
def test_only_what_may_come_of_its_size_splits_a_batch(sqlstate: str):
    """A batch that is cancelled repeatedly, as by `statement_timeout`, is retried with fewer events; an unavailable service
    does not split it.
    """
    with pytest.raises(UnavailableError) as raised, converting_to_unavailable():
        raise answered(sqlstate)
    is_large = sqlstate in {"57014", "53200"}
    assert is_refusal(raised.value) is is_large
    following = after_failure(raised.value, events=2, refusals=REFUSALS_MAX + 1)
    assert following is (Following.SPLIT if is_large else Following.REPEAT)


@pytest.mark.parametrize("sqlstate", OURS)
def test_a_refused_statement_is_tried_with_fewer_events_and_never_dead_lettered(sqlstate: str):
    """It may be the number of events; of one event it is ours to correct."""
    error = answered(sqlstate)
    assert not isinstance(error, AWAY)
    assert after_failure(error, events=9, refusals=REFUSALS_MAX) is Following.REPEAT
    assert after_failure(error, events=9, refusals=REFUSALS_MAX + 1) is Following.SPLIT
    assert after_failure(error, events=1, refusals=10**6) is Following.REPEAT


@pytest.mark.parametrize(
    "error", [*map(answered, OF_DATA), ZeroDivisionError(), InvalidEventError("r", "m"), KeyError("k")]
)
def test_what_the_data_is_to_blame_for_is_found_and_put_aside(error: Exception):
    """Split until it stands alone, then dead-lettered; a row that another transaction has just written is waited for first."""
    assert not is_of_the_store(error)
    is_conflict = isinstance(error, asyncpg.UniqueViolationError)
    assert after_failure(error, events=2, refusals=1) is (Following.REPEAT if is_conflict else Following.SPLIT)
    assert after_failure(error, events=2, refusals=REFUSALS_MAX + 1) is Following.SPLIT
    assert after_failure(error, events=1, refusals=REFUSALS_MAX + 1) is Following.DEAD_LETTER


@pytest.mark.parametrize("error", [UnavailableError(), ModelUnavailableError(), TimeoutError(), ConnectionResetError()])
def test_what_is_away_is_waited_for(error: Exception):
    """This holds for any service."""
    assert after_failure(error, events=1, refusals=0) is Following.REPEAT


def test_a_statement_without_an_answer_is_tried_with_fewer_events():
    """On a busy machine a large batch would never be stored; waiting for a connection is not about its size."""
    with pytest.raises(UnavailableError) as raised, converting_to_unavailable():
        raise StatementTimeoutError
    assert [after_failure(raised.value, events=2, refusals=count) for count in (1, 2)] == [
        Following.REPEAT, Following.SPLIT,
    ]  # fmt: skip
    assert after_failure(raised.value, events=1, refusals=10**6) is Following.REPEAT
    assert not is_refusal(TimeoutError())


def test_what_the_server_did_not_do_is_said_as_it_is():
    """A server that answers is not called away."""
    with (
        pytest.raises(UnavailableError, match=r"did not carry out a statement \(57014\): as 57014"),
        converting_to_unavailable(),
    ):
        raise answered("57014")
    with pytest.raises(UnavailableError, match="PostgreSQL is unavailable: as 57P01"), converting_to_unavailable():
        raise answered("57P01")
