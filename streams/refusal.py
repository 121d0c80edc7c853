"""Why brokers refuse us: an untrusted certificate, or refused credentials.

Client libraries retry both forever and report only that no broker answers. Called after such a failure, never before:
it costs a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import (
    AuthenticationFailedError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from highwater.streams.access import KafkaAccess, tls_refusal

# A broker answers a handshake in milliseconds; one that does not is unavailable, which its own client has reported
# already.
_HANDSHAKE_SECONDS = 3.0
# A broker closes the connection at once; after a TLS failure there is nothing to wait for.
_CLOSING_SECONDS_MAX = 0.5
_REFUSED = (AuthenticationFailedError, SaslAuthenticationFailed, UnsupportedSaslMechanismError, IllegalSaslStateError)


async def kafka_refusal(access: KafkaAccess) -> str | None:
    """Return why the first answering broker refuses us, with the setting's name; None if none answers or refuses."""
    options = access.aiokafka()
    for address in options.pop("bootstrap_servers").split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            await _shake_hands(host.strip("[]"), int(port), options)
        except _REFUSED as error:
            return f"KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD, KAFKA_SASL_MECHANISM: {address} refuses them: {error}"
        except (OSError, TimeoutError, KafkaError, ValueError) as error:
            refusal = tls_refusal(error)
            if refusal is not None:
                return f"{_setting(refusal)}: {address} is not trusted: {refusal}"
            continue
        return None
    return None


def _setting(refusal: str) -> str:
    if "in TLS" in refusal:
        return "KAFKA_SECURITY_PROTOCOL"
    return "KAFKA_SSL_CERTIFICATE_LOCATION" if "client certificate" in refusal else "KAFKA_SSL_CA_LOCATION"


async def _shake_hands(host: str, port: int, options: Mapping[str, Any]) -> None:
    """Connect, log in, and disconnect: what is left to the loop's end would be closed by the garbage collector."""
    connection = AIOKafkaConnection(host, port, client_id="highwater-refusal", **options)
    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            await connection.connect()
    finally:
        closed = connection.close()
        if closed is not None:
            await asyncio.wait({closed}, timeout=_CLOSING_SECONDS_MAX)
