"""Which records of the log prove that a database went back, and which do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from highwater.schemas.positions import Position
from highwater.streams.lost_writes import RECORDS_MAX, Published, Stored, find_lost_write, plan_starts
from highwater.streams.relay_epochs import Stamp

AT = Position("cache.version-bumped", 1, 7)
CAUSE = Position("feeds.insight-ingested", 3, 41)
STORED = Stored(
    outbox_id=100,
    version_floor=9,
    relay_epochs={4: 50},
    next={CAUSE[:2]: 42},
    versions={"feed:ada": 5},
)
# What a record of a healthy database may say at most.
KNOWN = Published(AT, outbox_id=100, stamp=Stamp(4, 50), cause=CAUSE, version=("feed:ada", 5))


def test_a_database_that_has_every_number_of_the_log_lost_nothing():
    """Rows may be published that are still in the outbox, and a record may have no numbers."""
    assert find_lost_write(STORED, [KNOWN, Published(AT), replace(KNOWN, outbox_id=1, version=("feed:ada", 4))]) is None


@pytest.mark.parametrize(
    ("published", "proof"),
    [
        (replace(KNOWN, outbox_id=101), "row 101 of the outbox, the database assigned 100 last"),
        (replace(KNOWN, stamp=Stamp(4, 51)), "epoch 51 of the relay of shard 4, the database knows 50"),
        (replace(KNOWN, stamp=Stamp(5, 1)), "epoch 1 of the relay of shard 5, the database knows 0"),
        (replace(KNOWN, version=("feed:ada", 6)), "version 6 of feed:ada, the database knows 5"),
        (replace(KNOWN, version=("feed:bob", 10)), "version 10 of feed:bob, the database knows 9"),
        (
            replace(KNOWN, cause=CAUSE._replace(offset=42)),
            f"an effect of {CAUSE.topic}/3/42, which no consumer has stored",
        ),
    ],
)
def test_one_number_that_the_database_lacks_is_a_proof(published: Published, proof: str):
    """Each kind of number alone, after records that prove nothing."""
    assert find_lost_write(STORED, [KNOWN, published]) == f"{AT} in the log has {proof}"


def test_what_the_database_cannot_know_proves_nothing():
    """A cause in a topic that no group reads, one that an agent read, and the version of a resource that was erased."""
    other = Position("feeds.unread", 0, 1_000)
    assert find_lost_write(STORED, [replace(KNOWN, cause=other, version=("feed:erased", 9))]) is None
    by_an_agent = Published(AT, cause=CAUSE._replace(offset=1_000))
    assert find_lost_write(STORED, [by_an_agent]) is None


def test_only_records_after_the_stored_positions_are_compared():
    """From the position, within the log and its newest records; a partition that no group reads is left out."""
    ranges = {("a", 0): (0, 50), ("b", 0): (20, 50), ("c", 0): (0, 5_000), ("d", 0): (0, 50), ("e", 0): (0, 50)}
    next_ = {("a", 0): 30, ("b", 0): 10, ("c", 0): 1, ("d", 0): 90}
    assert plan_starts(next_, ranges) == {
        ("a", 0): 30,
        ("b", 0): 20,
        ("c", 0): 5_000 - RECORDS_MAX,
        ("d", 0): 50,
        ("e", 0): 50,
    }
