"""The picture of the flow: generated from the catalogue, complete, with each rate shown once."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from highwater.api.dashboard.flow import Behind, draw, lanes
from highwater.schemas.topics import TOPICS


def test_every_topic_with_a_reader_is_in_the_picture():
    """A topic that is added to the catalogue appears here; one that only its own writer reads is not shown."""
    drawn = {topic for lane in lanes() for edge in lane.edges for topic in edge.topics}
    flowing = {t.name for t in TOPICS.values() if any(reader not in t.producers for reader in t.consumers)}
    assert flowing == drawn


def test_every_process_of_an_edge_has_a_place():
    """No line ends nowhere."""
    for lane in lanes():
        placed = [name for column in lane.columns for name in column]
        assert len(placed) == len(set(placed))
        assert {end for edge in lane.edges for end in (edge.source, edge.target)} <= set(placed)


def test_a_topic_bears_its_rate_once_for_each_reader():
    """Two writers of one topic do not double it."""
    for lane in lanes():
        bearing = [(t, edge.target) for edge in lane.edges if edge.bears_rate for t in edge.topics]
        assert len(bearing) == len(set(bearing))


def test_a_lane_is_well_formed_and_tells_rates_and_lag():
    """The picture is valid XML, and contains the measured numbers."""
    feeds = next(lane for lane in lanes() if lane.name == "feeds")
    picture = draw(feeds, {"feeds.insight-ingested": 12.34}, {"rebuild": Behind(7, 61.0), "insights": Behind(0, None)})
    ET.fromstring(picture)
    assert ">12.3/s<" in picture
    assert "7 to read, 1 min 1 s" in picture
    assert "up to date" in picture


def test_before_the_first_look_no_rate_is_told():
    """Nothing is known yet, so nothing is shown; 0 would be wrong."""
    for lane in lanes():
        assert "/s<" not in draw(lane, None, {})


def test_every_number_of_the_picture_is_a_link():
    """A rate leads to its topic or the topics, a number of unread events to its consumer."""
    for lane in lanes():
        rates = {topic: 2.0 for edge in lane.edges for topic in edge.topics}
        behind = {name: Behind(7, 61.0) for column in lane.columns for name in column}
        root = ET.fromstring(draw(lane, rates, behind))
        linked = [one for link in root.iter("a") for one in link.iter("text") if link.get("href")]
        numbers = [one for one in root.iter("text") if one.get("class") in ("rate", "sub")]
        assert numbers
        assert set(numbers) <= set(linked)
        for name in behind:
            assert any(link.get("href") == f"/groups/{name}" for link in root.iter("a"))
