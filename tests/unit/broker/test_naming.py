"""The parts of a topic's name."""

from __future__ import annotations

import pytest

from highwater.api.broker.naming import grouped, kind_of, subsystem_of


@pytest.mark.parametrize(
    ("topic", "kind", "subsystem"),
    [
        ("feeds.insight-ingested", "events", "feeds"),
        ("feeds.insight-ingested.dlq", "dead letters", "feeds"),
        ("highwater-feeds-user_feeds-changelog", "changelog", "other"),
        ("highwater-feeds-__assignor-__leader", "internal", "other"),
        ("__consumer_offsets", "internal", "other"),
        ("feeds.of-another-application", "events", "other"),
        ("orders", "events", "other"),
        ("orders.dlq", "dead letters", "other"),
    ],
)
def test_kind_and_subsystem(topic: str, kind: str, subsystem: str) -> None:
    """A subsystem is of the catalogue alone; what begins like one without being in it is of others."""
    assert (kind_of(topic), subsystem_of(topic)) == (kind, subsystem)


def test_others_are_grouped_last() -> None:
    """Subsystems by name, and topics by name within each."""
    topics = [
        {"topic": name, "subsystem": subsystem}
        for name, subsystem in (("z", "other"), ("jobs.b", "jobs"), ("jobs.a", "jobs"), ("feeds.a", "feeds"))
    ]
    names = {subsystem: [one["topic"] for one in found] for subsystem, found in grouped(topics).items()}
    assert list(names.items()) == [("feeds", ["feeds.a"]), ("jobs", ["jobs.a", "jobs.b"]), ("other", ["z"])]
