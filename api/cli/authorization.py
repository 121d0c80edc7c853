"""Writes `docs/authorization.md`: every operation by every kind of principal; `--check` fails if the page is outdated.

Invariant: the table is generated from the declarations beside the routes; the text above it explains how to read it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from highwater.api.app import create_app
from highwater.api.core import authorization
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.settings import read_settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "authorization.md"
_HEAD = """\
# Who may do what

Written by `python -m highwater.api.cli.authorization` from the declaration beside each route (`api/core/access.py`), which
`api/core/guard.py` enforces. The API does not start with a route without one.

**Callers.** An API key is `role:key[:user[:organization]]` in `HIGHWATER_API_KEYS`, for example `viewer:s3cret:ada:acme`,
`editor:s3cret::acme` (bound to an organization only) or `admin:s3cret` (unbound: an operator's key). A session is bound to its
user and organization. Keys and sessions are checked in the same way. Without keys the API is open: every caller is an admin, on
loopback only.

**What a caller reaches.** An admin reaches everything, also with a bound key. An unbound key reaches everything that its role
allows: a viewer reads, an editor also writes, an assistant reads and enters the results of matches, also with a bound key. Only
an admin includes an assistant. A bound key or session reaches:

- `own`: resources of its user. A viewer may vote, predict and comment for itself, and cancel and revoke its own work;
- `org`: resources of its organization: jobs, decks, documents, usage and limits. Paid work (a job or a query) needs the role
  editor and is charged to the caller's own organization. A key that is bound to a user without an organization submits no jobs
  and no queries. An unbound key may name any organization; a query that names none is charged to the operator;
- `open`: namespaces of chunks whose passport has `is_open`, and resources without an owner. Only admins write chunks: by
  `POST /api/chunks/ingest`, by jobs of kind `ingestion` and by `POST /api/events`;
- `all`: everything, or resources without an owner. `no`: nothing; the answer is 403 before the body is read. `token`: any request
  that sends `CACHE_PREWARM_TOKEN` in `x-prewarm-token`. `public`: everything if `HIGHWATER_PUBLIC_LEAGUE` is on, else nothing.

Of keys below admin, only unbound ones and those of assistants write resources of the `deployment`: scores of matches, which
belong to no user.

If publishing to a topic (`POST /api/events/{topic}`) does the same as an admin's operation, it needs the role admin too.

**Resources of others.** The answer is 403 if the caller has named the user, the organization or the namespace. It is 404, with
the text of a missing resource, if the id alone would reveal that the resource exists.

**Limited keys.** A key may be limited to subsystems (`scopes`): an operation of another subsystem is 403. Such a key creates no
sessions. `/api/changes` sends each caller only the keys that it may read.

**Limits.** For each operation the table names the limit of its calls, and how many calls of that limit it counts for. One limiter
(`api/core/rate_limits.py`) applies all limits before the body is read; over a limit the answer is 429 with `Retry-After`.

{limits}

Every answer reports a limit of keys and users in `RateLimit-Policy`, `RateLimit`, `X-RateLimit-Limit` and
`X-RateLimit-Remaining`. If one request contains several paid tasks (`POST /api/events/jobs.job-submitted` and
`queries.query-submitted`), each counts for one call of the plan. The plan's limits on tokens, decks and storage are checked
separately (402, or 403 for a suspended organization).

**The dashboard** (`page`) sends visitors without a session to `/login`; it reads `/api` as its visitor. Only unbound keys and
admins see topics, groups and dead letters, which have the events of everybody.

"""


def page() -> str:
    """Return the page."""
    limits = "\n".join(f"- `{limit}`: {limit.meaning};" for limit in RateLimit).removesuffix(";") + "."
    return _HEAD.replace("{limits}", limits) + authorization.table(create_app(read_settings({})).routes)


def main(arguments: list[str]) -> int:
    """Write the page, or report whether it is current."""
    if "--check" in arguments:
        if PAGE.read_text(encoding="utf-8") == page():
            return 0
        sys.stderr.write("docs/authorization.md is out of date; run python -m highwater.api.cli.authorization\n")
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
