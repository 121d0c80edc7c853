"""The last release is upgraded under load, role by role, and rolled back: nothing is lost, duplicated or unserved. On demand."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path

import httpx2
import pytest

from highwater.api.chaos.ground import Ground, Remedies
from highwater.api.chaos.load import Load, round_of
from highwater.api.chaos.run import RECOVERY_SECONDS_MAX, Outcome, Run
from highwater.api.cli.verify import run_verification
from highwater.connectors.verify.report import Report
from highwater.streams.clock import ProductClock
from highwater.streams.settings import Settings
from tests.integration.commands import PROGRAM
from tests.integration.deploy.rolling import ORDER, Clients, Rollout, Versions, version_of

# A second job begins with the ninth.
ROUNDS_BEFORE = 10
_PARTS = ("tables", "models", "decisions", "effects")

pytestmark = [
    pytest.mark.skipif("HIGHWATER_ROLLING" not in os.environ, reason="ten minutes; HIGHWATER_ROLLING=1"),
    pytest.mark.timeout(3_600),
]


async def verify(settings: Settings) -> Report:
    """Everything, by today's code."""
    return await run_verification(settings, _PARTS, is_quiet=True)


def remedy(settings: Settings) -> dict[str, str]:
    """No fault of this test takes records away."""
    raise AssertionError(settings)


def command(ground: Ground, *arguments: str) -> str:
    """The output of a command of today's version on the installation."""
    environment = {**os.environ, **ground.environment}
    done = subprocess.run(
        [*PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout} {done.stderr}"
    return done.stdout


def send_rounds(api_url: str) -> None:
    """The first rounds of the load by way of the last release, which encodes them by its own schemas."""
    with httpx2.Client(base_url=api_url, timeout=60) as api:
        for name, event in (one for number in range(ROUNDS_BEFORE) for one in round_of(number, ProductClock()())):
            answer = api.post(f"/api/events/{name}", json=event)
            assert answer.status_code == 202, f"{name} {event}: {answer.text}"


def test_every_role_is_replaced_under_load_and_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """To today's version, back to the last release, to today's again: old and new beside each other."""
    monkeypatch.delenv("HIGHWATER_ROLLING")  # the last release refuses settings that it does not know
    versions = Versions(tmp_path)
    (tmp_path / "stack").mkdir()
    outcome = Outcome(0, [])
    probes = itertools.count(1)
    with Ground(tmp_path / "stack", versions.plan, Remedies(remedy, remedy), print) as ground:
        clients = Clients([ground.api_url])
        with clients:
            assert {version_of(ground.role_pid(role) or 0) for role in ORDER} == {versions.old}
            send_rounds(ground.api_url)
            ground.until(lambda: len(clients.acknowledged) > 100, "the last release takes no writes", 120)
            found = json.loads(command(ground, "upgrade", "--check", "--json"))
            print("upgrade --check:", json.dumps(found, indent=1))
            assert [one for one in found if one["state"] == "bad"] == []
            command(ground, "init")
            with Load(ground.settings, ground.api_url, rounds=ROUNDS_BEFORE) as load:

                def is_read(step: str) -> None:
                    number = next(probes)
                    ground.until(lambda: load.probe(number), f"an event is not taken: {step}", RECOVERY_SECONDS_MAX)
                    ground.until(lambda: load.sees(number), f"an event is not read: {step}", RECOVERY_SECONDS_MAX)

                rollout = Rollout(ground, versions, clients, is_read)
                is_read("the last release on the new tables")
                for version in (versions.new, versions.old, versions.new):
                    rollout.to(version)
        run = Run(ground, load, outcome, lambda _recovery: None)
        run.note_load()
        outcome.sent["insights"] += len(clients.acknowledged) + next(probes) - 1
        run.settle()
        run.check(verify)
    print(json.dumps({"seconds": rollout.seconds, "sent": outcome.sent, "requests": outcome.requests,
                      "compared": outcome.compared, "reads": clients.reads, "shed": clients.shed}, indent=1))  # fmt: skip
    assert outcome.problems + clients.failures[:20] == []
    assert min(clients.versions.values()) >= 0
    assert sum(clients.reads.values()) > 0
