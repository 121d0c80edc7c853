"""Highwater: event streaming on Kafka; every answer knows the log position that made it.

This package is the one import name. Its folders are at the top of the repository and are linked here. Everything is
loaded on first use: `import highwater` loads no role, `from highwater import Client` only the client.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from highwater.api.client.client import Client

    __version__: str

__all__ = ["Client", "__version__"]


def __getattr__(name: str) -> Any:
    """Load the requested name (PEP 562)."""
    if name == "Client":
        from highwater.api.client.client import Client  # noqa: PLC0415 # loaded on first use

        return Client
    if name == "__version__":
        return metadata.version("highwater")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
