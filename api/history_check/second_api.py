"""A second API process beside the one that runs, so that reads can be compared across processes.

Invariant: it is started as an operator starts another API (`highwater api` with the addresses of the services), on a free
port of this machine, and it ends with the run.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from highwater.streams.settings import Settings

_STOP_SECONDS = 15.0


@contextlib.contextmanager
def second_api(settings: Settings) -> Iterator[str]:
    """Start it and yield its address; it may not be ready yet. Its log goes to its own folder, which is deleted."""
    with tempfile.TemporaryDirectory(prefix="highwater-api-") as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        with (Path(folder) / "api.log").open("wb") as log:
            command = [sys.executable, "-m", "highwater.api.cli.main", "api"]
            process = subprocess.Popen(  # noqa: S603 - our own program
                command, env={**os.environ, **_environment(settings, folder, port)}, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
            )  # fmt: skip
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment(settings: Settings, folder: str, port: int) -> Mapping[str, str]:
    addresses = {
        "KAFKA_BOOTSTRAP_SERVERS": settings.kafka,
        "SCHEMA_REGISTRY_URL": settings.schema_registry,
        "DATABASE_URL": settings.database,
        "REDIS_URL": settings.redis,
        "REDIS_CACHE_URL": settings.redis_cache,
    }
    own = {"HIGHWATER_DATA_DIR": folder, "HIGHWATER_HOST": "127.0.0.1", "HIGHWATER_PORT": str(port)}
    return {**{name: value for name, value in addresses.items() if value is not None}, **own}
