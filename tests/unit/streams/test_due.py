"""The index of due keys, against a model that checks everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from highwater.streams.due import DueIndex

KEYS = st.sampled_from("abcdefgh")
WEEKS_MS = 21 * 86_400_000


class AgainstModel(RuleBasedStateMachine):
    """Any sequence of puts, drops and takes gives what a sorted dictionary gives."""

    def __init__(self) -> None:
        super().__init__()
        self.index = DueIndex()
        self.model: dict[str, int] = {}

    @rule(key=KEYS, at_ms=st.integers(0, 5_000))
    def put(self, key: str, at_ms: int) -> None:
        """A key has one time."""
        self.index.put(key, at_ms)
        self.model[key] = at_ms

    @rule(key=KEYS)
    def drop(self, key: str) -> None:
        """A dropped key is gone."""
        self.index.drop(key)
        self.model.pop(key, None)

    @rule(now_ms=st.integers(0, 6_000), most=st.integers(1, 5))
    def take(self, now_ms: int, most: int) -> None:
        """The oldest due come, no more than asked for, none too early and none twice."""
        due = sorted((at_ms, key) for key, at_ms in self.model.items() if at_ms <= now_ms)[:most]
        assert self.index.take(now_ms, most) == [key for _, key in due]
        for _, key in due:
            del self.model[key]

    @invariant()
    def same(self) -> None:
        """Index and model hold the same times."""
        assert {key: self.index.at(key) for key in "abcdefgh" if key in self.index} == self.model
        assert len(self.index) == len(self.model)


TestAgainstModel = AgainstModel.TestCase


def test_a_clock_weeks_ahead_drains_in_steps_and_skips_nobody() -> None:
    """However far the clock jumps, each take is bounded and all come in the end, oldest first."""
    index = DueIndex()
    for number in range(1_000):
        index.put(f"{number:04}", number * 1_700_000)
    steps = []
    while step := index.take(WEEKS_MS + 10**9, 64):
        steps.append(step)
    assert max(map(len, steps)) == 64
    assert [key for step in steps for key in step] == [f"{number:04}" for number in range(1_000)]


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=200))
def test_rescheduling_leaves_nothing_behind(times: list[int]) -> None:
    """A key that changes its mind often comes once, at the time it said last."""
    index = DueIndex()
    for at_ms in times:
        index.put("key", at_ms)
    assert index.take(times[-1] - 1, 10) == []
    assert index.take(times[-1], 10) == ["key"]
    assert index.take(10**9, 10) == []
