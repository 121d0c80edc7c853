"""An unclean election: the replica that is behind becomes the leader, and the others lose what only they had.

Each broker of the embedded three is a controller as well, and an election needs two of three controllers. So the brokers that
have the records are started as controllers alone until the third leads: their votes are there, and their records are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    PartitionMetadata,
    ResourceType,
)

from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.kafka import Kafka
from highwater.deploy.local.stack import LocalStack

# If a name occurs twice the last one counts.
_CONTROLLER_ONLY = """
process.roles=controller
listeners=CONTROLLER://127.0.0.1:{port}
advertised.listeners=CONTROLLER://127.0.0.1:{port}
"""
_SETTING = "unclean.leader.election.enable"
_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.5
# A killed broker counts as alive for its session of nine seconds, and each start takes some seconds.
_SECONDS_MAX = 180.0


class UncleanElection:
    """What an unclean election takes from a stack with three brokers: all that was written while one of them was down."""

    def __init__(self, servers: LocalStack, client: Mapping[str, str], keeping: Collection[str] = ()) -> None:
        """`keeping`: topics that lose no records, since they wait for a replica that has all of them."""
        self._servers = servers
        self._client = {**client, "log_level": "0"}
        self._keeping = keeping
        self._brokers: list[Kafka] = []
        for name in servers.names_of(Kafka.name):
            part = servers.part(name)
            assert isinstance(part, Kafka)
            self._brokers.append(part)

    @property
    def stale(self) -> Kafka:
        """Return the broker that will be behind."""
        return self._brokers[-1]

    def hold(self) -> None:
        """Stop one broker, so that it misses what follows, and allow the election."""
        self._set_allowed(is_allowed=True)
        self._servers.kill_part(self.stale.name)
        self._until(lambda: not any(self.stale.node in one.isrs for one in self._partitions()), "it counts as in sync")

    def take_over(self) -> None:
        """Kill the brokers that have everything, and let the one that is behind lead."""
        for part in self._brokers[:-1]:
            self._servers.kill_part(part.name)
        for part in self._brokers[:-1]:
            part.prepare()
            properties = part.folder / "server.properties"
            port = self._servers.ports.taken(f"{part.name}_controller")
            properties.write_text(
                properties.read_text(encoding="utf-8") + _CONTROLLER_ONLY.format(port=port), encoding="utf-8"
            )
            part.process.start(part.command())
        self._servers.start_part(self.stale.name)
        self._until(
            lambda: all(one.leader == self.stale.node for one in self._partitions(self._keeping)), "it does not lead"
        )

    def come_back(self) -> None:
        """Start the others again, which cut their logs where that of the leader ends, and forbid the election."""
        for part in self._brokers[:-1]:  # one after the other, since two controllers must live
            self._servers.restart_part(part.name)
        self._until(
            lambda: all(len(one.isrs) == len(one.replicas) for one in self._partitions()), "not all are in sync"
        )
        self._set_allowed(is_allowed=False)

    def _partitions(self, without: Collection[str] = ()) -> list[PartitionMetadata]:
        """Return the partitions of all other topics. A new client each time knows the current state."""
        found = AdminClient(self._client).list_topics(timeout=_ANSWER_SECONDS).topics
        return [one for name, topic in found.items() if name not in without for one in topic.partitions.values()]

    def _set_allowed(self, *, is_allowed: bool) -> None:
        admin = AdminClient(self._client)
        names = [name for name in admin.list_topics(timeout=_ANSWER_SECONDS).topics if name not in self._keeping]
        done = AlterConfigOpType.SET if is_allowed else AlterConfigOpType.DELETE
        entry = ConfigEntry(_SETTING, "true", incremental_operation=done)
        asked = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in names]
        for future in admin.incremental_alter_configs(asked).values():
            future.result(_ANSWER_SECONDS)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _SECONDS_MAX
        while not self._holds(condition):
            if time.monotonic() > deadline:
                raise LocalStackError(
                    f"{self.stale.name}, the broker that is behind: {what} after {_SECONDS_MAX:.0f} s"
                )
            time.sleep(_LOOK_SECONDS)

    @staticmethod
    def _holds(condition: Callable[[], bool]) -> bool:
        try:
            return condition()
        except KafkaException:  # no broker answers
            return False
