"""The command, for which a few records are worth two processes, on any machine.

With HW_SLOW_PART none of them reports its end.
"""

from __future__ import annotations

import os
import time
from typing import Any

from highwater.api.cli.main import main
from highwater.connectors.replay import parts, shares


def slow_part() -> None:
    """A process of a replay that sends all its pieces and takes its time before it says so."""
    from highwater.connectors.replay import part

    send = part.send

    def slow(*arguments: Any) -> None:
        if arguments[1] == part.Kind.END:
            time.sleep(60)
        send(*arguments)

    part.send = slow
    part.main()


if __name__ == "__main__":
    shares.SHARE_RECORDS_MIN = 1
    os.sched_getaffinity = lambda _: {0, 1}
    if os.environ.get("HW_SLOW_PART"):
        parts._PROGRAM = "from tests.integration.replay.in_parts import slow_part; slow_part()"
    main()
