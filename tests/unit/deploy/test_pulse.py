"""A role that has hung is started again: the decision, and a process that is stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from highwater.deploy.local.probes import is_answering
from highwater.deploy.local.process import Command, ManagedProcess
from highwater.deploy.local.pulse import SILENCE_SECONDS, SILENCES_MAX, Listener, Pulse
from highwater.deploy.local.watched import State, Watched
from tests.integration.connecting import free_port

# Answers every request with 503, as a role does that waits for the database.
UNREADY = """
import http.server, sys
class Unready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(503)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Unready).serve_forever()
"""


@pytest.mark.parametrize(
    ("heard", "is_lost"),
    [
        ([True] + [False] * SILENCES_MAX, True),
        ([True] + [False] * (SILENCES_MAX - 1), False),
        ([True] + [False] * (SILENCES_MAX - 1) + [True] + [False] * (SILENCES_MAX - 1), False),
        ([False] * 10 * SILENCES_MAX, False),
        ([False] * 100 + [True] + [False] * SILENCES_MAX, True),
    ],
    ids=["silent", "nearly", "one answer between", "never answered: it is starting", "after a slow start"],
)
def test_a_minute_of_silence_is_the_end(heard: list[bool], is_lost: bool):
    """A role is lost after twelve silences of five seconds without an answer between, once it has answered at all."""
    pulse = Pulse()
    for is_answer in heard:
        pulse = pulse.after(is_answer=is_answer)
    assert is_lost == pulse.is_lost()
    assert SILENCES_MAX * SILENCE_SECONDS == 60.0


def test_a_stopped_role_is_started_again(tmp_path: Path):
    """A role that answers 503 is left alone; stopped in the middle it is ended and started again, and answers."""
    port = free_port()
    process = ManagedProcess("role", tmp_path / "role.log")
    url = f"http://127.0.0.1:{port}/readyz"
    watched = Watched(
        "role",
        "role",
        process,
        launch=lambda: process.start(Command((sys.executable, "-c", UNREADY, str(port)))),
        probe=lambda: "not ready",
        listener=Listener(partial(is_answering, url), interval_seconds=0.2, silences_max=3),
    )

    def step_until(condition, what: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, what
            watched.step(time.monotonic())

    try:
        watched.begin(time.monotonic())
        step_until(lambda: is_answering(url, 1.0), "it answers")
        answered_until = time.monotonic() + 1.0
        step_until(lambda: time.monotonic() > answered_until, "a second passes")
        assert (watched.restarts, watched.state) == (0, State.STARTING)
        os.kill(process.pid or 0, signal.SIGSTOP)
        step_until(lambda: watched.restarts == 1, "it is started again")
        assert watched.last_error == "its readiness did not answer for 1 s"
        step_until(lambda: is_answering(url, 1.0), "the new one answers")
    finally:
        process.kill()
