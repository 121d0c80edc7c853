"""Which ticks are admitted: the one place where the clocks of different machines meet.

Invariant: a tick keeps its `now`, and whether it counts follows from the log alone (the tick, the broker's time of its
record, the previous tick), so a replay admits the same ones. A wrong clock affects decisions no longer than it is
wrong: a tick from the future is refused, and one that was admitted anyway is overruled by the next one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Self

from highwater.schemas.streams import Tick

# How much later a tick may be than the broker's time of its record plus the offset of the product's clock. Not less:
# brokers are other machines; synchronized ones differ by less than a second, others drift by seconds per day. Not more:
# a tick just within the bound may delay decisions for this long.
AHEAD_MS_MAX = 60_000

# How old a tick may be for later events to be judged by it at once instead of at the next one. Not more: a cooldown
# begins with the tick of its request. Not less: two ticks by default, so that a late one changes nothing.
FRESH_MS_MAX = 60_000


class Admission(StrEnum):
    """The outcome of a tick."""

    ADMITTED = "admitted"
    # Admitted, and earlier than the last one, which was from the future: times recorded then are corrected.
    OVERRULES = "overrules"
    # A redelivery, or a second tick with the same number after a rebalance.
    REPEATED = "repeated"
    # Before the last one: a clock went back by less than the bound, and catches up.
    EARLIER = "earlier"
    # From the future.
    REFUSED = "refused"


class LastTick(NamedTuple):
    """The last tick that an agent applied in a partition; `now` in ms since 1970.

    `clock_offset_ms`: the offset of the product's clock at that time; None in a row from before it was stored.
    """

    number: int | None = None
    now: int = 0
    offset: int = -1
    clock_offset_ms: int | None = None

    @classmethod
    def of(cls, tick: Tick, offset: int) -> Self:
        """Return a tick whose record has this offset."""
        return cls(tick["number"], tick["now"], offset, tick["clock_offset_ms"])

    def is_fresh(self, appended_ms: int | None) -> bool:
        """Return whether an event that the broker received at `appended_ms` may still be judged by this tick; None: no broker."""
        if self.number is None or self.clock_offset_ms is None:
            return False
        return appended_ms is None or abs(appended_ms + self.clock_offset_ms - self.now) <= FRESH_MS_MAX


class Verdict(NamedTuple):
    """The outcome of a tick, and the difference of its time: from the last tick, or for a refused one from the broker's."""

    admission: Admission
    by_ms: int = 0

    @property
    def is_admitted(self) -> bool:
        """Return whether decisions are made at it."""
        return self.admission in _ADMITTED


_ADMITTED = frozenset({Admission.ADMITTED, Admission.OVERRULES})


def ahead_ms(tick: Tick, appended_ms: int) -> int:
    """Return by how much a tick is later than the broker's time of its record, both without the offset of the product's clock."""
    return tick["now"] - tick["clock_offset_ms"] - appended_ms


def is_of_the_future(tick: Tick, appended_ms: int) -> bool:
    """Return whether a tick is later than it may be."""
    return ahead_ms(tick, appended_ms) > AHEAD_MS_MAX


def admit(tick: Tick, appended_ms: int | None, offset: int, last: LastTick) -> Verdict:
    """Judge a tick.

    Args:
        tick: the tick.
        appended_ms: the broker's time of its record; None without a broker, and then there is no bound.
        offset: of its record.
        last: the last applied one.
    """
    if appended_ms is not None:
        ahead = ahead_ms(tick, appended_ms)
        if ahead > AHEAD_MS_MAX:
            return Verdict(Admission.REFUSED, ahead)
        # The latest possible time of this tick; the last one precedes it in the log, so it could not be later.
        if offset > last.offset and last.now - tick["now"] + ahead > AHEAD_MS_MAX:
            return Verdict(Admission.OVERRULES, last.now - tick["now"])
    if tick["now"] > last.now and tick["number"] != last.number:
        return Verdict(Admission.ADMITTED)
    if tick["now"] >= last.now or offset <= last.offset:
        return Verdict(Admission.REPEATED)
    return Verdict(Admission.EARLIER, last.now - tick["now"])


def agreed_error_ms(before_ms: int, measured_ms: int) -> int:
    """Return the error of a clock by its last two readings against another: 0 unless both are beyond the bound on the
    same side.

    A single reading may be the pause of a process between reading its clock and sending.
    """
    smaller = min(before_ms, measured_ms, key=abs)
    return smaller if abs(smaller) > AHEAD_MS_MAX and before_ms * measured_ms > 0 else 0


class Clocks:
    """What a worker knows of differing clocks: its own against the brokers', by partition, and refused ticks."""

    def __init__(self) -> None:
        self._refused: dict[int, tuple[int, int]] = {}  # by how much, and when by the broker's clock
        self._measured: dict[int, int] = {}
        self._errors: dict[int, int] = {}
        self.back_ms = 0

    @property
    def error_ms(self) -> int:
        """Return how far this machine's clock is ahead of a broker's, if that is beyond the bound; below 0: behind."""
        return max(self._errors.values(), key=abs, default=0)

    @property
    def degraded(self) -> str | None:
        """Return what differs, and the remedy; None while all are within the bound."""
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
        """Note a judged tick. A refused one is reported for another minute, so that several count as one incident."""
        self.back_ms = verdict.by_ms if verdict.admission is Admission.EARLIER else 0
        if verdict.admission is Admission.REFUSED:
            self._refused[partition] = verdict.by_ms, now_ms - verdict.by_ms
        elif partition in self._refused and now_ms - self._refused[partition][1] > AHEAD_MS_MAX:
            del self._refused[partition]

    def measured(self, partition: int, ahead_ms: int) -> None:
        """Note a broker's time of a tick: by how much this machine's clock, uncorrected, was ahead of it."""
        before = self._measured.get(partition, 0)
        self._measured[partition] = ahead_ms
        error = agreed_error_ms(before, ahead_ms)
        if error:
            self._errors[partition] = error
        else:
            self._errors.pop(partition, None)

    def corrected(self, partition: int, now_ms: int) -> int:
        """Return the time of a tick: by this machine's clock, unless that is known to be beyond the bound of the
        partition's broker.
        """
        return now_ms - self._errors.get(partition, 0)

    def forget(self) -> None:
        """Forget everything at a rebalance: other partitions may have other brokers, whose clocks are unknown."""
        self._refused.clear()
        self._measured.clear()
        self._errors.clear()
        self.back_ms = 0
