"""Slots shared between organizations: no organization waits behind another's queue."""

from __future__ import annotations

from highwater.streams.identity.sharing import InProgress, Waiting, share_out


def queue(**jobs: int) -> list[Waiting]:
    """N fresh jobs of each organization, with the organizations in the given order."""
    return [Waiting(f"{name}{number}", name, is_begun=False) for name, count in jobs.items() for number in range(count)]


def test_forty_jobs_of_one_do_not_hold_the_one_of_another():
    """The second slot is the other's, although forty jobs came before it."""
    assert share_out(queue(a=40, b=1), {}, slots=3, begun_max=40) == ["a0", "b0", "a1"]


def test_who_holds_fewer_comes_first():
    """A released slot goes to the organization with the fewest, in any of the processes."""
    held = {"a": InProgress(16, 16), "b": InProgress(1, 1)}
    assert share_out(queue(a=24, b=1, c=2), held, slots=4, begun_max=40) == ["c0", "b0", "c1", "a0"]


def test_an_organization_has_no_more_in_progress_than_the_cap():
    """Slots stay free for others; postponed work counts too."""
    assert share_out(queue(a=40), {}, slots=16, begun_max=12) == [f"a{number}" for number in range(12)]
    assert share_out(queue(a=40, b=1), {"a": InProgress(3, 12)}, slots=16, begun_max=12) == ["b0"]


def test_who_is_not_capped_has_any_number_in_progress_and_no_turn_more():
    """The operator's own queries fill free slots, and never make others wait."""
    held = {"": InProgress(20, 30)}
    given = share_out(queue(**{"": 3, "a": 2}), held, slots=4, begun_max=1, uncapped=("",))
    assert given == ["a0", "0", "1", "2"]


def test_what_was_begun_goes_on_first_and_above_the_cap():
    """It counts already; a job that waits for its next attempt never waits for the cap as well."""
    aside = [Waiting("aside", "a", is_begun=True)]
    assert share_out([*queue(a=2), *aside], {"a": InProgress(0, 1)}, slots=3, begun_max=1) == ["aside"]
    assert share_out([*queue(a=2), *aside], {"a": InProgress(0, 1)}, slots=3, begun_max=2) == ["aside", "a0"]


def test_what_waits_for_a_person_takes_nobodys_place():
    """An organization whose twelve jobs wait for approval begins as many others as without them; those at a step count."""
    assert share_out(queue(a=3), {"a": InProgress(0, 12, 12)}, slots=3, begun_max=2) == ["a0", "a1"]
    assert share_out(queue(a=3), {"a": InProgress(1, 13, 12)}, slots=3, begun_max=2) == ["a0"]


def test_nothing_waits_or_nothing_is_free():
    """Nothing is given."""
    assert share_out([], {"a": InProgress(1, 1)}, slots=3, begun_max=1) == []
    assert share_out(queue(a=1), {}, slots=0, begun_max=1) == []
