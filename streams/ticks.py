"""Which ticks are admitted: the one place where the clocks of different machines meet.

Invariant: a tick keeps its `now`, and whether it counts follows from the log alone (the tick, the broker's time of its record,
the tick before it), so a replay admits the same. No clock that is wrong decides for longer than it is wrong: a tick of the
future is refused, and one that was taken all the same is overruled by the next one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Self

from highwater.schemas.streams import Tick

# How much later a tick may be than the broker's time of its record plus the offset of the product's clock. Not less: brokers
# are other machines; those kept in step differ by less than a second, those that are not drift by seconds a day. Not more: for so
# long a tick that is just within the bound may hold up decisions.
AHEAD_MS_MAX = 60_000

# So old a tick may be for what comes after it to be judged by it at once instead of at the next one. Not more: a cooldown
# begins with the tick of its request. Not less: two ticks as shipped, so that one that is late changes nothing.
FRESH_MS_MAX = 60_000


class Admission(StrEnum):
    """What becomes of a tick."""

    ADMITTED = "admitted"
    # Admitted, and earlier than the last one, which was of the future: what was noted at that time is corrected.
    OVERRULES = "overrules"
    # A redelivery, or a second tick of the same number after a rebalance.
    REPEATED = "repeated"
    # Before the last one: a clock went back by less than the bound, and catches up.
    EARLIER = "earlier"
    # Of the future.
    REFUSED = "refused"


class LastTick(NamedTuple):
    """The last tick that an agent applied in a partition; `now` in ms since 1970.

    `clock_offset_ms`: by how much the product's clock was moved then; None in a row from before it was kept.
    """

    number: int | None = None
    now: int = 0
    offset: int = -1
    clock_offset_ms: int | None = None

    @classmethod
    def of(cls, tick: Tick, offset: int) -> Self:
        """A tick whose record has this offset."""
        return cls(tick["number"], tick["now"], offset, tick["clock_offset_ms"])

    def is_fresh(self, appended_ms: int | None) -> bool:
        """Whether something that the broker took at `appended_ms` may still be judged by this tick; None: no broker."""
        if self.number is None or self.clock_offset_ms is None:
            return False
        return appended_ms is None or abs(appended_ms + self.clock_offset_ms - self.now) <= FRESH_MS_MAX


class Verdict(NamedTuple):
    """What becomes of a tick, and by how much its time differs: from the last tick, or of a refused one from the broker's."""

    admission: Admission
    by_ms: int = 0

    @property
    def is_admitted(self) -> bool:
        """Whether decisions are made at it."""
        return self.admission in _ADMITTED


_ADMITTED = frozenset({Admission.ADMITTED, Admission.OVERRULES})


def ahead_ms(tick: Tick, appended_ms: int) -> int:
    """By how much a tick is later than the broker's time of its record, both without the offset of the product's clock."""
    return tick["now"] - tick["clock_offset_ms"] - appended_ms


def is_of_the_future(tick: Tick, appended_ms: int) -> bool:
    """Whether a tick is later than it may be."""
    return ahead_ms(tick, appended_ms) > AHEAD_MS_MAX


def admit(tick: Tick, appended_ms: int | None, offset: int, last: LastTick) -> Verdict:
    """Judge a tick.

    Args:
        tick: the tick.
        appended_ms: the broker's time of its record; None where there is no broker, and then no bound.
        offset: of its record.
        last: the last one that was applied.
    """
    if appended_ms is not None:
        ahead = ahead_ms(tick, appended_ms)
        if ahead > AHEAD_MS_MAX:
            return Verdict(Admission.REFUSED, ahead)
        # What this tick could be at most; the last one was before it in the log, so it could not be later.
        if offset > last.offset and last.now - tick["now"] + ahead > AHEAD_MS_MAX:
            return Verdict(Admission.OVERRULES, last.now - tick["now"])
    if tick["now"] > last.now and tick["number"] != last.number:
        return Verdict(Admission.ADMITTED)
    if tick["now"] >= last.now or offset <= last.offset:
        return Verdict(Admission.REPEATED)
    return Verdict(Admission.EARLIER, last.now - tick["now"])


def agreed_error_ms(before_ms: int, measured_ms: int) -> int:
    """The error of a clock by its last two readings against another: 0 unless both are beyond the bound on the same side.

    One reading alone may be the pause of a process between reading its clock and sending.
    """
    smaller = min(before_ms, measured_ms, key=abs)
    return smaller if abs(smaller) > AHEAD_MS_MAX and before_ms * measured_ms > 0 else 0


class Clocks:
    """What a worker knows of clocks that differ: its own against the brokers', by partition, and refused ticks."""

    def __init__(self) -> None:
        self._refused: dict[int, tuple[int, int]] = {}  # by how much, and when by the broker's clock
        self._measured: dict[int, int] = {}
        self._errors: dict[int, int] = {}
        self.back_ms = 0

    @property
    def error_ms(self) -> int:
        """How far this machine's clock is ahead of a broker's, where that is beyond the bound; below 0: behind."""
        return max(self._errors.values(), key=abs, default=0)

    @property
    def degraded(self) -> str | None:
        """What differs, and what to do about it; None while all are within the bound."""
        said = []
        if self.error_ms:
            side = "ahead of" if self.error_ms > 0 else "behind"
            said.append(
                f"the clock of this machine is {abs(self.error_ms) / 1000:.0f} s {side} the broker's, whose time its ticks "
                "take meanwhile; set the clock that is wrong"
            )
        if self._refused:
            partitions = ", ".join(map(str, sorted(self._refused)))
            ahead = max(by_ms for by_ms, _ in self._refused.values()) / 1000
            said.append(
                f"ticks are refused in partitions {partitions}, for they are up to {ahead:.0f} s ahead of the broker's clock; "
                "set the clock of the worker that publishes them, or the broker's"
            )
        return "; ".join(said) or None

    def note(self, partition: int, now_ms: int, verdict: Verdict) -> None:
        """A tick was heard, and judged. What was refused is reported for another minute, so that a spell is one."""
        self.back_ms = verdict.by_ms if verdict.admission is Admission.EARLIER else 0
        if verdict.admission is Admission.REFUSED:
            self._refused[partition] = verdict.by_ms, now_ms - verdict.by_ms
        elif partition in self._refused and now_ms - self._refused[partition][1] > AHEAD_MS_MAX:
            del self._refused[partition]

    def measured(self, partition: int, ahead_ms: int) -> None:
        """The broker has said when it took a tick: so far was this machine's clock, uncorrected, ahead of its own."""
        before = self._measured.get(partition, 0)
        self._measured[partition] = ahead_ms
        error = agreed_error_ms(before, ahead_ms)
        if error:
            self._errors[partition] = error
        else:
            self._errors.pop(partition, None)

    def corrected(self, partition: int, now_ms: int) -> int:
        """The time of a tick: by this machine's clock, unless that is known to be beyond the bound of the partition's broker."""
        return now_ms - self._errors.get(partition, 0)

    def forget(self) -> None:
        """Partitions move: others may be served by other brokers, whose clocks are not known."""
        self._refused.clear()
        self._measured.clear()
        self._errors.clear()
        self.back_ms = 0
