"""Highwater: event streaming on Kafka; every answer knows the log position that made it.

This package is the one import name. Its folders stand at the top of the repository and are linked here. Nothing is loaded before
it is asked for: `import highwater` brings in no role, `from highwater import Client` the client alone.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from highwater.api.client.client import Client

    __version__: str

__all__ = ["Client", "__version__"]


def __getattr__(name: str) -> Any:
    """Load what is asked for by name (PEP 562)."""
    if name == "Client":
        from highwater.api.client.client import Client  # noqa: PLC0415 # loaded when it is asked for

        return Client
    if name == "__version__":
        return metadata.version("highwater")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
