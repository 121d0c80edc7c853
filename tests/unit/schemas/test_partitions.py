"""The number of partitions of an installation: which topics have it, and the message if the broker has another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from highwater.schemas.errors import ConfigurationError
from highwater.schemas.topics import (
    PARTITIONS,
    PARTITIONS_MAX,
    TOPICS,
    dead_letter_topic,
    keyed_partitions,
    partitions_refusal,
    use_partitions,
)
from highwater.streams.driver import Driver
from highwater.streams.feeds.dirty import tick_quota
from highwater.streams.preflight import topics_refusal
from highwater.streams.settings import read_settings

KEYED = {name: topic for name, topic in TOPICS.items() if topic.fixed_partitions is None}


@pytest.fixture
def twelve() -> Iterator[None]:
    """A process of an installation of twelve."""
    use_partitions(12)
    yield
    use_partitions(PARTITIONS)


@pytest.mark.usefixtures("twelve")
def test_topics_with_a_key_have_the_installations_number():
    """All of them agree, so the events of one key are in one partition of each; few others have one partition, as before."""
    assert {topic.partitions for topic in KEYED.values()} == {12} == {keyed_partitions()}
    assert {topic.partitions for topic in TOPICS.values() if topic.fixed_partitions is not None} == {1}
    assert {dead_letter_topic(topic).partitions for topic in TOPICS.values()} == {1}


def test_a_broker_without_our_topics_or_with_our_number_is_well():
    """Nothing is reported before `init`, about foreign topics, and if the numbers agree."""
    assert partitions_refusal({}, 12) is None
    assert partitions_refusal({"theirs": 3, "security.action-recorded": 1}, 12) is None
    assert partitions_refusal(dict.fromkeys(KEYED, 12), 12) is None


def test_another_number_is_one_sentence_with_the_setting():
    """The refusal names both numbers and the value to set; with several numbers it says that no value helps."""
    said = partitions_refusal(dict.fromkeys(KEYED, 8), 12)
    assert said is not None
    assert said.startswith("the topics have 8 partitions and HIGHWATER_PARTITIONS is 12: set it to 8 for every process")
    mixed = partitions_refusal({**dict.fromkeys(KEYED, 8), "streams.tick": 12}, 12)
    assert mixed is not None
    assert "different numbers of partitions (8, 12)" in mixed


def test_a_worker_refuses_missing_topics_and_changelogs_of_another_number():
    """A table's changelog has as many partitions as its topics; a missing topic is named before any number is judged."""
    sources = ["streams.tick", "feeds.novelty"]
    assert topics_refusal({"streams.tick": 12, "feeds.novelty": 12, "log": 12}, sources, 12) is None
    missing = topics_refusal({"streams.tick": 8}, sources, 12)
    assert missing == "topics are missing: feeds.novelty; run `highwater init`"
    said = topics_refusal({"streams.tick": 12, "feeds.novelty": 12, "log": 8}, sources, 12)
    assert said is not None
    assert "log has 8. Do not delete" in said
    assert (topics_refusal({"streams.tick": 8, "feeds.novelty": 8}, sources, 12) or "").startswith("the topics have 8")


@pytest.mark.parametrize("text", ["0", "-1", str(PARTITIONS_MAX + 1), "eight"])
def test_a_number_outside_its_bounds_is_refused(text: str):
    """1 to 64."""
    with pytest.raises(ConfigurationError, match="HIGHWATER_PARTITIONS"):
        read_settings({"HIGHWATER_PARTITIONS": text})


async def test_a_tick_is_shared_out_over_the_installations_partitions():
    """The driver ticks each partition once, and the quota of a tick is divided by the same number."""
    driver = Driver(
        "channels", settings=read_settings({"HIGHWATER_PARTITIONS": "12", "HIGHWATER_MAX_DIRTY_CHANNELS_PER_TICK": "6"})
    )
    for number in range(24):
        for partition in range(12):
            await driver.publish(
                "feeds.channel-advanced",
                {"channel_id": f"c{partition}-{number}", "head": 1, "arrived_at": 1, "retractions": 0},
                partition=partition,
            )
    await driver.tick(1_790_000_000_000)
    told = driver.sent("feeds.channel-dirty")
    number = 1_790_000_000_000 // int(driver.settings.tick_seconds * 1000)
    assert len(told) == sum(tick_quota(6, 12, partition, number) for partition in range(12)) == 6
