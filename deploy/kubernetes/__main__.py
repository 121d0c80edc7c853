"""`python -m highwater.deploy.kubernetes`: writes the manifests; `--check` fails if they are outdated.

`--partitions N --into FOLDER` writes those of an installation with another number of partitions to another folder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from highwater.deploy.kubernetes.generate import FOLDER, files
from highwater.schemas.topics import PARTITIONS, PARTITIONS_MAX


def main(arguments: list[str]) -> int:
    """Write the files, or report whether they are current."""
    parser = argparse.ArgumentParser(prog="python -m highwater.deploy.kubernetes")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 when a file is out of date")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, choices=range(1, PARTITIONS_MAX + 1), metavar="N")
    parser.add_argument("--into", type=Path, default=FOLDER, metavar="FOLDER")
    given = parser.parse_args(arguments)
    wanted = files(given.partitions)
    if given.check:
        there = {path.name: path.read_text(encoding="utf-8") for path in given.into.glob("*.yaml")}
        if there == wanted:
            return 0
        stale = sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
        sys.stderr.write(f"{', '.join(stale)}: out of date; run python -m highwater.deploy.kubernetes\n")
        return 1
    given.into.mkdir(parents=True, exist_ok=True)
    for path in given.into.glob("*.yaml"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (given.into / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
