"""Deletes the records from which tables are restored, as a retention set on a changelog would."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from highwater.connectors.kafka.admin import REQUEST_SECONDS
from highwater.connectors.kafka.deleting import delete_records
from highwater.streams.agents import GROUP


def delete_changelogs(client: Mapping[str, str]) -> None:
    """Delete all records of the worker's changelogs; blocking.

    Raises:
        KafkaException: the broker does not do it.
    """
    admin = AdminClient({**client, "logger": logging.getLogger("librdkafka")})
    topics = admin.list_topics(timeout=REQUEST_SECONDS).topics
    delete_records(admin, [name for name in topics if name.startswith(f"{GROUP}-") and name.endswith("-changelog")])
