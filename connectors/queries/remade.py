"""Events of queries that a log lost, recreated from the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from highwater.connectors.queries.statements import QUERIES
from highwater.connectors.remaking import Remake
from highwater.schemas.queries import QUERY_SUBMITTED

REMAKES: Final[Mapping[str, Remake]] = {
    QUERY_SUBMITTED: Remake(
        QUERIES["remade_queries"], "repeats of queries, and dead letters", (QUERIES["move_queries"],)
    )
}
