"""`highwater up --brokers 3 --workers 2` with other partitions than ours: several brokers on one machine. On demand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from confluent_kafka.admin import AdminClient

from highwater.schemas.topics import TOPICS, all_topics
from highwater.streams.processes import API, PROCESSES
from tests.integration.agents import until
from tests.product import POLICY

_START_SECONDS_MAX = 300.0
_PARTITIONS = 12
ROLES = tuple(name.removeprefix("connect-") for name in PROCESSES if name != API)
_CHANNELS = [f"channel-{number}" for number in range(30)]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif("HIGHWATER_THREE_BROKERS" not in os.environ, reason="minutes; HIGHWATER_THREE_BROKERS=1"),
    pytest.mark.timeout(900),
]


def highwater(folder: Path, *arguments: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """The command on a data folder; `more` is set in its environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HIGHWATER_", "KAFKA_"))}
    return subprocess.run(
        [sys.executable, "-P", "-m", "highwater.api.cli.main", *arguments],
        env={
            **clean,
            "HIGHWATER_DATA_DIR": str(folder),
            "HIGHWATER_POLICY": str(folder.parent / "policy.toml"),
            **more,
        },
        input=stdin,
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=_START_SECONDS_MAX * 2,
        check=False,
    )


def status(folder: Path) -> dict[str, Any]:
    """The output of `status`."""
    found: dict[str, Any] = json.loads(highwater(folder, "status", "--json").stdout)
    return found


def pid_of(folder: Path, name: str) -> int:
    """The process number of a service."""
    return int(next(part["pid"] for part in status(folder)["parts"] if part["name"] == name))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A data folder on which three brokers and two of each role run."""
    made = tmp_path / "data"
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    try:
        options = ("--detach", "--no-sample", "--brokers", "3", "--workers", "2")
        done = highwater(made, "up", *options, HIGHWATER_PARTITIONS=str(_PARTITIONS))
        assert done.returncode == 0, done.stderr
        yield made
    finally:
        highwater(made, "down")


def test_a_broker_and_a_process_of_each_role_die_and_come_back(folder: Path):
    """Topics have three replicas; with a broker and the first of each role killed, writes continue and all is ready again."""
    found = status(folder)
    expected = {"kafka", "kafka_2", "kafka_3", "api", "init", *ROLES, *(f"{name}-2" for name in ROLES)}
    assert expected <= {part["name"] for part in found["parts"] if part["ready"]}
    metadata = AdminClient({"bootstrap.servers": found["kafka"]}).list_topics(timeout=30)
    assert len(metadata.brokers) == 3
    names = {topic.name for topic in all_topics()}
    assert names <= set(metadata.topics)
    replicas = {len(place.replicas) for name in names for place in metadata.topics[name].partitions.values()}
    assert replicas == {3}
    for name, topic in metadata.topics.items():
        if name.endswith("-changelog") or (name in TOPICS and TOPICS[name].fixed_partitions is None):
            assert len(topic.partitions) == _PARTITIONS, name
    killed = {name: pid_of(folder, name) for name in ("kafka_2", *ROLES)}
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)
    for number in range(50):
        until(lambda number=number: is_accepted(found["api"], f"user-{number}"), "writes go on", _START_SECONDS_MAX)
    until(lambda: status(folder)["ready"], "everything is ready again", _START_SECONDS_MAX)
    assert all(pid_of(folder, name) != pid for name, pid in killed.items())
    until(lambda: is_in_sync(folder), "every replica is in sync", _START_SECONDS_MAX)


def test_decisions_work_on_another_number_of_partitions(folder: Path):
    """Insights of channels in all partitions reach a reader's clusters by the worker's decision; `verify` finds no difference."""
    api = status(folder)["api"]
    for method, path, body in (
        ("PUT", "plan", {"plan": "pro"}),
        ("POST", "activity", {}),
        ("PUT", "subscriptions", {"channels": _CHANNELS}),
    ):
        answer = httpx2.request(method, f"{api}/api/users/reader/{path}", json=body, timeout=60)
        assert answer.status_code == 202, answer.text
    insights = [
        {
            "insight_id": f"{channel}-{number}",
            "channel_id": channel,
            "ts": "2026-11-20T00:00:00Z",
            "text": f"Fix the {('parser', 'cache', 'broker')[number % 3]} when the input of case {number % 7} is empty",
        }
        for channel in _CHANNELS
        for number in range(10)
    ]
    lines = "".join(json.dumps(one) + "\n" for one in insights)
    # Without the setting in its environment: a command on the data folder has it from the stack that runs there.
    done = highwater(folder, "publish", "feeds.insight-ingested", "-", "--rebase-to", "now", stdin=lines)
    assert done.returncode == 0, done.stderr

    def is_rebuilt() -> bool:
        found = httpx2.get(f"{api}/api/users/reader/pending", timeout=60).json()
        return bool(found["cluster_version"] >= 1 and found["pending"] == 0 and not found["in_flight"])

    until(is_rebuilt, "the reader's clusters are rebuilt by a decision of the worker", _START_SECONDS_MAX)
    found = json.loads(highwater(folder, "verify", "--json").stdout)
    assert (found["differences"], found["compared"] > len(insights)) == (0, True), found


def is_accepted(api: str, user: str) -> bool:
    """Whether an event is accepted; a client sends it again while the killed broker's partitions have no leader yet."""
    answer = httpx2.post(
        f"{api}/api/events/feeds.user-active", json={"user_id": user, "ts": 1_790_000_000_000}, timeout=60
    )
    assert answer.status_code in {202, 503}, answer.text
    return answer.status_code == 202


def is_in_sync(folder: Path) -> bool:
    """Whether `doctor` finds every replica in sync; it says of three brokers that they are three."""
    checks = {check["name"]: check for check in json.loads(highwater(folder, "doctor", "--json").stdout)}
    assert checks["kafka"]["detail"].startswith("3 brokers at ")
    return bool(checks["replicas"]["state"] == "ok")


def test_a_folder_of_three_brokers_is_started_as_such(folder: Path):
    """`down` ends every broker; `up` without the option starts all three again, with another number it refuses."""
    pids = [part["pid"] for part in status(folder)["parts"] if part["pid"]]
    assert highwater(folder, "down").returncode == 0
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    refused = highwater(folder, "up", "--detach", "--brokers", "1")
    assert (refused.returncode, "was made with 3 brokers" in refused.stderr) == (1, True), refused.stderr
    wrong = highwater(folder, "up", "--detach", "--no-sample")
    assert (wrong.returncode, f"set it to {_PARTITIONS} for every process" in wrong.stderr) == (1, True), wrong.stderr
    assert highwater(folder, "up", "--detach", "--no-sample", HIGHWATER_PARTITIONS=str(_PARTITIONS)).returncode == 0
    found = status(folder)
    assert found["ready"], found["parts"]
    assert len(found["kafka"].split(",")) == 3
    assert "worker-2" not in {part["name"] for part in found["parts"]}
