"""`highwater history-check` on the running product: a correct product has no violation, and the history shows every operation.

`HIGHWATER_HISTORY_SECONDS=300` lets the clients work longer.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from highwater.api.history_check.checks import CHECKS
from highwater.api.history_check.history import Action, Completion, Invocation, read_history
from tests.product import Product

# Beside the run of `highwater chaos`, which has the same clients for most of a minute.
SECONDS = float(os.environ.get("HIGHWATER_HISTORY_SECONDS", "15"))
pytestmark = [pytest.mark.long, pytest.mark.timeout(400 + SECONDS)]


def test_a_history_of_the_product_has_no_violation(product: Product, tmp_path: Path):
    """Also while the sinks are killed: clients by HTTP and Kafka, through two API processes; every check has compared something,
    and the kept history, checked by itself, has the same verdict.
    """
    path = tmp_path / "history.jsonl"
    arguments = ("--seconds", str(SECONDS), "--clients", "4", "--seed", "3", "--history", str(path), "--json")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(product.cli, "history-check", *arguments, check=False, timeout_seconds=300 + SECONDS)
        product.until(lambda: path.exists() and path.stat().st_size > 100_000, "the clients do not work")
        product.kill("sinks")
        done = running.result()
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["violations"], found["unread"]) == ([], 0)
    # Whether a client retracts, erases and submits within seconds is drawn; the checks of everything else have their subjects.
    assert set(found["compared"]) == {check.name for check in CHECKS}
    assert found["compared"]["exactly once"] > found["stored"]["insights"] > 0
    assert min(found["compared"][name] for name in ("dense order", "real-time order", "positioned read")) > 0

    events = list(read_history(path))
    invoked = [one for one in events if isinstance(one, Invocation)]
    assert len({one.api for one in invoked if one.api != "kafka"}) == 2
    assert {one.action for one in invoked if one.api == "kafka"} == {Action.WRITE_INSIGHT}
    assert any(one.positions and one.status == 202 for one in events if isinstance(one, Completion))

    again = product.cli("history-check", "--check", str(path), "--json", check=False)
    assert again.returncode == 0
    assert json.loads(again.stdout)["compared"] == found["compared"]


def test_a_history_with_a_violation_ends_with_one(product: Product, tmp_path: Path):
    """Each violation is a line with its operations; a file of another kind and an API that does not answer end with 2."""
    path = tmp_path / "history.jsonl"
    page = {"client": "a", "action": "read-page", "resource": "league:s/table"}
    lines = [{"history": 1, "seed": 0, "apis": []}]
    for number, version in ((1, 2), (2, 1)):
        api = f"http://api-{number}"
        lines.append(
            {"type": "invocation", "number": number, "at_ns": number * 10, "api": api, **page, "client": f"c{number}"}
        )
        lines.append({"type": "completion", "number": number, "at_ns": number * 10 + 5, "status": 200, "version": version,
                      "etag": f'W/"{version}"', "body_hash": str(version)})  # fmt: skip
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    done = product.cli("history-check", "--check", str(path), check=False)
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if line.startswith("real-time order: "))
    assert "version 1 of league:s/table was read after version 2: operation 1 (c1 at http://api-1" in line
    assert "; operation 2 (c2 at http://api-2" in line

    path.write_text("{}\n", encoding="utf-8")
    done = product.cli("history-check", "--check", str(path), check=False)
    assert (done.returncode, "is not a history" in done.stderr) == (2, True)
    done = product.cli("history-check", "--api", "http://127.0.0.1:1", "--seconds", "1", check=False)
    assert (done.returncode, "no API is ready at http://127.0.0.1:1" in done.stderr) == (2, True)
