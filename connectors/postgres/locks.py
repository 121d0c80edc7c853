"""The catalogue of advisory locks: the first number of each, so that no two uses take one another's.

PostgreSQL's form with two numbers is used throughout; what the second one stands for is said beside each. The one-number form is
a space of its own and is used by migrations, by verification, and by locks whose number is a 64-bit hash.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class LockClass(IntEnum):
    """First numbers; they never change, since processes of two releases may run side by side."""

    OUTBOX = 7_410  # the shard
    BASIS = 7_411  # 0: what is active, 1: who runs the re-embedding
    USER_REBUILD = 7_412  # a hash of the user
    DOCUMENT = 7_420  # a hash of the document's key
    LEAGUE = 7_421  # 1: ratings, 2: advertisements
    ERASURES = 7_422  # 0
    PROMPTS = 7_423  # 0
    ORGANIZATIONS = 7_424  # a bucket of organizations
    WORKER = 7_430  # the worker's number, which no two of any kind share
    CHUNK_SOURCE = 7_432  # a hash of the source
    CHUNK_INDEXES = 7_433  # 1: who keeps the indexes
