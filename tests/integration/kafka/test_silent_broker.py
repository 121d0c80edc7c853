"""One of three brokers does not answer: nothing is concluded about its partitions."""

from __future__ import annotations

import pytest

from highwater.connectors.kafka import admin as administration
from highwater.connectors.kafka.admin import Admin
from highwater.schemas.errors import UnavailableError
from tests.integration.kafka.simulated_brokers import simulated_brokers


async def test_the_end_of_a_log_is_unknown_while_its_broker_is_silent(monkeypatch: pytest.MonkeyPatch):
    """The client reports an end of -1001 without an error, which a comparison with positions would take for a lost tail."""
    monkeypatch.setattr(administration, "REQUEST_SECONDS", 1.0)
    places = [("silent", number) for number in range(6)]
    with simulated_brokers(3) as brokers:
        brokers.create("silent", len(places), 3)
        admin = Admin({"bootstrap.servers": brokers.addresses})
        assert {place: end.offset for place, end in (await admin.log_ends_led(places)).items()} == dict.fromkeys(
            places, 0
        )
        brokers.silence(1)
        led = await admin.log_ends_led(places)
        assert {end.offset for end in led.values()} == {0}
        assert 0 < len(led) < len(places)
        with pytest.raises(UnavailableError, match="does not list offsets"):
            await admin.log_ends(places)
        with pytest.raises(UnavailableError, match="does not list offsets"):
            await admin.log_ranges(places)
