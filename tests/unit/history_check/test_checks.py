"""The checks of histories: a correct history has no violation; one planted violation of each kind is found, with its proof."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from highwater.api.history_check.checks import CHECKS, check_history
from highwater.api.history_check.folds import VIOLATIONS_KEPT
from highwater.api.history_check.history import Action, with_moved
from tests.unit.history_check.story import CHANNEL, OTHER, SEASON, Story, insight

INGESTED, RETRACTED = "feeds.insight-ingested/0", "feeds.insight-retracted/0"


def correct() -> Story:
    """A history with every kind of operation, repeats, refusals, lost answers and reads beside each other; all of it allowed."""
    story = Story()
    story.page(0, status=404)
    story.head(0, status=404, is_final=False)
    for number in range(4):
        story.write(number, offset=number)
    story.write(1, offset=4)  # a repeat
    story.write(4, offset=None)  # stored, though it was not answered
    story.write(5, offset=None)  # and one that is not
    story.read(0, 1, offset=0, named=f"{INGESTED}/0")
    story.read(1, 2, offset=1)
    story.read(2, None, status=503, named=f"{INGESTED}/2")
    story.read(3, None, status=410, named=f"{INGESTED}/3", problem="position-lost")
    story.retract(1, status=503)
    story.read(1, None, status=410, named=f"{INGESTED}/1", problem="position-lost")  # not the retraction
    story.read(3, 4, offset=3)
    story.head(5, is_final=False, named=f"{INGESTED}/4")
    story.page(1)
    story.page(2, client="b", api=OTHER)
    story.page(2, status=304, condition='W/"page-2"')
    story.page(1, is_stale=True)
    story.subscribe("c0 mark-1", offset=0)
    story.subscriptions("c0 mark-1", named="feeds.subscriptions-replaced/0/0")
    story.subscribe("c0 mark-2", offset=None)
    story.subscriptions("c0 mark-2", named="feeds.subscriptions-replaced/0/0")
    story.subscribe("c0 mark-3", offset=2)
    story.feed(1, 0, 1, 2)
    story.retract(2)
    story.feed(1, 0, 1, 2)  # a plain read, at once
    story.read(2, None, status=410, named=f"{RETRACTED}/0")
    story.feed(2, 0, 1, named=f"{RETRACTED}/0")
    for request in ("r1", "r1", "r2"):
        story.query(request, request)
    finals(story)
    return story


def finals(story: Story) -> None:
    """The final reads of that history."""
    story.head(5)
    story.read(0, 1, offset=0, is_final=True)
    story.read(1, 2, offset=1, is_final=True)
    story.read(2, None, status=410, is_final=True)
    story.read(3, 4, offset=3, is_final=True)
    story.read(4, 5, offset=5, is_final=True)
    story.read(5, None, status=404, is_final=True)
    story.queries("r2", "r1")


def test_a_correct_history_has_no_violation():
    """Refused and lost writes may be stored or not; a stale answer may be old; a read at a position that is gone fails; a plain
    read may show a retracted insight for two seconds; and every check has compared something.
    """
    verdict = correct().verdict()
    assert [str(one) for one in verdict.violations] == []
    assert {name: count for name, count in verdict.compared.items() if not count} == {}
    assert set(verdict.compared) == {check.name for check in CHECKS}
    assert verdict.operations["refused"] == 2
    assert verdict.operations["unanswered"] == 3


def test_records_that_a_repair_has_moved_are_the_same_records():
    """The new positions are those of the writes, and a record that is gone is still missing."""
    story = Story()
    for number in range(4):
        story.write(number, offset=number)
    story.read(2, 3, offset=2, version=1, etag='W/"2"', body_hash="before")
    for number, offset in ((0, 0), (1, 1), (2, 10), (3, 11)):
        tag = f'W/"{offset}"'
        story.read(number, number + 1, offset=offset, version=1, etag=tag, body_hash=f"at {offset}", is_final=True)
    story.head(4)
    moved = {f"{INGESTED}/2": f"{INGESTED}/10", f"{INGESTED}/3": f"{INGESTED}/11"}
    assert story.verdict().violations
    assert [str(one) for one in check_history(with_moved(story.events, moved)).violations] == []
    story.write(4, offset=4)
    story.read(4, None, status=404, is_final=True)
    [violation] = check_history(with_moved(story.events, moved)).violations
    assert "was acknowledged and is not stored" in str(violation)


def lost(story: Story) -> None:
    """An acknowledged insight is not stored at the end."""
    story.write(6, offset=6)
    story.read(6, None, status=404, is_final=True)


def invented(story: Story) -> None:
    """An insight is stored that no client wrote."""
    story.read(9, 6, offset=9)


def twice(story: Story) -> None:
    """A repeat was stored as a second insight: the channel counts one more than there are."""
    story.head(6)


def changed_text(story: Story) -> None:
    """An insight has another text than its write had."""
    content = {"seq": 1, "text": "text 7", "position": f"{INGESTED}/0"}
    story.read(0, 1, content=content, etag='W/"other"', version=2, body_hash="other")


def retracted_by_nobody(story: Story) -> None:
    """An insight counts as retracted that no client retracted."""
    story.read(3, None, status=410)


def conflict(story: Story) -> None:
    """A repeat with the same content is called a conflict."""
    story.write(1, offset=7, content={"conflicts": [f"{INGESTED}/7"]})


def foreign_position(story: Story) -> None:
    """An insight is stored from a position that no write of it was given."""
    content = {"seq": 1, "text": "text 0", "position": f"{INGESTED}/77"}
    story.read(0, 1, content=content, etag='W/"other"', version=2, body_hash="other")


def moved(story: Story) -> None:
    """An insight has another seq than before."""
    story.read(3, 3, offset=3, etag='W/"other"', version=2)


def same_seq(story: Story) -> None:
    """Two insights have the same seq."""
    story.write(6, offset=6)
    story.read(6, 5, offset=6)


def against_the_log(story: Story) -> None:
    """Of two insights of a partition the later one has the lower seq."""
    story.write(6, offset=8)
    story.write(7, offset=7, at=INGESTED)
    story.read(6, 6, offset=8)
    story.read(7, 7, offset=7)
    story.head(7)


def beyond_the_head(story: Story) -> None:
    """A channel ends before one of its insights."""
    story.write(6, offset=6)
    story.read(6, 6, offset=6)


def two_requests(story: Story) -> None:
    """A repeat under an idempotency key is a second request."""
    story.query("r1", "r3")


def lost_request(story: Story) -> None:
    """An acknowledged query is not in its user's list."""
    story.query("r3", "r3")
    story.queries("r1", "r2")


