"""A server that root runs as another user reaches its own programs and data in folders that only root may enter."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from highwater.deploy.local.process import CHILD_PROGRAM


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs a server as another user")
def test_a_program_in_a_private_folder_is_found_and_run(tmp_path: Path) -> None:
    """As in a checkout in root's own home: PostgreSQL asks access(2) whether its programs are there, and runs them."""
    tmp_path.chmod(0o700)
    program = tmp_path / "program"
    shutil.copy("/bin/true", program)
    program.chmod(0o755)
    nobody = pwd.getpwnam("nobody")
    user = ["--uid", str(nobody.pw_uid), "--gid", str(nobody.pw_gid)]
    asked = "import os, subprocess, sys; sys.exit(not os.access(sys.argv[1], os.X_OK) or subprocess.call(sys.argv[1]))"
    statuses = {}
    for name, reach in (("with", ["--reach"]), ("without", [])):
        shim = [sys.executable, "-I", "-S", str(CHILD_PROGRAM), "--parent-pid", str(os.getpid()), *user, *reach, "--"]
        command = [*shim, "/usr/bin/python3", "-I", "-S", "-c", asked, str(program)]
        statuses[name] = subprocess.run(command, capture_output=True, check=False, cwd="/").returncode
    assert statuses == {"with": 0, "without": 1}
