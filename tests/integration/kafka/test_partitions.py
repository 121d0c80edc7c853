"""A process that is set to another number of partitions than the topics have refuses, in one sentence, before anything else."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import Stack
from tests.integration.api_server import eventually, running_api
from tests.integration.commands import started

REFUSAL = "the topics have 8 partitions and HIGHWATER_PARTITIONS is 4: set it to 8 for every process"
# Exit status by command; the decision worker ends as with any start that failed.
COMMANDS = {("init",): 1, ("worker",): 70, ("connect", "insights"): 1, ("verify", "--only", "tables"): 1}
DOCTOR = ("doctor", "--json")
# Five programs that start side by side: 44 s were seen on a machine with ten times its load.
_SECONDS_MAX = 200.0


@pytest.fixture
def wrong(stack: Stack, tmp_path: Path) -> dict[str, str]:
    """The session's parts, and another number than theirs."""
    return stack.environment(HIGHWATER_PARTITIONS="4", HIGHWATER_DATA_DIR=str(tmp_path))


def test_roles_and_commands_refuse_another_number(wrong: dict[str, str]):
    """`init`, the decision worker, connectors and `verify` end with the number to set; `doctor` calls it bad."""
    with ExitStack() as ending:
        running = {arguments: started(wrong, *arguments) for arguments in (*COMMANDS, DOCTOR)}
        for command in running.values():
            ending.enter_context(command)
            ending.callback(command.kill)
        found = {arguments: command.communicate(timeout=_SECONDS_MAX) for arguments, command in running.items()}
        for arguments, status in COMMANDS.items():
            err = found[arguments][1]
            assert (running[arguments].returncode, REFUSAL in err) == (status, True), (arguments, err)
    topics = next(check for check in json.loads(found[DOCTOR][0]) if check["name"] == "topics")
    assert (topics["state"], REFUSAL in topics["detail"]) == ("bad", True)


async def test_the_api_is_not_ready_and_accepts_nothing(stack: Stack):
    """`/readyz` says why, and a write is a 503 that says the same."""
    with running_api(stack.settings(HIGHWATER_PARTITIONS=4), is_awaited=False) as api:

        async def refuses() -> bool:
            return REFUSAL in (await api.get("/readyz")).text

        async def refuses_a_write() -> bool:
            answer = await api.post("/api/events/feeds.user-active", {"user_id": "nobody", "ts": 1_790_000_000_000})
            assert answer.status_code == 503, answer.text
            return REFUSAL in answer.text

        await eventually(refuses, "the API says why it is not ready")
        await eventually(refuses_a_write, "a write says why it is refused")
