"""The catalogue of advisory locks: the first number of each, so that no two uses collide.

A lock ends with its transaction. Ownership for longer is a lease (`leases.py`), since the session of a process that
hangs, or of a lost host, keeps its locks.

PostgreSQL's form with two numbers is used throughout; the meaning of the second one is given beside each. The
one-number form is a separate space and is used by migrations, by verification, and by locks whose number is a 64-bit
hash.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class LockClass(IntEnum):
    """First numbers; they never change, since processes of two releases may run concurrently."""

    BASIS = 7_411  # 0: the active embedding model version
    DOCUMENT = 7_420  # a hash of the document's key
    PAGES = 7_427  # 0: shared by builds of single pages, exclusive for a build of everything that changed
    LEAGUE = 7_421  # 1: ratings, 2: advertisements
    ERASURES = 7_422  # 0
    PROMPTS = 7_423  # 0
    ORGANIZATIONS = 7_424  # a bucket of organizations
    JOB_SLOTS = 7_425  # the kind of jobs
    QUERY_SLOTS = 7_428  # 0
    WITHDRAWALS = 7_426  # 0
    COMPARISON = 7_429  # 0: the comparison of a started server with the log
