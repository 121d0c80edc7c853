"""Wires the worker of alerts."""

from __future__ import annotations

from highwater.connectors.alerts.worker_alerts import open_alerts
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.wiring import Connector, Slice, Wiring


async def _alerts(w: Wiring) -> Connector:
    worker = open_alerts(w.context, w.settings)
    w.close_at_end(worker.close)
    return BatchConsumer(worker, w.context)


SLICE = Slice(workers={"alerts": _alerts})
