"""The heap of a role, once it has started.

Law: what a role is made of (modules, clients, tables) is not searched for garbage again and again. A full collection over it
takes some 50 ms, in which nothing else happens, and each event on its way may meet one in every process it passes.
"""

from __future__ import annotations

import gc


def settle_heap() -> None:
    """Call once when everything is set up: what is there now is kept for good, and never looked at again."""
    gc.collect()
    gc.freeze()
