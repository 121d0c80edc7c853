"""The slices of `highwater connect`, in the order in which their connectors are listed and users are erased."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from highwater.connectors.alerts.wiring import slice_of as alerts_slice_of
from highwater.connectors.chunks.wiring import slice_of as chunks_slice_of
from highwater.connectors.erasure import ErasureStep
from highwater.connectors.feeds.digests import read_notice
from highwater.connectors.feeds.redactions import redact_feeds
from highwater.connectors.feeds.wiring import slice_of as feeds_slice_of
from highwater.connectors.identity.wiring import slice_of
from highwater.connectors.jobs.redactions import redact_jobs
from highwater.connectors.jobs.wiring import SLICE as JOBS
from highwater.connectors.league.wiring import SLICE as LEAGUE
from highwater.connectors.pages.wiring import SLICE as PAGES
from highwater.connectors.queries.redactions import redact_queries
from highwater.connectors.queries.wiring import SLICE as QUERIES
from highwater.connectors.redaction import RedactionStep
from highwater.connectors.remaking import Remake
from highwater.connectors.wiring import Slice

# Removes a retracted insight or a deleted chunk from documents.
REDACTION: Sequence[RedactionStep] = (redact_feeds, redact_queries, redact_jobs)
_OTHERS = (
    feeds_slice_of(REDACTION),
    LEAGUE,
    QUERIES,
    JOBS,
    chunks_slice_of(REDACTION),
    alerts_slice_of(read_notice),
    PAGES,
)
# The steps of the sink of users for an erased user.
ERASURE: Sequence[ErasureStep] = tuple(one.erasure for one in _OTHERS if one.erasure is not None)
SLICES: Sequence[Slice] = (slice_of(ERASURE), *_OTHERS)
# Events that can be recreated from the state, by topic.
REMAKES: Mapping[str, Remake] = {topic: one for part in SLICES for topic, one in part.remakes.items()}
