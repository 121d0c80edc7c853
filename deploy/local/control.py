"""Controls a supervisor from outside: start one in the background, query its status, stop it.

Invariant: a status is queried now; the state file only gives the addresses.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from highwater.deploy.local.datadir import checked, is_held, secure
from highwater.deploy.local.errors import (
    AlreadyRunningError,
    LocalStackError,
    MisconfiguredError,
    NotReadyYetError,
    PartFailedError,
)
from highwater.deploy.local.part import Addresses, with_settings
from highwater.deploy.local.private import make_folder, open_file
from highwater.deploy.local.probes import degraded_at, probe_service, probe_url
from highwater.deploy.local.process import LOG_LINES_SHOWN
from highwater.deploy.local.stack_secrets import hidden_password
from highwater.deploy.local.state import living, read_state
from highwater.deploy.local.supervisor import Plan
from highwater.deploy.local.watched import READY_STATES, State
from highwater.streams.progress import HOUR_SECONDS, Progress, Work, WorkLimit, work_of

LOG_NAME = "supervisor.log"
# A supervisor that stops everything looks many times a second whether a part has ended, and gives each part its own limit.
# One that does nothing for this long is stopped itself.
STOP_LIMIT = WorkLimit(quiet_seconds_max=60.0, total_seconds_max=HOUR_SECONDS)
KILLED_SECONDS_MAX = 10.0
DYING_SECONDS_MAX = 2.0  # from SIGKILL to the release of the lock, milliseconds on an idle machine
POLL_SECONDS = 0.1
PROBE_SECONDS = 2.0
STATE_SECONDS_MAX = 5.0  # between a supervisor's lock and its first state file

Report = Callable[[str], None]


def _stays_held(data_dir: Path) -> bool:
    """Return whether a supervisor holds the folder; a killed one releases it a moment after its children are gone."""
    deadline = time.monotonic() + DYING_SECONDS_MAX
    while is_held(data_dir):
        if time.monotonic() > deadline:
            return True
        time.sleep(POLL_SECONDS)
    return False


def start_detached(plan: Plan, report: Report | None = None) -> dict[str, Any]:
    """Start a supervisor that outlives this process, wait until everything is ready, and return its status.

    Raises:
        AlreadyRunningError: One is running on this data folder; `status` has its addresses.
        MisconfiguredError: A role cannot use a setting; everything was stopped again.
        NotReadyYetError: A service is late; everything continues, and `await_ready` waits further.
        PartFailedError: A service failed; everything was stopped again, and its log is supervisor.log.
    """
    data_dir = checked(plan.data_dir)
    if _stays_held(data_dir):
        raise AlreadyRunningError(f"a local stack is already running on {data_dir}")
    identity = _spawn(plan, data_dir)
    try:
        return _await_ready(plan, identity, _Progress(data_dir, report))
    except NotReadyYetError:
        raise
    except BaseException:  # also after Ctrl-C: otherwise nobody would know what was left running
        stop(data_dir)
        raise


def await_ready(plan: Plan, report: Report | None = None) -> dict[str, Any]:
    """Wait until everything that runs on a data folder is ready, and return its status; an interruption stops nothing.

    Raises:
        NotReadyYetError: A part is late.
        PartFailedError: Nothing runs there, or a part failed.
    """
    data_dir = checked(plan.data_dir)
    state = read_state(data_dir)
    if state is None or not is_held(data_dir):
        raise PartFailedError("supervisor", "does not run", [])
    return _await_ready(plan, state["supervisor"], _Progress(data_dir, report, is_from_now=True))


def _await_ready(plan: Plan, identity: dict[str, Any], progress: _Progress) -> dict[str, Any]:
    data_dir = checked(plan.data_dir)
    deadline = time.monotonic() + plan.late_seconds
    while living(identity) is not None:
        progress.tell()
        state = read_state(data_dir)
        if state is not None and state["supervisor"]["pid"] == identity["pid"]:
            _refuse_failed(state, data_dir)
            if state["phase"] == "running" and all(map(_counts_as_up, state["parts"])):
                progress.tell()
                return status(data_dir, plan.given)
        if time.monotonic() > deadline:
            raise _late(state, plan.late_seconds)
        time.sleep(POLL_SECONDS)
    progress.tell()
    state = read_state(data_dir)
    if state is not None and state["supervisor"]["pid"] == identity["pid"] and state["error"]:
        raise (MisconfiguredError if state.get("misconfigured") else LocalStackError)(state["error"])
    raise PartFailedError("supervisor", "ended while starting", _log_lines(data_dir))


def stop(data_dir: Path) -> bool:
    """Stop the supervisor of a data folder with all that it runs; return whether there was one.

    Raises:
        LocalStackError: The folder is in use by something that is not a supervisor.
    """
    data_dir = checked(data_dir)
    deadline = time.monotonic() + STATE_SECONDS_MAX
    supervisor = None
    while is_held(data_dir):
        state = read_state(data_dir)
        supervisor = living(state["supervisor"]) if state else None
        if supervisor is not None:
            break
        if time.monotonic() > deadline:
            raise LocalStackError(f"{data_dir} is in use by a process that is not a supervisor")
        time.sleep(POLL_SECONDS)
    if supervisor is None:
        return False
    supervisor.send_signal(signal.SIGTERM)
    if not _is_released(data_dir, STOP_LIMIT, partial(work_of, supervisor.pid)):
        supervisor.send_signal(signal.SIGKILL)  # its children die with it
        _is_released(data_dir, WorkLimit(KILLED_SECONDS_MAX, KILLED_SECONDS_MAX), Work)
    return True


def status(data_dir: Path, given: Addresses | None = None) -> dict[str, Any]:
    """Return what runs on a data folder and whether all of it answers now.

    The shape is that of `highwater status --json`: the addresses, `ready`, and one entry per service or role with its
    own `ready` and, if that is false, the `reason`; `degraded` names what a ready one does not do, and the command that
    corrects it. The addresses include their passwords, for the tools of the folder's owner; nobody else can read them,
    and output for people hides them (`hidden_password`). `settings` are what clients of a stack with TLS need besides.
    `given` says how external services are probed.
    """
    data_dir = checked(data_dir)
    state = read_state(data_dir)
    if state is None or not is_held(data_dir) or living(state["supervisor"]) is None:
        return _not_running(state)
    named = {name: state.get(name) for name in Addresses().by_name()}  # an older supervisor knows fewer
    settings = state.get("settings", {})  # absent in the state of a supervisor from before there were any
    addresses = with_settings(given or Addresses(), named, settings)
    with ThreadPoolExecutor(max(1, len(state["parts"]))) as pool:
        parts = list(pool.map(lambda part: _looked_at(part, addresses), state["parts"]))
    return {
        "api": state["api"],
        **named,
        "secure": state.get("secure", False),
        "settings": settings,
        "ready": state["phase"] == "running" and all(part["ready"] for part in parts),
        "running": True,
        "phase": state["phase"],
        "supervisor_pid": state["supervisor"]["pid"],
        "data_dir": str(data_dir),
        "parts": parts,
    }


class _Progress:
    """Reports the lines that the supervisor writes to its log during one start."""

    def __init__(self, data_dir: Path, report: Report | None, *, is_from_now: bool = False) -> None:
        self._path = data_dir / "logs" / LOG_NAME
        self._report = report
        self._place = self._path.stat().st_size if is_from_now else 0

    def tell(self) -> None:
        """Report new and complete lines."""
        if self._report is None:
            return
        with self._path.open("rb") as log:
            log.seek(self._place)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._place += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._report(line)


def _spawn(plan: Plan, data_dir: Path) -> dict[str, Any]:
    log_path = data_dir / "logs" / LOG_NAME
    secure(data_dir)
    make_folder(log_path.parent)
    with open_file(log_path, os.O_TRUNC) as log:  # of this start only: the services have logs of their own
        # The plan goes through a pipe: it contains addresses, which may contain passwords.
        answer = subprocess.run(
            [sys.executable, "-m", "highwater.deploy.local.detached"],
            input=json.dumps(plan.to_json()).encode(),
            stdout=subprocess.PIPE,
            stderr=log,
            check=False,
        )
    if answer.returncode != 0:
        raise PartFailedError("supervisor", "could not be started", _log_lines(data_dir))
    identity = json.loads(answer.stdout)
    assert isinstance(identity, dict)
    return identity


def _refuse_failed(state: Mapping[str, Any], data_dir: Path) -> None:
    for part in state["parts"]:
        if part["state"] == State.FAILED and state["phase"] in {"starting", "running"}:
            log = data_dir / "logs" / f"{part['name']}.log"
            raise PartFailedError(part["name"], f"{part['last_error']} (its log: {log})", [])


def _late(state: Mapping[str, Any] | None, seconds: float) -> NotReadyYetError:
    parts = state["parts"] if state else []
    waiting = [f"{part['name']} ({part['last_error'] or part['state']})" for part in parts if not _counts_as_up(part)]
    ready = [part["name"] for part in parts if _counts_as_up(part)]
    return NotReadyYetError(
        f"not ready after {seconds:.0f} s: {', '.join(waiting) or 'supervisor'}. Ready, and left running:"
        f" {', '.join(ready) or 'nothing'}. `highwater up --detach` waits on (HIGHWATER_UP_TIMEOUT_SECONDS says how long),"
        " `highwater down` stops everything"
    )


def _counts_as_up(part: Mapping[str, Any]) -> bool:
    return part["state"] in READY_STATES


def _is_released(data_dir: Path, limit: WorkLimit, work: Callable[[], Work]) -> bool:
    progress = Progress(limit, time.monotonic())
    while is_held(data_dir):
        if progress.why_over(work, time.monotonic()) is not None:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _looked_at(part: dict[str, Any], addresses: Addresses) -> dict[str, Any]:
    reason: str | None = None
    degraded: dict[str, str] = {}
    if not _counts_as_up(part):
        reason = part["last_error"] or f"is {part['state']}"
    elif part["kind"] == "service":
        reason = probe_service(part["name"], addresses, PROBE_SECONDS, part.get("address"))
    elif part["ready_url"] is not None:
        reason = probe_url(part["ready_url"], PROBE_SECONDS, part.get("certificate"))
        if reason is None:
            degraded = degraded_at(part["ready_url"], PROBE_SECONDS, part.get("certificate"))
    return {**part, "ready": reason is None, "reason": reason, "degraded": degraded}


def _not_running(state: dict[str, Any] | None) -> dict[str, Any]:
    parts = [
        {**part, "pid": None, "state": "stopped", "ready": False, "degraded": {}}
        for part in (state or {}).get("parts", [])
    ]
    for part in parts:
        if part.get("address"):
            part["address"] = hidden_password(part["address"])
    names = ("api", *Addresses().by_name())
    return {**dict.fromkeys(names), "ready": False, "running": False, "phase": "stopped", "parts": parts}


def _log_lines(data_dir: Path) -> list[str]:
    text = (data_dir / "logs" / LOG_NAME).read_text(encoding="utf-8", errors="replace")
    return text.splitlines()[-LOG_LINES_SHOWN:]
