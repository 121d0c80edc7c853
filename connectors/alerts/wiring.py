"""Wires the workers of alerts and of daily digests."""

from __future__ import annotations

from highwater.connectors.alerts.erasure import ERASURE
from highwater.connectors.alerts.worker_alerts import open_alerts
from highwater.connectors.alerts.worker_daily import SETTING, ReadNotice, open_daily
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.wiring import Connector, Slice, Wiring
from highwater.streams.daily_rules import load_daily_rules


async def _alerts(w: Wiring) -> Connector:
    worker = open_alerts(w.context, w.settings)
    w.close_at_end(worker.close)
    return BatchConsumer(worker, w.context)


def slice_of(read: ReadNotice) -> Slice:
    """Return what this slice adds; `read` returns what is new of a user."""

    async def digests(w: Wiring) -> Connector:
        rules = load_daily_rules(w.settings.digests_file, SETTING)
        worker = open_daily(w.context, w.settings, rules, read)
        w.close_at_end(worker.close)
        return BatchConsumer(worker, w.context)

    return Slice(workers={"alerts": _alerts, "digests": digests}, erasure=ERASURE)
