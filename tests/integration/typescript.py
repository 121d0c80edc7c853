"""TypeScript's compiler and the generator of types, as `typescript/package-lock.json` locks them by hash.

They come from npm, once for each lock: installed ones are used without network. If npm is not installed or does not
reach its registry, tests that need them are left out with that reason; a package that is not the locked one fails them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

LEFT_OUT = "there is no npm; `apt install npm` has the tests of TypeScript run"
# npm's error without a registry.
_UNREACHABLE = re.compile(r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT)\b")
_INSTALL = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1")
_INSTALL_SECONDS = 120


def install(project: Path) -> Path:
    """The folder `node_modules` with exactly what the lock of a project names."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(LEFT_OUT)
    lock = hashlib.sha256((project / "package-lock.json").read_bytes()).hexdigest()
    folder = Path(sys.prefix) / "share" / "highwater-tests" / f"npm-{lock[:16]}"
    if not (folder / "node_modules").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".npm-") as scratch:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(project / name, scratch)
            done = _run([npm, *_INSTALL], Path(scratch), timeout=_INSTALL_SECONDS)
            if done.returncode and _UNREACHABLE.search(done.stderr):
                pytest.skip(f"npm does not reach its registry: {done.stderr.splitlines()[0]}")
            assert done.returncode == 0, done.stderr
            folder.mkdir(exist_ok=True)
            (Path(scratch) / "node_modules").rename(folder / "node_modules")
    return folder / "node_modules"


def node(folder: Path, *arguments: str) -> str:
    """The output of a program that Node.js runs in a folder; it must end with 0."""
    program = shutil.which("node")
    assert program is not None, "npm is installed without Node.js"
    done = _run([program, *arguments], folder, timeout=_INSTALL_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _run(command: list[str], folder: Path, *, timeout: int) -> subprocess.CompletedProcess[str]:
    environment: dict[str, Any] = {**os.environ, "NO_COLOR": "1", "NO_UPDATE_NOTIFIER": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
