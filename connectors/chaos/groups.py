"""Changes groups in Kafka alone, as a tool of an operator may: their offsets are moved, or the groups are deleted.

Invariant: positions in PostgreSQL stay, and the worker loses no record: it has its offsets only in Kafka, and is set back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException

from highwater.connectors.kafka.admin import REQUEST_SECONDS, Admin
from highwater.connectors.kafka.groups import WORKER_KAFKA_GROUP
from highwater.connectors.kafka.offsets import committed_offsets
from highwater.connectors.kafka.reading import Place, kafka_error
from highwater.connectors.kafka.resetting import Step, set_offsets


async def displace(client: Mapping[str, str], group: str, records: int) -> None:
    """Set the worker back by some records; of another group, every second partition to the beginning, the others to the end.

    Raises:
        GroupRunningError: it has live members.
        UnavailableError: Kafka does not answer.
    """
    committed = committed_offsets(client, group)
    ends = await Admin(client).log_ends(committed)
    steps = [
        Step(*place, before, _after(group, place, before, ends[place], records)) for place, before in committed.items()
    ]
    if steps:
        set_offsets(client, group, steps)


def _after(group: str, place: Place, before: int, end: int, records: int) -> int:
    if group == WORKER_KAFKA_GROUP:
        return max(0, before - records)
    return 0 if place[1] % 2 else end


def delete_groups(admin: Admin, groups: Sequence[str]) -> None:
    """Delete groups; blocking. One that does not exist stays so.

    Raises:
        UnavailableError: Kafka does not answer, or a group has members.
    """
    with admin.asking("the groups are not deleted") as client:
        for future in client.delete_consumer_groups(list(groups), request_timeout=REQUEST_SECONDS).values():
            try:
                future.result(2 * REQUEST_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                    raise kafka_error(error) from error
