"""Before a worker starts: the broker answers, its topics are there, and the changelogs are too.

The law: a worker starts only on a complete set of topics. It waits for a broker that is away, says once what is missing,
and creates nothing but its own changelogs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError

from schemas.errors import CatalogueMismatchError, ConfigurationError
from schemas.topics import PARTITIONS
from streams.retry import UNAVAILABLE
from streams.settings import Settings
from streams.telemetry import get_log

# A metadata answer may lag behind a creation by this much; asked again until it is complete.
_SETTLE_SECONDS = 0.1

_log = get_log("worker")


@dataclass(frozen=True, slots=True)
class Security:
    """How to talk to the broker: the protocol, the SASL mechanism, and the TLS context where there is one."""

    protocol: str
    mechanism: str
    context: ssl.SSLContext | None


def security_of(settings: Settings) -> Security:
    """The security settings, checked.

    Raises:
        ConfigurationError: an unknown protocol or mechanism, or certificates that cannot be loaded.
    """
    protocol = (settings.kafka_security_protocol or "PLAINTEXT").upper()
    if protocol not in {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}:
        raise ConfigurationError(f"KAFKA_SECURITY_PROTOCOL={protocol} is not a protocol of Kafka")
    mechanism = (settings.kafka_sasl_mechanism or "PLAIN").upper()
    if mechanism not in {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}:
        raise ConfigurationError(f"KAFKA_SASL_MECHANISM={mechanism} is not supported by the worker")
    context: ssl.SSLContext | None = None
    if protocol.endswith("SSL"):
        try:
            context = ssl.create_default_context(cafile=settings.kafka_ssl_ca_location)
            if settings.kafka_ssl_certificate_location is not None:
                context.load_cert_chain(settings.kafka_ssl_certificate_location, settings.kafka_ssl_key_location)
        except OSError as error:
            raise ConfigurationError(f"KAFKA_SSL_*: the certificates cannot be loaded: {error}") from error
    return Security(protocol, mechanism, context)


async def prepare_topics(
    settings: Settings, sources: Collection[str], changelogs: Mapping[str, Mapping[str, str]]
) -> None:
    """Wait for the broker, check the source topics, and create what is missing of the changelogs.

    Raises:
        CatalogueMismatchError: a source topic is missing or has another number of partitions.
    """
    admin = await _connect(settings)
    try:
        known = await _partitions(admin, [*sources, *changelogs])
        wrong = {name: known.get(name, 0) for name in sources if known.get(name, 0) != PARTITIONS}
        if wrong:
            raise CatalogueMismatchError(
                f"topics with other than {PARTITIONS} partitions: {wrong}; run `highwater init`"
            )
        await _create(admin, settings, {name: config for name, config in changelogs.items() if name not in known})
        while any(count != PARTITIONS for count in (await _counts(admin, changelogs)).values()):
            await asyncio.sleep(_SETTLE_SECONDS)
    finally:
        await admin.close()


async def _connect(settings: Settings) -> Any:
    security = security_of(settings)
    attempt = 0
    while True:
        attempt += 1
        admin = AIOKafkaAdminClient(
            bootstrap_servers=settings.kafka_client()["bootstrap.servers"],
            security_protocol=security.protocol,
            ssl_context=security.context,
            sasl_mechanism=security.mechanism,
            sasl_plain_username=settings.kafka_sasl_username,
            sasl_plain_password=settings.kafka_sasl_password,
        )
        try:
            await admin.start()
        except KafkaError as error:
            await admin.close()
            if attempt == 1:
                _log.error("broker_away", brokers=settings.kafka, error=str(error), effect="waiting for it")
            await asyncio.sleep((UNAVAILABLE.wait_ms(attempt) or 0) / 1000)
        else:
            return admin


async def _counts(admin: Any, names: Collection[str]) -> dict[str, int]:
    """Number of partitions with a leader, 0 for a topic that is not there."""
    return {name: 0 for name in names} | await _partitions(admin, names)


async def _partitions(admin: Any, names: Collection[str]) -> dict[str, int]:
    found = await admin.describe_topics(list(names))
    return {
        topic["topic"]: sum(partition["leader"] >= 0 for partition in topic["partitions"])
        for topic in found
        if topic["error_code"] == 0
    }


async def _create(admin: Any, settings: Settings, missing: Mapping[str, Mapping[str, str]]) -> None:
    if not missing:
        return
    wanted = [
        NewTopic(name, PARTITIONS, settings.replication_factor, topic_configs=dict(config))
        for name, config in missing.items()
    ]
    try:
        await admin.create_topics(wanted)
    except TopicAlreadyExistsError:
        pass  # another worker starts at the same time
