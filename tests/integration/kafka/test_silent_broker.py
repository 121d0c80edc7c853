"""One of three brokers does not answer: nothing is concluded about its partitions."""

from __future__ import annotations

import pytest

from highwater.connectors.kafka import admin as administration
from highwater.connectors.kafka.admin import Admin, LogEnd
from highwater.schemas.errors import UnavailableError
from tests.integration.connecting import until
from tests.integration.kafka.simulated_brokers import simulated_brokers


async def test_the_end_of_a_log_is_unknown_while_its_broker_is_silent(monkeypatch: pytest.MonkeyPatch):
    """The client reports an end of -1001 without an error, which a comparison with positions would take for a lost tail."""
    monkeypatch.setattr(administration, "REQUEST_SECONDS", 2.0)
    places = [("silent", number) for number in range(40)]
    with simulated_brokers(3) as brokers:
        brokers.create("silent", len(places), 3)
        admin = Admin({"bootstrap.servers": brokers.addresses})

        async def ends() -> dict[tuple[str, int], LogEnd] | None:
            try:
                return await admin.log_ends_led(places)
            except UnavailableError:  # its request for the leaders went to the silent one
                return None

        led = await until(ends, "the ends are listed")
        assert {place: end.offset for place, end in led.items()} == dict.fromkeys(places, 0)
        brokers.silence(1)
        led = await until(ends, "the ends of the others are listed")
        assert {end.offset for end in led.values()} == {0}
        assert 0 < len(led) < len(places)
        with pytest.raises(UnavailableError, match="does not list offsets"):
            await admin.log_ends(places)
        with pytest.raises(UnavailableError, match="does not list offsets"):
            await admin.log_ranges(places)
