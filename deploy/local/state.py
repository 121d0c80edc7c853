"""The state file of a supervisor, <data_dir>/run/state.json, and the processes that it names.

Invariant: it is replaced atomically, so a reader never sees part of one; a process is identified by its number and its
start time, so a reused number is not mistaken for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.private import replace_file

BEGAN_SECONDS_APART = 0.5  # psutil computes it from clock ticks and the boot time: exact to a hundredth


def state_path(data_dir: Path) -> Path:
    """Return the path of the state file."""
    return data_dir / "run" / "state.json"


def write_state(data_dir: Path, state: dict[str, Any]) -> None:
    """Replace the state file; only its owner can read it, since the addresses include passwords."""
    replace_file(state_path(data_dir), json.dumps(state, indent=1))


def read_state(data_dir: Path) -> dict[str, Any] | None:
    """Return the last state that was written, None if none ever was.

    Raises:
        LocalStackError: The file is not what a supervisor writes.
    """
    try:
        state = json.loads(state_path(data_dir).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LocalStackError(
            f"{state_path(data_dir)} is not readable: {error}; remove it, the next start writes another"
        ) from error
    if not isinstance(state, dict):
        raise LocalStackError(
            f"{state_path(data_dir)} is not a supervisor's state; remove it, the next start writes another"
        )
    return state


def folder_identity(data_dir: Path, inode: int) -> dict[str, Any]:
    """Return the path of a data folder and the number of its lock file; a copy of it has others."""
    return {"path": os.fsencode(data_dir).hex(), "inode": inode}


def is_copied(state: Mapping[str, Any], folder: Mapping[str, Any]) -> bool:
    """Return whether a state was written in another folder than this one, from which this one is a copy.

    A moved folder keeps its files, and a restored one its path.
    """
    before = state.get("folder") or {}
    return bool(before) and all(before[name] != folder[name] for name in ("path", "inode"))


def copy_refusal(state: Mapping[str, Any], data_dir: Path) -> str | None:
    """Return why a copy must not be started; None if its stack had ended when it was made."""
    if state.get("phase") not in {"starting", "running", "stopping"}:
        return None
    return (
        f"{data_dir} was copied while its stack ran, so the files of its services may not fit together: stop that stack"
        " (`highwater down`), copy the folder again and start the copy. If it is a snapshot of the file system at one moment,"
        f" remove {state_path(data_dir)} and start again"
    )


def own_identity() -> dict[str, Any]:
    """Return the number and start time of this process."""
    me = psutil.Process()
    return {"pid": me.pid, "began": me.create_time()}


def living(identity: dict[str, Any]) -> psutil.Process | None:
    """Return the process of a {pid, began}, None if it has ended."""
    if identity.get("pid") is None or identity.get("began") is None:
        return None
    try:
        process = psutil.Process(int(identity["pid"]))
        is_same = abs(process.create_time() - float(identity["began"])) < BEGAN_SECONDS_APART
        return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def end_leftovers(state: dict[str, Any], wait_seconds: float) -> None:
    """End everything that a dead supervisor left: its children, and theirs.

    The kernel has signalled the children; they are awaited, so that their ports and files are free. Their own children
    got no signal: they are found by the session, which is named by its first process.
    """
    identities = [part for part in state.get("parts", []) if part.get("pid")]
    _, alive = psutil.wait_procs([p for i in identities if (p := living(i))], timeout=wait_seconds)
    sessions = {int(i["pid"]) for i in identities if not psutil.pid_exists(int(i["pid"]))}
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) in sessions:
                alive.append(process)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(alive, timeout=wait_seconds)
