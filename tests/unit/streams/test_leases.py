"""Leases: when an owner continues, renews and stops, and how members reach equal shares."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded: the same members in every run)

import pytest

from highwater.streams.leases import Lease, plan_shares

LEASE = Lease("3", epoch=7, asked_at=100.0, seconds=10.0)


@pytest.mark.parametrize(
    ("now", "is_held", "is_due"),
    [(100.0, True, False), (103.2, True, False), (103.4, True, True), (108.9, True, True), (109.1, False, True)],
)
def test_an_owner_stops_before_anybody_else_may_begin(now: float, is_held: bool, is_due: bool):
    """It renews after a third of its time, and does not trust the last tenth of it, even if renewals fail for long."""
    assert (is_held, is_due) == (LEASE.is_held(now), LEASE.is_due(now))


def test_the_first_member_takes_all():
    """Nothing waits for a second one."""
    assert plan_shares(4, "a", [], {}) == ([0, 1, 2, 3], [])


def test_a_second_member_waits_for_its_half():
    """It takes nothing that is another's; a member with more than its share releases some, and the free ones are taken."""
    owners = dict.fromkeys(range(4), "a")
    assert plan_shares(4, "b", ["a", "b"], owners) == ([], [])
    assert plan_shares(4, "a", ["a", "b"], owners) == ([], [2, 3])
    assert plan_shares(4, "b", ["a", "b"], {0: "a", 1: "a"}) == ([2, 3], [])


@pytest.mark.parametrize("seed", range(50))
def test_members_that_come_and_go_come_to_equal_shares(seed: int):
    """After a few checks every item has an owner, no member has more than its share, and nothing moves any more."""
    dice = Random(seed)
    owners: dict[int, str] = {}
    living: set[str] = set()
    for _ in range(6):
        living = set(dice.sample("abcde", dice.randint(1, 5)))
        owners = {number: owner for number, owner in owners.items() if owner in living}
        for _look in range(2):
            for me in dice.sample(sorted(living), len(living)):
                shares = plan_shares(16, me, living, owners)
                assert not set(shares.take) & set(owners), "only what is free is taken"
                assert {me} >= {owners[number] for number in shares.release}
                owners = {number: owner for number, owner in owners.items() if number not in shares.release}
                owners |= dict.fromkeys(shares.take, me)
        assert set(range(16)) == set(owners)
        held = [list(owners.values()).count(me) for me in living]
        assert max(held) <= -(-16 // len(living))
        assert [([], [])] * len(living) == [plan_shares(16, me, living, owners) for me in living]