def listed_twice(story: Story) -> None:
    """A query is in its user's list twice."""
    story.queries("r1", "r2", "r2")


def older_in_the_session(story: Story) -> None:
    """A session reads an older version than it has read before."""
    story.page(3)
    story.page(2)


def older_elsewhere(story: Story) -> None:
    """Another API process serves an older version after a newer one was read."""
    story.page(3)
    story.page(2, client="b", api=OTHER)


def absent_again(story: Story) -> None:
    """A page is absent after it was read."""
    story.page(0, status=404, client="c")


def readable_again(story: Story) -> None:
    """An insight is stored after it was retracted."""
    story.read(2, 3, offset=2, client="b")


def two_bodies(story: Story) -> None:
    """An ETag has two bodies."""
    story.page(2, body="another", client="b")


def two_bodies_of_an_encoding(story: Story) -> None:
    """A strong ETag has two bodies in one encoding; of two encodings it may."""
    story.page(2, tag='"strong"', encoding="br", client="b")
    story.page(2, tag='"strong"', encoding="gzip", client="b")
    story.page(3, tag='"strong"', encoding="br", client="b")


def two_contents(story: Story) -> None:
    """A version has two contents, each with an ETag of its own."""
    story.page(2, tag='W/"page-2-again"', body="another", client="b")


def old_tag(story: Story) -> None:
    """A 304 confirms an ETag after a newer one was read."""
    story.page(3)
    story.page(3, status=304, tag='W/"page-2"', condition='W/"page-2"', client="b")


def other_tag(story: Story) -> None:
    """A 304 names an ETag that the condition does not."""
    story.page(2, status=304, condition='W/"page-1"')


def without_condition(story: Story) -> None:
    """A 304 answers a request without a condition."""
    story.page(2, status=304)


def not_contained(story: Story) -> None:
    """A read that names the position of an insight answers 404."""
    story.write(6, offset=6)
    story.read(6, None, status=404, named=f"{INGESTED}/6")


def not_counted(story: Story) -> None:
    """The head of a channel at the last position of a session counts fewer insights than the session wrote."""
    story.write(6, offset=6)
    story.head(4, is_final=False, named=f"{INGESTED}/6", client="a")


