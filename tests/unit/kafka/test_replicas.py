"""Topics that were created with fewer replicas than are wanted now."""

from __future__ import annotations

import pytest

from highwater.connectors.kafka.admin import missing_replicas


@pytest.mark.parametrize("replicas", [[], [3], [3, 3], [4, 3]])
def test_a_topic_with_enough_replicas_is_as_it_should_be(replicas: list[int]):
    """Nothing is reported about a topic whose every partition has at least the required number of replicas."""
    assert missing_replicas("streams.tick", replicas, 3) is None


@pytest.mark.parametrize(("replicas", "fewest"), [([1], 1), ([3, 2, 3], 2)])
def test_a_topic_with_fewer_replicas_is_named(replicas: list[int], fewest: int):
    """One partition with fewer is enough, and the message says what to do."""
    said = missing_replicas("streams.tick", replicas, 3)
    assert said is not None
    assert said.startswith(f"streams.tick has partitions with {fewest} of 3 replicas (HIGHWATER_REPLICATION_FACTOR)")
    assert "kafka-reassign-partitions.sh" in said
