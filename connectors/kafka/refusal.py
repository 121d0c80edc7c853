"""Explains a failed call to Kafka: brokers are unavailable, or refuse us, with the setting to correct."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from highwater.schemas.errors import AccessRefusedError, ConfigurationError, UnavailableError
from highwater.streams.access import KafkaAccess


def unavailable(client: Mapping[str, str], reason: str) -> UnavailableError:
    """Return the error of a call that failed as `reason`; librdkafka itself reports only unavailable brokers, for
    every reason.

    Blocks for some seconds if there are credentials or certificates that may be refused.
    """
    refusal = refusal_of(client)
    return (
        UnavailableError(reason) if refusal is None else AccessRefusedError(f"Kafka refuses the connection: {refusal}")
    )


def refusal_of(client: Mapping[str, str]) -> str | None:
    """Return why the brokers refuse the options of a librdkafka client; None if they do not, or are unavailable."""
    access = KafkaAccess.of_client(client)
    if not (access.is_encrypted or access.is_authenticated):
        return None
    # Only a failure pays for loading a second client library.
    from highwater.streams.refusal import kafka_refusal  # noqa: PLC0415

    try:
        return asyncio.run(kafka_refusal(access))
    except ConfigurationError as error:  # a file was deleted after the settings were read
        return str(error)
