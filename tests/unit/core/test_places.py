"""The shares of a pool: of one caller, of one organization, and of the operator."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from highwater.api.core.auth import OPEN, Principal, Role
from highwater.api.core.errors import TooManyRequestsError
from highwater.api.core.places import Places
from highwater.schemas.errors import UnavailableError

ADA, BEN = (Principal(Role.EDITOR, user_id=user, organization_id="acme") for user in ("ada", "ben"))
CAROL, BOB = Principal(Role.EDITOR, organization_id="acme", key_id="k"), Principal(Role.VIEWER, user_id="bob")


def test_nobody_takes_anothers_share() -> None:
    """A quarter for a caller, half for an organization; what is given back may be taken again."""
    places = Places("streams are open", 16)
    with ExitStack() as held:
        for principal in (ADA, BEN):
            for _ in range(4):
                held.enter_context(places.taken(principal))
        for principal, whose in ((ADA, "key or user"), (CAROL, "organization")):
            with pytest.raises(TooManyRequestsError, match=whose) as refused, places.taken(principal):
                pass
            assert refused.value.headers["Retry-After"]
        for _ in range(4):
            held.enter_context(places.taken(BOB))
        assert places.count == 12
    assert (places.count, dict(places._held)) == (0, {})
    with places.taken(ADA):
        pass


def test_the_operator_is_limited_by_the_pool() -> None:
    """All places, and no more."""
    places = Places("streams are open", 3)
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(places.taken(OPEN))
        with pytest.raises(UnavailableError, match="too many streams are open"):
            places.check(BOB)
