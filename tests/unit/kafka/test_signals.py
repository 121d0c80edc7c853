"""A signal that comes while librdkafka's binding makes a client."""

import subprocess
import sys

import pytest

# In a process of its own, since the timer of this one is that of its tests' limits.
PROGRAM = """
import random, signal
from {module} import open_reader

class Interrupted(Exception):
    pass

def handle(*_):
    if is_making:
        raise Interrupted

signal.signal(signal.SIGALRM, handle)
chance, interrupted = random.Random(7), 0
for _ in range(400):
    client, is_making = None, True
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 4e-4))
        client = open_reader({{"bootstrap.servers": "127.0.0.1:1", "log_level": 0}})
    except Interrupted:
        interrupted += 1
    finally:
        is_making = False
    if client is not None:
        client.close()
print(interrupted)
"""


@pytest.mark.parametrize("module", ["highwater.connectors.replay.consumer", "highwater.connectors.kafka.reading"])
def test_a_signal_while_a_client_is_made_stays_what_it_is(module):
    """Without the wait, one signal in ten comes out as a TypeError about a setting."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert int(done.stdout) > 0
