"""The step of alerts in an erasure of users: which digests were sent to them."""

from __future__ import annotations

from collections.abc import Mapping

from highwater.connectors.alerts.statements import QUERIES
from highwater.connectors.erasure import ErasureStep
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Cause


async def _erase(tx: Connection, _codec: Codec, erased: Mapping[str, Cause], _now_ms: int) -> None:
    await tx.execute(QUERIES["erase_digests_sent"], list(erased))


ERASURE = ErasureStep(_erase)
