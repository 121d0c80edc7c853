"""Finds stored pages of a former form: this release builds other bytes from the same facts (`Kind.form`).

Invariant: such a page is rebuilt in the usual way, so that it gets a new version if its bytes differ, and no ETag names
two bodies. A process of an earlier release that builds it again takes the form away; the next start of a materializer
of this release finds it.
"""

from __future__ import annotations

from highwater.connectors.pages.statements import QUERIES
from highwater.connectors.postgres.pool import Connection
from highwater.streams.pages.kinds import Resource
from highwater.streams.pages.rules import PageRules


async def pages_of_former_forms(tx: Connection, rules: PageRules) -> list[Resource]:
    """Return the stored pages whose bytes have another form than this release builds."""
    forms = {kind.template.partition("{id}")[0]: kind.form for kind in rules.catalogue.kinds.values() if kind.form}
    rows = await tx.fetch(QUERIES["documents_of_former_forms"], list(forms), list(forms.values()))
    return [page for row in rows if (page := rules.page_of(row["key"])) is not None]
