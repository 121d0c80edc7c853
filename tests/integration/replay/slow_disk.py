"""The command, on a disk that takes its time: it writes a batch and then waits to be interrupted."""

from __future__ import annotations

import time
from typing import Any

from highwater.api.cli.main import main
from highwater.connectors.replay import writers


class _Slow(writers.JsonLines):
    def write(self, decoded: Any) -> None:
        super().write(decoded)
        time.sleep(60)


if __name__ == "__main__":
    writers.FORMATS = {**writers.FORMATS, "jsonl": _Slow}
    main()
