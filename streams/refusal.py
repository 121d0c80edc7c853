"""Why brokers refuse us, when they do: a certificate that is not trusted, or credentials that they do not accept.

Client libraries retry both for ever and say only that no broker answers. Asked after such a failure, never before: it costs
a connection.
"""

from __future__ import annotations

import asyncio

from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from highwater.streams.access import KafkaAccess, tls_refusal

# A broker answers a handshake in milliseconds; one that does not is away, which its own client has reported already.
_HANDSHAKE_SECONDS = 3.0
_REFUSED = (AuthenticationFailedError, SaslAuthenticationFailed, UnsupportedSaslMechanismError, IllegalSaslStateError)


async def kafka_refusal(access: KafkaAccess) -> str | None:
    """Why the first broker that answers refuses us, with the setting's name; None when none does, or when it does not."""
    options = access.aiokafka()
    for address in options.pop("bootstrap_servers").split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                connection = await create_conn(host.strip("[]"), int(port), **options)
        except _REFUSED as error:
            return f"KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD, KAFKA_SASL_MECHANISM: {address} refuses them: {error}"
        except (OSError, TimeoutError, KafkaError, ValueError) as error:
            refusal = tls_refusal(error)
            if refusal is not None:
                setting = "KAFKA_SECURITY_PROTOCOL" if "in TLS" in refusal else "KAFKA_SSL_CA_LOCATION"
                return f"{setting}: {address} is not trusted: {refusal}"
            continue
        connection.close()
        return None
    return None
