"""`pyarrow.dataset`, which loads pandas when it is imported, if that is installed: here without it, as everywhere in SQL."""

from __future__ import annotations

from highwater.connectors.replay.arrow_alone import without_pandas

with without_pandas():
    import pyarrow.dataset as ds

__all__ = ["ds"]
