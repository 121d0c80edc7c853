"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    alerts_sent_of: str
    store_alerts_sent: str
    trim_alerts_sent: str
    digests_sent_of: str
    store_digest_sent: str
    erase_digests_sent: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
