"""`highwater chaos`: a seed's faults on a stack of its own, under load, end with nothing lost, duplicated or stuck.

One short seed in the gate; `HIGHWATER_CHAOS_SEEDS=11,12,13 HIGHWATER_CHAOS_MINUTES=10` makes long ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from highwater.api.chaos.plan import Kind, plan_faults

# One whose three faults are of three sorts and short: a killed role, a network that is cut, and events that are delivered again.
GATE_SEED, GATE_MINUTES = 26, 0.37
SEEDS = [int(seed) for seed in os.environ.get("HIGHWATER_CHAOS_SEEDS", str(GATE_SEED)).split(",")]
MINUTES = float(os.environ.get("HIGHWATER_CHAOS_MINUTES", str(GATE_MINUTES)))
# Twice what every wait of a run may take, so that a run that is stuck says itself where.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800 + 600 * MINUTES)]


def chaos(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status of a run, and what it found."""
    command = [str(Path(sys.executable).parent / "highwater"), "chaos", *arguments, "--json", "--keep", str(folder)]
    # A setting of the caller must not reach its stack: with this one no role would start.
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "HIGHWATER_TICK_SECONDS": "3600"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr[-4000:]
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_of_faults_loses_doubles_and_leaves_nothing(tmp_path: Path, seed: int):
    """Every fault of the plan is recovered from; everything that was sent is there once; verify finds no difference."""
    status, found = chaos(tmp_path / "stack", "--seed", str(seed), "--minutes", str(MINUTES))
    assert (status, found["problems"]) == (0, []), json.dumps(found, indent=1)
    planned = [fault.as_json() for fault in plan_faults(seed, MINUTES * 60)]
    made = [{name: value for name, value in one.items() if not name.endswith("_seconds")} for one in found["faults"]]
    assert made == found["planned"] == planned
    assert min(found["sent"].values()) > 0
    assert found["compared"] > found["sent"]["insights"]
    assert found["requests"]["answered"] > 0


def test_the_gate_has_faults_of_three_sorts():
    """A process, the network, the log."""
    kinds = {fault.kind for fault in plan_faults(GATE_SEED, GATE_MINUTES * 60)}
    assert Kind.KILL in kinds
    assert Kind.REWIND in kinds
    assert kinds & {Kind.CUT, Kind.HALF_OPEN, Kind.LATE}
