"""Decides whether organizations may run jobs, one job after the other in the order of the log.

Invariant: the caller locks the organizations before rows of their jobs, so that a month has no more decks than the plan
allows. A restarted job is decided like a new one: it uses what remains of the limit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from highwater.connectors.identity import organizations
from highwater.connectors.identity.organizations import Organization
from highwater.connectors.postgres.pool import Connection
from highwater.streams.identity.plans import Plan, Usage, refusal, refusal_text
from highwater.streams.jobs.args import Args
from highwater.streams.jobs.states import Kind


class Judge:
    """Decides on jobs; each permitted one counts for the next decisions."""

    def __init__(self, known: Mapping[str, Organization], used: Mapping[str, Usage], sizes: Mapping[str, int]) -> None:
        self._known = known
        self._used = dict(used)
        self._sizes = sizes

    @classmethod
    async def of(
        cls,
        tx: Connection,
        names: Collection[str],
        documents: Collection[str],
        plans: Mapping[str, Plan],
        now_ms: int,
    ) -> Judge:
        """Read the state of organizations, which are locked, and of the documents of their jobs."""
        known = await organizations.organizations_of(tx, names, plans)
        used = await organizations.usages_of(tx, names, now_ms)
        return cls(known, used, await organizations.sizes_of(tx, documents))

    def refused(self, kind: Kind, organization_id: str, args: Args) -> str | None:
        """Return why an organization may not run a job; None: it may, and the job counts from now on."""
        found, used = self._known[organization_id], self._used[organization_id]
        largest = max((self._sizes.get(document, 0) for document in args.documents), default=0)
        wanted = replace(used, file_bytes=largest)
        limit = refusal(found.plan, found.status, wanted, is_new_deck=kind is Kind.GENERATION, features=args.features)
        if limit is not None:
            return refusal_text(limit, organization_id, found.plan)
        if kind is Kind.GENERATION:
            self._used[organization_id] = replace(used, presentations=used.presentations + 1)
        return None
