"""Checks that a user exists before something is created for one: a mistyped name must not become a new user.

Invariant. A user whose creation was acknowledged is never reported as missing: if no row exists, the sink of users must
have processed the log up to then. Until it has, the sink decides: it skips requests for unknown users.
"""

from __future__ import annotations

from highwater.api.core.errors import NotFoundError
from highwater.api.core.freshness import WRITE_WAIT_MS, wanted_of
from highwater.api.core.services import Services
from highwater.connectors.feeds.read_model import is_user_known
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.schemas.topics import TOPICS
from highwater.streams.identity.users import creates_user

# Topics that create users; events of one user from the API share a partition in each.
_TELLING = tuple(
    name for name, topic in TOPICS.items() if topic.outsider and topic.consumers == ("users",) and creates_user(name)
)


async def require_known_user(services: Services, user_id: str) -> None:
    """Reject a request for a user that no event has created.

    Raises:
        NotFoundError: there is no such user.
        UnavailableError: PostgreSQL or Kafka is unavailable.
    """
    pool = services.database.require()
    if await is_user_known(pool, user_id):
        return
    places = [(name, murmur2_partition(user_id.encode(), TOPICS[name].partitions)) for name in _TELLING]
    ranges = await services.admin.log_ranges(places)
    lasts = {place: ranges[place].high - 1 for place in places if ranges[place].high > ranges[place].low}
    is_told = not lasts or await services.watcher.wait(wanted_of(lasts), WRITE_WAIT_MS)
    if is_told and not await is_user_known(pool, user_id):
        raise NotFoundError(f"there is no user {user_id!r}: no subscription, plan or activity has named one")
