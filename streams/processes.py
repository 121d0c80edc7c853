"""The kinds of processes that run for long, and the users of Kafka: one for each kind, and one for producers from outside."""

from __future__ import annotations

from collections.abc import Mapping

API, WORKER, PRODUCER = "api", "worker", "producer"
# With the arguments of the command `highwater`. Three `connect` processes: storing, deciding and mirroring do not wait for each
# other, and two cores suffice for three.
PROCESSES: Mapping[str, tuple[str, ...]] = {
    WORKER: ("worker",),
    "connect-sinks": ("connect", "sinks", "outbox"),
    "connect-workers": ("connect", "workers"),
    "connect-materializers": ("connect", "materializers"),
    API: ("api",),
}
PRINCIPALS: tuple[str, ...] = (*PROCESSES, PRODUCER)
# Kafka knows `highwater-worker`, and so on; `highwater` is the operator.
USER_PREFIX = "highwater-"
