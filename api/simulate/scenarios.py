"""Runs the scenarios under seeds, and names the seeds that break an invariant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from highwater.api.simulate import agents, jobs, relays, runs
from highwater.api.simulate.patches import Patches

Problems = Callable[[int, Patches], tuple[list[str], int]]
SCENARIOS: Mapping[str, Problems] = {
    "relays": relays.problems_of,
    "runs": runs.problems_of,
    "jobs": jobs.problems_of,
    "agents": agents.problems_of,
}
# What each one runs, for readers of a report.
CONTENTS: Mapping[str, str] = {
    "relays": "leases, relays of the outbox, positions",
    "runs": "the engine with runs of queries",
    "jobs": "the engine with jobs",
    "agents": "agents and their tables",
}


@dataclass(frozen=True, slots=True)
class Simulated:
    """A scenario under one seed: the steps that were checked, and what was wrong."""

    scenario: str
    seed: int
    steps: int
    problems: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"scenario": self.scenario, "seed": self.seed, "steps": self.steps, "problems": list(self.problems)}


def simulate(names: Sequence[str], first: int, seeds: int) -> Iterator[Simulated]:
    """Run scenarios under `seeds` seeds from `first` on, and yield each result."""
    for seed in range(first, first + seeds):
        for name in names:
            with relays.in_virtual_time() as patch:
                problems, steps = SCENARIOS[name](seed, patch)
            yield Simulated(name, seed, steps, problems)
