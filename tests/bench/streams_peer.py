"""Kafka Streams as the peer of the worker's tables.

Kafka Streams is fetched (two jars beside the broker's, 65 MB, kept in the user's cache), compiled and run with the machine's JDK;
where there is none, or no network, it is left out, and the results say so by not naming it.
"""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from highwater.deploy.local.errors import FetchError
from highwater.deploy.local.fetch import LockedFile, _context, _download
from highwater.deploy.local.installed import install_root
from tests import ROOT

CACHE = Path.home() / ".cache" / "highwater" / "bench"
STREAMS = "Kafka Streams 4.4"
CACHE_BYTES = 10 << 20  # its default
WAIT_SECONDS = 300.0
_JARS = (
    LockedFile(
        "peer",
        "org.apache.kafka:kafka-streams:4.4.0:jar",
        "6e06548a119adf213121ad2e4fefff6ab4263875b4f761425ace8ea4f5ba04a6",
    ),
    LockedFile(
        "peer",
        "org.rocksdb:rocksdbjni:10.1.3:jar",
        "e7f925287d9fe2574fb7c7a86f7facaa9b8ab602a2eed0e598bf633528121498",
    ),
)
_SOURCE = ROOT / "tests" / "bench" / "KafkaStreamsPeer.java"


class Cost(NamedTuple):
    """What a process has used: seconds of processor, and the most memory it ever had, in MB."""

    cpu_seconds: float
    peak_mb: float


def cost_of(pid: int) -> Cost:
    """What a process has used until now."""
    times = psutil.Process(pid).cpu_times()
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    peak_kb = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return Cost(times.user + times.system, peak_kb / 1024)


def compiled(folder: Path) -> list[str] | None:
    """The command that runs the peer, its arguments to follow; None where it cannot be had, which is said."""
    java, javac = shutil.which("java"), shutil.which("javac")
    if java is None or javac is None:
        sys.stderr.write("Kafka Streams is left out: there is no JDK (java, javac)\n")
        return None
    try:
        context = _context(CACHE)
        jars = [_download(context, jar) for jar in _JARS]
    except FetchError as error:
        sys.stderr.write(f"Kafka Streams is left out: {error}\n")
        return None
    path = ":".join([str(install_root() / "kafka" / "libs" / "*"), *map(str, jars), str(folder)])
    subprocess.run([javac, "-cp", path, "-d", str(folder), str(_SOURCE)], check=True, timeout=WAIT_SECONDS)
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return [java, "-Xmx1g", quiet, "-cp", path, "KafkaStreamsPeer"]


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A peer that says what it does on its standard output, and ends with its standard input."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def line_of(process: subprocess.Popen[str], word: str) -> list[str]:
    """The next line that begins with a word, split; the peer's end is an error.

    Raises:
        RuntimeError: the peer ended first.
    """
    began = time.monotonic()
    assert process.stdout is not None
    for line in process.stdout:
        if line.split()[:1] == [word]:
            return line.split()
        if time.monotonic() - began > WAIT_SECONDS:
            break
    raise RuntimeError(f"{process.args!r} did not say {word!r}")
