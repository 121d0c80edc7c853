"""The supervisor pauses for long while nothing happens, and for no longer than that."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from highwater.deploy.local.attention import Attention

AN_HOUR = 3_600.0


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is killed."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


def ends(attention: Attention, pids: list[int], cause: Callable[[], object]) -> bool:
    """Return whether a one-hour pause ends by a cause."""
    pausing = threading.Thread(target=attention.pause, args=(pids, AN_HOUR), daemon=True)
    pausing.start()
    cause()
    pausing.join(60)
    return not pausing.is_alive()


def test_the_end_of_a_process_ends_a_pause(child: subprocess.Popen[bytes]) -> None:
    """It was killed during the pause, and again after its end and before the next one, with no check in between."""
    attention = Attention()
    assert ends(attention, [child.pid], child.kill)
    assert ends(attention, [child.pid], lambda: None)
    child.wait()
    assert ends(attention, [child.pid], lambda: None)


def test_a_request_ends_every_pause(child: subprocess.Popen[bytes]) -> None:
    """The one that lasts and those that follow, however often it is made."""
    attention = Attention()
    assert ends(attention, [child.pid], attention.wake)
    for _ in range(100_000):  # more than its pipe holds
        attention.wake()
    assert ends(attention, [], lambda: None)


def test_a_pause_ends_by_itself(child: subprocess.Popen[bytes]) -> None:
    """When its time is over."""
    Attention().pause([child.pid], 0.01)
    assert child.poll() is None