def old_subscriptions(story: Story) -> None:
    """Subscriptions at the position of a write are those of an earlier one."""
    story.subscriptions("c0 mark-1", named="feeds.subscriptions-replaced/0/2")


def not_retracted(story: Story) -> None:
    """A read at the position of a retraction shows the insight."""
    story.retract(3, offset=1)
    story.read(3, 4, offset=3, named=f"{RETRACTED}/1")


def still_shown(story: Story) -> None:
    """A feed at the position of a retraction shows the insight."""
    story.retract(1, offset=1)
    story.feed(3, 0, 1, named=f"{RETRACTED}/1")


def shown_too_long(story: Story) -> None:
    """A plain read of a feed shows the insight two and a half seconds after a read had proved the retraction."""
    story.pause(2.5)
    story.feed(2, 0, 1, 2)


def not_erased(story: Story) -> None:
    """The feed of an erased user at the position of the erasure has insights."""
    story.erase(user="u1")
    story.feed(9, 0, named="feeds.user-erased/0/0", user="u1")


def subscribed_after_erasure(story: Story) -> None:
    """The subscriptions of an erased user at the position of the erasure are not empty."""
    story.erase()
    story.subscriptions("c0 mark-3", named="feeds.user-erased/0/0")


PLANTED: dict[Callable[[Story], None], str] = {
    lost: "exactly once",
    invented: "exactly once",
    changed_text: "exactly once",
    retracted_by_nobody: "exactly once",
    conflict: "exactly once",
    foreign_position: "exactly once",
    twice: "dense order",
    moved: "dense order",
    same_seq: "dense order",
    against_the_log: "dense order",
    beyond_the_head: "dense order",
    two_requests: "idempotency keys",
    lost_request: "idempotency keys",
    listed_twice: "idempotency keys",
    older_in_the_session: "monotonic reads",
    older_elsewhere: "real-time order",
    absent_again: "real-time order",
    readable_again: "real-time order",
    two_bodies: "one ETag, one body",
    two_bodies_of_an_encoding: "one ETag, one body",
    two_contents: "one ETag, one body",
    old_tag: "304 for the current ETag",
    other_tag: "304 for the current ETag",
    without_condition: "304 for the current ETag",
    not_contained: "positioned read",
    not_counted: "positioned read",
    old_subscriptions: "positioned read",
    subscribed_after_erasure: "positioned read",
    not_retracted: "retraction and erasure",
    still_shown: "retraction and erasure",
    shown_too_long: "retraction and erasure",
    not_erased: "retraction and erasure",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_violation_is_found(plant: Callable[[Story], None]):
    """The check of that promise finds it, in one sentence with operations of the history that prove it."""
    story = correct()
    plant(story)
    verdict = story.verdict()
    found = [one for one in verdict.violations if one.check == PLANTED[plant]]
    assert found, [str(one) for one in verdict.violations]
    assert all(1 <= len(one.proof) <= 2 and one.proof[-1].invocation in story.events for one in found)
    assert "\n" not in str(found[0])
    assert {check.name for check in CHECKS} | {"monotonic reads"} >= set(PLANTED.values())


def test_reads_beside_each_other_may_see_versions_in_any_order():
    """Only a read that was invoked after the other one was completed must not be older."""
    story = Story()
    resource = f"league:{SEASON}/table"
    first = story.invoke(Action.READ_PAGE, resource)
    second = story.invoke(Action.READ_PAGE, resource, client="b")
    story.complete(second, 200, version=2, etag='W/"page-2"', body_hash="2")
    story.complete(first, 200, version=1, etag='W/"page-1"', body_hash="1")
    assert story.verdict().count == 0


def test_violations_are_counted_and_some_are_kept():
    """One defect shows in every later operation; a report of it stays short."""
    story = Story()
    story.page(5)
    for _ in range(VIOLATIONS_KEPT + 5):
        story.page(4)
    verdict = story.verdict()
    assert (verdict.count, len(verdict.violations)) == (VIOLATIONS_KEPT + 5, VIOLATIONS_KEPT)
    assert verdict.as_json()["violations"][0]["proof"][0]["resource"] == f"league:{SEASON}/table"


def test_a_history_without_final_reads_is_checked_as_far_as_it_goes():
    """A run that was killed has none, so no write counts as lost."""
    story = Story()
    story.write(0, offset=0)
    story.invoke(Action.WRITE_INSIGHT, insight(1), value="text 1")
    verdict = story.verdict()
    assert (verdict.count, verdict.operations["unanswered"]) == (0, 1)
    assert CHANNEL in insight(1)
