"""Ownership beyond a transaction is a lease: a session's lock stays with a process that hangs or a lost host."""

from __future__ import annotations

import re

from tests import ROOT

# A lock of a session. Those of transactions are `pg_advisory_xact_lock` and its kin.
_SESSION_LOCK = re.compile(r"pg_(try_)?advisory_(lock|unlock)")
# An operator's command that refuses a second one, and ends with the process that began it.
_ALLOWED = {"connectors/verify/verify.sql"}


def test_no_session_holds_an_advisory_lock():
    """Nowhere in code or statements but where it says above."""
    texts = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for layer in ("streams", "connectors", "api")
        for kind in ("*.py", "*.sql")
        for path in (ROOT / layer).rglob(kind)
    }
    assert {name for name, text in texts.items() if _SESSION_LOCK.search(text)} == _ALLOWED
