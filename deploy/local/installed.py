"""Where `make install` puts the jars: beside the interpreter that runs them, so that one `.venv` is the whole installation."""

from __future__ import annotations

import sys
from pathlib import Path


def install_root() -> Path:
    """Return the folder that contains kafka/libs and registry."""
    return Path(sys.prefix) / "share" / "highwater"
