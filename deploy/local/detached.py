"""A supervisor in the background: `python -m highwater.deploy.local.detached` with its plan as JSON on stdin.

Invariant: nothing can end it together with its starter: its own session, no terminal, its parent gone. The number and
start time of the process are printed on stdout before the start is over.
"""

from __future__ import annotations

import json
import os
import sys

from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.state import own_identity
from highwater.deploy.local.supervisor import Plan, Supervisor


def main() -> int:
    """Detach, run the plan, and return the exit status."""
    plan = Plan.from_json(json.load(sys.stdin))
    if os.fork() > 0:  # no thread exists yet
        os._exit(0)
    os.setsid()
    sys.stdout.write(json.dumps(own_identity()))
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # from here on both go to the log, and the reader of stdout sees its end
    try:
        Supervisor(plan, report=lambda line: print(line, file=sys.stderr, flush=True)).run()  # noqa: T201 - its log
    except LocalStackError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 - its log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
