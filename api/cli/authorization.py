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
`api/core/guard.py` enforces; a route without one stops the API at its start.

**Who calls.** An API key is `role:key[:user[:organization]]` in `HIGHWATER_API_KEYS`, for example `viewer:s3cret:ada:acme`,
`editor:s3cret::acme` (of an organization alone) or `admin:s3cret` (unbound: an operator's). A session is bound to its user and
organization. Keys and sessions are checked alike. Without keys the API is open, and every caller is an admin on loopback.

**What they reach.** An admin reaches everything, also with a key that is bound. An unbound key reaches everything that its role
allows: a viewer reads, an editor also writes. A bound key or session reaches

- `own`: what is its user's. A viewer may vote, predict and comment for itself, cancel and revoke its own;
- `org`: what is its organization's: jobs, decks, documents, usage and limits. What is paid, a job or a query, needs the role
  editor and is charged to the caller's own organization. A key that is bound to a user of no organization has none: it submits
  no jobs and asks no queries. An unbound key may name any organization; a query that names none is the operator's own;
- `open`: namespaces of chunks whose passport says `is_open`, and what is nobody's own. Chunks are written by admins alone, by
  `POST /api/chunks/ingest`, by jobs of kind `ingestion` and through `POST /api/events` alike;
- `all`: everything, or what is nobody's own. `no`: nothing; 403 before the body is read. `token`: any request that sends
  `CACHE_PREWARM_TOKEN` in `x-prewarm-token`.

What is of the `deployment` is written with unbound keys only: scores of matches, which are no user's.

Publishing to a topic (`POST /api/events/{topic}`) that stands for an admin's operation needs the role admin too.

**What belongs to others** is 403 where the caller has named the user, the organization or the namespace, and 404, in the words
of a resource that does not exist, where the id alone would reveal that it exists.

**Limited keys.** A key may be limited to households (`scopes`): an operation of another household is 403. Such a key makes no
sessions. `/api/changes` sends each caller the keys that it may read.

**Limits.** Each operation also names what limits its calls, and for how many calls of that limit one counts. One limiter
(`api/core/rate_limits.py`) applies all of them before the body is read; past a limit it is 429 with `Retry-After`.

{limits}

A limit of keys and users is reported in `RateLimit-Policy`, `RateLimit`, `X-RateLimit-Limit` and `X-RateLimit-Remaining` of every
answer. Where one request holds several paid tasks (`POST /api/events/jobs.job-submitted` and `queries.query-submitted`), each
counts for one call of the plan. What the plan says of tokens, decks and storage is judged beside that (402, or 403 where the
organization is suspended).

**The dashboard** (`page`) sends visitors without a session to `/login`; it reads `/api` as its visitor. Topics, groups and dead
letters, which hold everybody's events, are shown to unbound keys and to admins.

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
