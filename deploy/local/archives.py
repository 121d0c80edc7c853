"""Class archives of the two Java programs, created once at installation: with one, a program starts in two thirds of
the time.

Owns <prefix>/share/highwater/*.jsa. Invariant: an archive only saves time. Java itself refuses one that does not match
its version or its class path and continues without it, so a missing or outdated one is never an error.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.installed import install_root
from highwater.deploy.local.kafka import Kafka, java_program
from highwater.deploy.local.part import START_LIMIT, Part
from highwater.deploy.local.ports import PortBook
from highwater.deploy.local.probes import probe_kafka, probe_registry
from highwater.deploy.local.process import Command
from highwater.deploy.local.registry import Registry
from highwater.streams.progress import HOUR_SECONDS, Progress, WorkLimit

WRITE_LIMIT = WorkLimit(quiet_seconds_max=90.0, total_seconds_max=0.5 * HOUR_SECONDS, processor_seconds_min=0.5)
POLL_SECONDS = 0.2


def make_archives() -> list[str]:
    """Create missing archives; return the names of the programs that have one now."""
    root = install_root()
    base = root / "java.jsa"
    made = []
    with tempfile.TemporaryDirectory(prefix="highwater-archives-") as scratch:
        folder = Path(scratch)
        ports = PortBook(folder)
        for kind in (Kafka, Registry):
            archive = root / f"{kind.name}.jsa"
            if not archive.exists():
                part = kind(folder, ports)
                if not base.exists():
                    # The bundled runtime lacks the archive of Java's own classes, the base of the others.
                    unfinished = base.with_suffix(".tmp")
                    dump = (java_program(), "-Xshare:dump", f"-XX:SharedArchiveFile={unfinished}")
                    part.process.run_to_end(Command(dump), WRITE_LIMIT)
                    unfinished.replace(base)
                _record(part, base, archive)
            made.append(kind.name)
    return made


def _record(part: Part, base: Path, archive: Path) -> None:
    """Run the program until it answers; it writes its loaded classes when it ends."""
    part.take_ports()
    part.prepare()
    command = part.command()
    unfinished = archive.with_suffix(".tmp")
    options = (f"-XX:SharedArchiveFile={base}", f"-XX:ArchiveClassesAtExit={unfinished}")
    arguments = (word for word in command.argv[1:] if not word.startswith("-XX:SharedArchiveFile="))
    part.process.start(replace(command, argv=(command.argv[0], *options, *arguments)))
    try:
        progress = Progress(START_LIMIT, time.monotonic())
        while _probe(part) is not None:
            is_stalled = progress.why_over(part.process.work, time.monotonic()) is not None
            if is_stalled or not part.process.is_alive():
                raise part.process.failure("did not start, so it could not be archived")
            time.sleep(POLL_SECONDS)
    finally:
        part.process.stop(WRITE_LIMIT)  # it writes its archive when it is stopped
    if not unfinished.exists():
        raise part.process.failure("wrote no archive")
    unfinished.replace(archive)


def _probe(part: Part) -> str | None:
    probe = probe_kafka if isinstance(part, Kafka) else probe_registry
    return probe(part.address, 1.0)


def main() -> int:
    """Create the archives; a failure is one line and does not fail the installation."""
    try:
        make_archives()
    except LocalStackError as error:
        sys.stderr.write(f"no class archive, so the stack starts a little slower: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
