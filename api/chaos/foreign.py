"""The foreign checker of a run: `history-check`'s clients work through two API processes during the faults.

Invariant: what it finds is a problem of the run, as a difference of `verify` is; what its clients wrote counts as sent.
"""

from __future__ import annotations

from highwater.api.chaos.ground import START_SECONDS_MAX, Ground
from highwater.api.history_check.run import Run, Workload
from highwater.api.history_check.sessions import Target, is_ready
from highwater.streams.access import RegistryAccess, trusts_nobody
from highwater.streams.clock import ProductClock

# About ten operations a second beside the load, which two cores can process during faults.
_CLIENTS, _PAUSE_SECONDS = 3, 0.25


class Foreign:
    """The clients; `run` is a context that starts and ends them."""

    def __init__(self, ground: Ground, seed: int) -> None:
        """Start the second API process, and open the history."""
        apis = (ground.api_url, ground.start_second("api"))
        target = Target(apis, trusts_nobody())
        ground.until(lambda: is_ready(apis[1], target.verify), "the second API is not ready", START_SECONDS_MAX)
        self._ground = ground
        settings = ground.settings
        kafka, registry = settings.kafka_client(), RegistryAccess.required(settings.registry_access())
        workload = Workload(_CLIENTS, _PAUSE_SECONDS, seed)
        self.run = Run(ground.folder / "history.jsonl", workload, target, kafka, registry, ProductClock())

    def problems(self, sent: dict[str, int]) -> tuple[list[str], dict[str, int]]:
        """Read what is stored and check the history; return what is wrong, and what must be stored with it."""
        left = self.run.read_left()
        found = [f"history-check: {violation}" for violation in self.run.verdict(self._ground.moved).violations]
        if left.unread:
            found.append(f"history-check: {left.unread} reads at the end had no definite answer")
        return found, {name: count + left.stored.get(name, 0) for name, count in sent.items()}
