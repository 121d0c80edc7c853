"""Events of jobs that a log lost, recreated from the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.remaking import Remake
from highwater.schemas.jobs import JOB_SUBMITTED

REMAKES: Final[Mapping[str, Remake]] = {
    JOB_SUBMITTED: Remake(QUERIES["remade_jobs"], "repeats of jobs, and dead letters", (QUERIES["move_jobs"],))
}
