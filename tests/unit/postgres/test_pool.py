"""Which errors of PostgreSQL's client mean that the server is unavailable, and which are caused by the stored data."""

from __future__ import annotations

import asyncpg
import pytest

from highwater.connectors.postgres.pool import converting_to_unavailable, is_unavailable
from highwater.schemas.errors import AccessRefusedError, UnavailableError


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError("reset by peer"),
        asyncpg.InterfaceError("connection is closed"),
        # Seen when all connections were terminated under load: good events were dead-lettered for it, and roles ended.
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        RuntimeError(
            "unable to perform operation on <TCPTransport closed=True reading=False 0x1>; the handler is closed"
        ),
        *(
            asyncpg.PostgresError.new({"C": sqlstate, "M": "said"})
            for sqlstate in (
                "08003",
                "08006",
                "25006",
                "25P03",
                "53100",
                "53200",
                "53300",
                "57014",
                "57P01",
                "57P02",
                "57P03",
                "58030",
            )
        ),
    ],
    ids=lambda error: getattr(error, "sqlstate", None) or type(error).__name__,
)
def test_a_server_that_is_away_is_waited_for(error: Exception) -> None:
    """Each kind is an `UnavailableError`, whose text is never empty."""
    assert is_unavailable(error)
    sqlstate = getattr(error, "sqlstate", "")
    is_answered = sqlstate in {"25006", "53100", "53200", "57014", "58030"}  # by a server that keeps running
    said = (
        rf"PostgreSQL did not carry out a statement \({sqlstate}\): .+"
        if is_answered
        else r"PostgreSQL is unavailable: .+"
    )
    with pytest.raises(UnavailableError, match=said), converting_to_unavailable():
        raise error


@pytest.mark.parametrize("sqlstate", ["22003", "22P02", "23505", "23514", "42P01", "42703"])
def test_a_fault_of_the_statement_stays_one(sqlstate: str) -> None:
    """An error that waiting cannot correct is raised unchanged."""
    error = asyncpg.PostgresError.new({"C": sqlstate, "M": "said"})
    assert not is_unavailable(error)
    with pytest.raises(asyncpg.PostgresError), converting_to_unavailable():
        raise error


@pytest.mark.parametrize("sqlstate", ["28P01", "28000", "3D000"])
def test_a_wrong_address_is_refused(sqlstate: str) -> None:
    """A wrong password, user or database: what runs waits until it is corrected, what starts ends and names the setting."""
    with pytest.raises(AccessRefusedError, match="DATABASE_URL is refused: said"), converting_to_unavailable():
        raise asyncpg.PostgresError.new({"C": sqlstate, "M": "said"})


def test_another_runtime_error_is_none_of_them() -> None:
    """A fault of the program is not waited for."""
    assert not is_unavailable(RuntimeError("a set changed size during iteration"))
