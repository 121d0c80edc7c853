"""`highwater up` as a user runs it, services included, for what is measured of the whole."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UP_SECONDS_MAX = 600.0
_PROGRAM = Path(sys.executable).parent / "highwater"


class Installed:
    """A data folder and the stack that runs on it."""

    def __init__(self, data_dir: Path, **settings: str) -> None:
        """`settings`: what of the environment is the stack's, beside its folder."""
        self.data_dir = data_dir
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HIGHWATER_")}
        services = ("KAFKA_BOOTSTRAP_SERVERS", "SCHEMA_REGISTRY_URL", "DATABASE_URL", "REDIS_URL", "REDIS_CACHE_URL")
        self._environment = {name: value for name, value in clean.items() if name not in services}
        self._environment |= {"HIGHWATER_DATA_DIR": str(data_dir), **settings}

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `highwater`; what it says on standard error is that of the one who measures."""
        return subprocess.run(
            [str(_PROGRAM), *arguments],
            env=self._environment, stdout=subprocess.PIPE, text=True, timeout=UP_SECONDS_MAX, check=check,
        )  # fmt: skip

    def up(self, *options: str) -> None:
        """Start everything; returns when it is ready."""
        self.run("up", "--detach", *options)

    def down(self) -> None:
        """Stop everything."""
        self.run("down", check=False)

    def state(self) -> dict[str, Any]:
        """Addresses, settings and processes, as the supervisor wrote them down; it is not asked, which would disturb it."""
        found: dict[str, Any] = json.loads((self.data_dir / "run" / "state.json").read_text(encoding="utf-8"))
        return found

    def processes(self) -> dict[str, int]:
        """Process ids of the supervisor and of what it runs, by name."""
        state = self.state()
        parts = {part["name"]: int(part["pid"]) for part in state["parts"] if part["state"] == "up"}
        return {"supervisor": int(state["supervisor"]["pid"]), **parts}


@contextlib.contextmanager
def installed(*options: str, **settings: str) -> Iterator[Installed]:
    """A stack on a new data folder, ready."""
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as folder:
        stack = Installed(Path(folder) / "data", **settings)
        try:
            stack.up(*options)
            yield stack
        finally:
            stack.down()
