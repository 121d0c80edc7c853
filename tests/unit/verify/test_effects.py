"""Effects against the events that reported them: which are right, which differ and at which event, and which nothing reported."""

from __future__ import annotations

from typing import Any

from highwater.connectors.kafka.records import Record
from highwater.connectors.verify.effects import EFFECTS, compare_row
from highwater.connectors.verify.notes import Named
from highwater.connectors.verify.report import Checked
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import to_datetime

NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
BY_NAME = {effect.name: effect for effect in EFFECTS}


class Case:
    """One effect and its reports."""

    def __init__(self, name: str) -> None:
        self.effect = BY_NAME[name]
        self.reports = Named({}, name)
        self.offset = 0

    def published(self, topic: str, **event: Any) -> str:
        """An event; its position."""
        record = Record(topic, 0, self.offset, NOON, None, b"", [])
        self.offset += 1
        self.effect.note(self.reports, record, event)
        return str(record.position)

    def compared(self, *row: Any) -> Checked:
        """Return the differences of a row."""
        checked = Checked("effects", self.effect.name)
        compare_row(checked, self.effect, row, self.reports)
        return checked


def status(status: str, revision: int) -> dict[str, Any]:
    """A change of a run."""
    return {"id": "r1", "status": status, "revision": revision}


def test_the_last_revision_counts_whatever_came_after_it():
    """An event that is repeated after a crash retracts nothing; the difference names the event that it starts at."""
    case = Case("pipeline_runs")
    case.published("queries.pipeline-stage", **status("NEW", 1))
    last = case.published("queries.pipeline-stage", **status("COMPLETED", 2))
    case.published("queries.pipeline-stage", **status("NEW", 1))
    assert case.compared("r1", "COMPLETED", "t/0/0").differences == []
    (difference,) = case.compared("r1", "FAILED", "t/0/0").differences
    assert (difference.field, difference.expected, difference.found, difference.position) == (
        "status", "COMPLETED", "FAILED", last,
    )  # fmt: skip


def test_a_row_that_nobody_reported_is_a_difference_unless_nothing_was_done_to_it():
    """A user who was never rebuilt has a row and no event; one with a version has one."""
    case = Case("user_stats")
    quiet = case.compared("u1", 0, None, None, 0, None)
    assert (quiet.compared, quiet.differences) == (1, [])
    (difference,) = case.compared("u1", 1, to_datetime(NOON), None, 0, "feeds.rebuild-requested/0/7").differences
    assert (difference.key, difference.field, difference.position) == ("u1", "row", "feeds.rebuild-requested/0/7")


def test_rows_of_a_user_who_was_erased_are_left_out_and_counted():
    """Marks start over after an erasure; those of other users are compared."""
    case = Case("user_cluster_hwm")
    for user in ("u1", "u2"):
        case.published("feeds.rebuild-finished", user_id=user, outcome="rebuilt", hwm={"c1": 9})
    case.published("feeds.rebuild-finished", user_id="u2", outcome="rebuilt", hwm={"c1": 7})
    case.published("feeds.user-changed", user_id="u1", erased=True)
    erased = case.compared("u1", "c1", 3, None)
    assert (erased.compared, sum(erased.left_out.values())) == (0, 1)
    assert case.compared("u2", "c1", 9, None).differences == []
    assert case.compared("u2", "c1", 7, None).differences[0].expected == 9


def test_a_version_is_that_of_its_bump():
    """With its tag, its cause and its time."""
    case = Case("resource_versions")
    bump = {"key": "feed:u1", "version": 2, "etag": "b", "caused_by": "t/0/5", "bumped_at": NOON}
    case.published("cache.version-bumped", **bump)
    case.published("cache.version-bumped", **{**bump, "version": 1, "etag": "a"})
    assert case.compared("feed:u1", 2, "b", "t/0/5", to_datetime(NOON), "t/0/5").differences == []
    found = case.compared("feed:u1", 2, "a", "t/0/5", to_datetime(NOON + 1), "t/0/5").differences
    assert [one.field for one in found] == ["etag", "changed_at"]


def test_what_reports_is_of_the_catalogue():
    """So that a name that changed leaves nothing out."""
    assert {topic for effect in EFFECTS for topic in effect.topics} <= set(TOPICS)
