"""An installation of the last release under load whose roles are replaced by today's code, one at a time, and back."""

from __future__ import annotations

import io
import itertools
import os
import shlex
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import httpx2

from highwater.api.chaos.ground import Ground
from highwater.api.chaos.load import CHANNELS, READERS
from highwater.api.cli.stack import make_plan
from highwater.deploy.local.supervisor import Plan
from highwater.streams.access import trusts_nobody
from highwater.streams.settings import SETTINGS, Settings
from tests import ROOT

# The commit whose migrations and schemas tests/contract/last_release.json has.
LAST_RELEASE = "1f759fc"
# The writing and deciding roles start before the APIs: so no older process reads what a new API writes.
ORDER = ("sinks", "materializers", "workers", "worker", "api")
READY_SECONDS_MAX = 240.0
_ASKED_SECONDS_MAX = 30.0
_PAUSE_SECONDS = 0.05
# A role is started with the environment that its link leads to, which is read once: a process that imports a module late finds it
# in its own version.
_BY_LINK = ("sh", "-c", '. "$0" && exec "$@"')
_SETTINGS_OF_IT = "from highwater.streams.settings import SETTINGS; print(*SETTINGS)"


def unpack_last_release(folder: Path) -> None:
    """The files of the last release."""
    done = subprocess.run(["git", "archive", LAST_RELEASE], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, f"the history has no {LAST_RELEASE}: {done.stderr.decode()}"
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


class Versions:
    """The version with which each role is started; the files of both, and the settings to be set and unset for each."""

    def __init__(self, folder: Path) -> None:
        self.old = folder / "last-release"
        self.old.mkdir(parents=True)
        unpack_last_release(self.old)
        self.new = ROOT
        self._links = folder / "version-of"
        self._links.mkdir()
        self._write(self.old, unset=sorted(set(SETTINGS) - self._settings_of(self.old)))
        self._write(self.new, unset=[])

    def choose(self, role: str, version: Path) -> None:
        """Have the next process of a role run a version."""
        fresh = self._links / f"{role}.new"
        fresh.symlink_to(self._environment_of(version))
        fresh.replace(self._links / role)

    def _environment_of(self, version: Path) -> Path:
        return self._links / ("old.sh" if version == self.old else "new.sh")

    def _write(self, version: Path, unset: Sequence[str]) -> None:
        # The last release refuses settings that it does not know, as this one does.
        lines = [f"export PYTHONPATH={shlex.quote(str(version))}", *(f"unset {name}" for name in unset)]
        self._environment_of(version).write_text("\n".join([*lines, ""]), encoding="utf-8")

    def _settings_of(self, version: Path) -> set[str]:
        environment = {**os.environ, "PYTHONPATH": str(version)}
        command = [sys.executable, "-P", "-c", _SETTINGS_OF_IT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    def plan(self, settings: Settings, environment: Mapping[str, str]) -> Plan:
        """The plan of `highwater up`, every role of it by its link, to the last release at first."""
        plan = make_plan(settings, environment)
        for role in plan.roles:
            self.choose(role.name, self.old)
        return replace(
            plan,
            roles=tuple(
                replace(role, argv=(*_BY_LINK, str(self._links / role.name), *role.argv)) for role in plan.roles
            ),
        )


def version_of(pid: int) -> Path:
    """The version that a process runs."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(Path(os.fsdecode(one.partition(b"=")[2])) for one in entries if one.startswith(b"PYTHONPATH="))


@dataclass
class Clients:
    """Readers and writers of the API, who go to another process of it when one does not answer, as a load balancer does."""

    addresses: list[str]
    acknowledged: list[str] = field(default_factory=list)
    reads: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    shed: int = 0
    step: str = "the last release alone"
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Begin."""
        self._threads = [threading.Thread(target=self._keep(one)) for one in (self._read, self._write)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End after the requests in progress."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _keep(self, work: Callable[[httpx2.Client, int], None]) -> Callable[[], None]:
        def run() -> None:
            with httpx2.Client(timeout=_ASKED_SECONDS_MAX, verify=trusts_nobody()) as client:
                for number in itertools.count():
                    if self._ended.wait(_PAUSE_SECONDS):
                        return
                    try:
                        work(client, number)
                    except Exception as error:  # noqa: BLE001 - a thread of a test: reported by the test
                        self.failures.append(repr(error))

        return run

    def _ask(self, client: httpx2.Client, method: str, path: str, **more: Any) -> httpx2.Response | None:
        """The answer of the first process that gives one; None if none does."""
        said: list[str] = []
        for address in list(self.addresses):
            try:
                answer = client.request(method, address + path, **more)
            except httpx2.TransportError as error:
                said.append(repr(error))
                continue
            if answer.status_code not in (502, 503):
                return answer
            said.append(f"{answer.status_code} {answer.text[:200]}")
        self.failures.append(f"{self.step}: {method} {path}: {said}")
        return None

    def _read(self, client: httpx2.Client, number: int) -> None:
        reader = READERS[number // 7 % len(READERS)]
        path = (
            f"/api/users/{reader}/feed", f"/api/users/{reader}/clusters", f"/api/users/{reader}/pending",
            f"/api/channels/{CHANNELS[number // 7 % len(CHANNELS)]}", "/api/league/season-0/table",
            "/api/league/season-0/schedule", "/api/chunks/search?ns=notes&q=lease",
        )[number % 7]  # fmt: skip
        answer = self._ask(client, "GET", path)
        if answer is None:
            return
        if answer.status_code in (202, 404) and path not in self.versions:
            return  # missing so far
        if answer.status_code != 200:
            self.failures.append(f"GET {path}: {answer.status_code} {answer.text[:200]}")
            return
        self.reads[path] += 1
        version = int(answer.headers.get("x-resource-version", 0))
        before = self.versions.get(path, 0)
        if version < before:
            self.failures.append(f"GET {path}: version {version} after {before}")
        self.versions[path] = max(version, before)

    def _write(self, client: httpx2.Client, number: int) -> None:
        event = {
            "insight_id": f"client-{number}", "channel_id": CHANNELS[number % len(CHANNELS)],
            "ts": "2026-11-20T00:00:00Z", "text": f"consumer group rebalance of part {number // 7}",
        }  # fmt: skip
        while not self._ended.is_set():
            answer = self._ask(client, "POST", "/api/events/feeds.insight-ingested", json=event)
            if answer is not None and answer.is_success:
                self.acknowledged.append(event["insight_id"])
                return
            if answer is not None:
                assert answer.status_code == 429, f"{answer.status_code} {answer.text}"
                self.shed += 1
            self._ended.wait(_PAUSE_SECONDS)


class Rollout:
    """Replaces the roles of an installation."""

    def __init__(self, ground: Ground, versions: Versions, clients: Clients, awaited: Callable[[str], None]) -> None:
        self._ground = ground
        self._versions = versions
        self._clients = clients
        self._awaited = awaited  # until written data is read, under the name of a step
        self.seconds: dict[str, float] = {}

    def to(self, version: Path) -> None:
        """Every role, in the order of an upgrade; back in the same order."""
        for role in ORDER:
            began = time.monotonic()
            self._clients.step = f"{role} to {version.name}"
            self._replace(role, version)
            self.seconds[self._clients.step] = round(time.monotonic() - began, 1)

    def _replace(self, role: str, version: Path) -> None:
        """Start one of the version beside it, have both work, replace the first, end the second."""
        ground = self._ground
        self._versions.choose(role, version)
        address = ground.start_second(role)
        ground.until(lambda: _is_ready(address), f"a second {role} is not ready", READY_SECONDS_MAX)
        if role == "api":
            self._clients.addresses.append(address)
        self._awaited(f"both {role}")
        before, pid = ground.restarts()[role], ground.role_pid(role)
        assert pid is not None
        os.kill(pid, 15)
        ground.until(lambda: ground.restarts()[role] > before, f"{role} is not started again", READY_SECONDS_MAX)
        ground.until(ground.is_ready, f"{role} is not ready", READY_SECONDS_MAX)
        replaced = ground.role_pid(role)
        assert replaced is not None
        assert version_of(replaced) == version
        self._awaited(f"two of the same {role}")
        if role == "api":
            self._clients.addresses.remove(address)
        ground.stop_second(role)
        self._awaited(f"one {role}")


def _is_ready(address: str) -> bool:
    try:
        return httpx2.get(f"{address}/readyz", timeout=5, verify=trusts_nobody()).status_code == 200
    except httpx2.TransportError:
        return False
