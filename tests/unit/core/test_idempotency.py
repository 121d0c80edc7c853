"""A submission under an `Idempotency-Key` is published once."""

from __future__ import annotations

import pytest

from highwater.api.core.freshness import NotYetError
from highwater.api.core.idempotency import published_once
from highwater.schemas.errors import UnavailableError


class Stored:
    """The submission that PostgreSQL has stored, and the number of reads and publications."""

    def __init__(self, *answers: str | UnavailableError | None) -> None:
        self.answers = list(answers)
        self.published = 0

    async def read(self) -> str | None:
        """The next answer."""
        answer = self.answers.pop(0)
        if isinstance(answer, UnavailableError):
            raise answer
        return answer

    async def publish(self) -> list[str]:
        """One more event."""
        self.published += 1
        return ["t/0/1"]


async def test_without_a_key_nothing_is_read():
    """Its id is a fresh one."""
    stored = Stored()
    assert await published_once(None, stored.read, stored.publish) == (None, ["t/0/1"])


async def test_what_is_stored_under_a_key_is_not_published_again():
    """The caller gets the position of the first one."""
    stored = Stored("first")
    assert await published_once("key", stored.read, stored.publish) == ("first", [])
    assert stored.published == 0


async def test_of_two_at_once_the_stored_one_is_told():
    """Both are published; the first in the log counts."""
    stored = Stored(None, "first")
    assert await published_once("key", stored.read, stored.publish) == ("first", ["t/0/1"])


async def test_with_postgresql_unavailable_the_event_is_published_all_the_same():
    """The sink has the last word."""
    stored = Stored(UnavailableError("away"), UnavailableError("away"))
    assert await published_once("key", stored.read, stored.publish) == (None, ["t/0/1"])


@pytest.mark.parametrize("published", [0, 1])
async def test_a_first_submission_that_cannot_be_read_is_no_202(published: int) -> None:
    """The sink is too far behind to know whether the key stands for another submission: 503, before and after publishing."""
    stored = Stored(*[None] * published, NotYetError())
    with pytest.raises(NotYetError):
        await published_once("key", stored.read, stored.publish)
    assert stored.published == published
