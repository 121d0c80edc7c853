"""The summary of a run for each kind of fault."""

from __future__ import annotations

import orjson

from highwater.api.chaos.plan import Fault, Kind
from highwater.api.chaos.run import Recovery, by_kind


def test_a_kind_has_its_number_of_faults_and_the_median_and_worst_recovery():
    """A recovery is the time until a written event could be read again, for any target."""
    recovered = [
        Recovery(Fault(Kind.STOP, target, 2), seconds, 60.0)
        for target, seconds in (("api", 1.0), ("kafka", 9.004), ("redis", 2.0))
    ]
    recovered.append(Recovery(Fault(Kind.CUT, "redis", 1), 0.5, 1.0))
    found = by_kind(recovered)
    orjson.dumps(found)  # which takes no enumeration as a key
    assert found == {
        "cut": {"faults": 1, "median_seconds": 0.5, "worst_seconds": 0.5},
        "stop": {"faults": 3, "median_seconds": 2.0, "worst_seconds": 9.0},
    }
