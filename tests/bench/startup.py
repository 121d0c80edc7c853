"""How long a stack takes to be ready: on a new data folder, on one that has run before, and one role after it was killed.

Wall time, which a busy machine stretches, and beside it the processor time that every process had used when all were ready, which
it stretches less. What is downloaded at installation is present already.

    python -m tests.bench.startup [--runs N]
"""

import argparse
import json
import os
import signal
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

from highwater.deploy.local.watched import QUICK_DEATH_SECONDS
from tests.bench.figures import Figure, figure
from tests.bench.idle import ALL, used_by
from tests.bench.installed import Installed

RESTART_SECONDS_MAX = 300.0
COLD, WARM, RESTART = "new data folder", "warm", "one role restarted"
ROLES = ("worker", "sinks", "workers", "materializers", "api")


def _seconds_to_ready(stack: Installed) -> float:
    began = time.monotonic()
    stack.up("--no-sample")
    return time.monotonic() - began


def _restart_seconds(stack: Installed, role: str) -> float:
    """From the request to end to when a role is ready again; it ends in good order, as in a rolling restart."""
    pid = stack.processes()[role]
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    while time.monotonic() - began < RESTART_SECONDS_MAX:
        if not psutil.pid_exists(pid) and stack.processes().get(role) not in (None, pid):
            return time.monotonic() - began
        time.sleep(0.02)  # the pause between two looks
    raise AssertionError(f"{role} is not ready again after {RESTART_SECONDS_MAX:.0f} s")


def run(runs: int = 3) -> list[Figure]:
    """The figures: seconds to ready, and processor seconds of each process until then."""
    seconds: dict[str, list[float]] = defaultdict(list)
    used: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="highwater-bench-") as folder:
            stack = Installed(Path(folder) / "data")
            try:
                seconds[COLD].append(_seconds_to_ready(stack))
                stack.down()
                seconds[WARM].append(_seconds_to_ready(stack))
                for name, one in used_by(stack.processes()).items():
                    used[name].append(one.cpu_seconds)
                time.sleep(
                    QUICK_DEATH_SECONDS + 1
                )  # a role that ends right after its start is started again after a pause
                for role in ROLES:
                    seconds[f"{RESTART}: {role}"].append(_restart_seconds(stack, role))
            finally:
                stack.down()
    figures = [figure("startup", system, "s", values) for system, values in seconds.items()]
    figures += [
        figure("startup, warm", name if name != ALL else "all processes", "CPU s", values)
        for name, values in used.items()
    ]
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    for one_figure in run(parser.parse_args().runs):
        print(json.dumps(one_figure))
