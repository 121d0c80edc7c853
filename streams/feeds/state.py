"""The state that the worker keeps of each user, and how events are merged into it.

Invariant: a merge is commutative and idempotent, so the log may redeliver events. Numbers (heads, high-water marks, times,
answered requests) merge by maximum; values that a user's own events set come from the highest revision. An erasure voids all
state up to its revision. The revision is kept for a while, so that a late event cannot restore the state.

Heads, marks and times are in one row: a decision reads them together, a crash cannot separate them, and recovery restores a
third of the records that three tables would need.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from highwater.schemas.feeds import RebuildFinished, UserChanged
from highwater.schemas.positions import parse_position
from highwater.streams.feeds.policy import FALLBACK_PLAN
from highwater.streams.feeds.rules import DELAYED, Trigger
from highwater.streams.versioned_rows import RowForm, pack, unpack

# How long a row without a live user is kept: an erasure's mark, or heads that came before the user did. Redelivery
# spans seconds; a day also covers an operator who resets a consumer and replays its morning.
FORGET_AFTER_MS = 86_400_000


@dataclass(slots=True)
class ChannelView:
    """A channel as one user sees it; `revision` is that of the subscription change, 0 if none was seen yet.

    `retractions`: how many of its insights were retracted; `retractions_hwm`: up to which the user's clusters account
    for them; `shown_offset`: the newest answer whose set of channels contained it.
    """

    head: int = 0
    hwm: int = 0
    revision: int = 0
    is_subscribed: bool = False
    retractions: int = 0
    retractions_hwm: int = 0
    shown_offset: int = -1


@dataclass(slots=True)
class User:
    """The row of one user. Times are milliseconds since 1970, None = never; offsets count in rebuild-requested.

    `shown_offset`: the newest answer that accounted for a set of channels, -1 before the first.
    """

    channels: dict[str, ChannelView] = field(default_factory=dict)
    revision: int = 0
    erased_revision: int = 0
    plan: str = FALLBACK_PLAN
    plan_revision: int = 0
    last_active_at: int | None = None
    active_revision: int = 0
    demanded_revision: int = 0
    forced_revision: int = 0
    served_revision: int = 0
    last_clustered_at: int | None = None
    last_checked_at: int | None = None
    last_enqueued_at: int | None = None
    requested_offset: int = -1
    requested_until: int = 0
    finished_offset: int = -1
    forget_at: int | None = None
    shown_offset: int = -1

    @property
    def is_changed(self) -> bool:
        """Return whether the channels differ from those of the last answer, or one of them has a newer retraction."""
        if self.shown_offset < 0:
            return False
        return any(
            view.is_subscribed != (view.shown_offset == self.shown_offset)
            or (view.is_subscribed and view.retractions > view.retractions_hwm)
            for view in self.channels.values()
        )

    @property
    def is_known(self) -> bool:
        """Return whether an own event of the user was seen that no erasure has voided."""
        return self.revision > self.erased_revision

    @property
    def is_erased(self) -> bool:
        """Return whether the user was erased and nothing newer was seen."""
        return 0 < self.erased_revision >= self.revision

    @property
    def is_demanded(self) -> bool:
        """Return whether an operator's demand for a rebuild waits to be served."""
        return self.demanded_revision > self.served_revision

    @property
    def is_forced(self) -> bool:
        """Return whether a waiting demand requires a rebuild even if nothing is new."""
        return self.forced_revision > self.served_revision

    @property
    def in_flight_until(self) -> int | None:
        """Return the deadline of the newest request while nothing has answered it or a later one; else None."""
        return self.requested_until if self.requested_offset > self.finished_offset else None


def apply_changed(user: User, event: UserChanged) -> None:
    """Merge a change that the sink stored. Within a revision the sink publishes each fact once."""
    revision = event["revision"]
    if revision <= user.erased_revision:
        return
    if event["erased"]:
        _erase(user, revision)
        return
    user.revision = max(user.revision, revision)
    user.forget_at = None
    plan = event["plan"]
    if plan is not None and revision > user.plan_revision:
        user.plan, user.plan_revision = plan, revision
    active_at = event["last_active_at"]
    if active_at is not None and revision > user.active_revision:
        user.last_active_at, user.active_revision = active_at, revision
    if event["rebuild_demanded"]:
        user.demanded_revision = max(user.demanded_revision, revision)
        if event["rebuild_forced"]:
            user.forced_revision = max(user.forced_revision, revision)
    for channel_id in event["unsubscribed"]:
        _subscribe(user, channel_id, revision, is_subscribed=False)
    for channel_id in event["subscribed"]:
        _subscribe(user, channel_id, revision, is_subscribed=True)


def apply_head(user: User, channel_id: str, head: int, retractions: int = 0) -> None:
    """Merge the head of a channel. It may come before the subscription does, and counts once that is known (R0.12)."""
    if user.is_erased:
        return
    view = user.channels.setdefault(channel_id, ChannelView())
    view.head = max(view.head, head)
    view.retractions = max(view.retractions, retractions)


def apply_finished(user: User, event: RebuildFinished) -> None:
    """Merge the outcome of a request: marks and times only grow, and the answered request is no longer in flight.

    Raises:
        InvalidEventError: the position of the request is invalid.
    """
    offset = parse_position(event["request_position"]).offset
    if user.is_erased:
        return
    if event["outcome"] == DELAYED and offset == user.requested_offset:
        _uncount_request(user, event)
    user.finished_offset = max(user.finished_offset, offset)
    user.last_clustered_at = _latest(user.last_clustered_at, event["last_clustered_at"])
    user.last_checked_at = _latest(user.last_checked_at, event["last_checked_at"])
    for channel_id, seq in event["hwm"].items():
        view = user.channels.setdefault(channel_id, ChannelView())
        view.hwm = max(view.hwm, seq)
    retractions = event["retractions"]
    if retractions is not None:
        user.shown_offset = max(user.shown_offset, offset)
        for channel_id, count in retractions.items():
            view = user.channels.setdefault(channel_id, ChannelView())
            view.retractions_hwm = max(view.retractions_hwm, count)
            view.shown_offset = max(view.shown_offset, offset)


def _uncount_request(user: User, event: RebuildFinished) -> None:
    """Undo what the newest request has changed: the cooldown counts from the one before it, and its demands wait again."""
    user.last_enqueued_at = event["last_enqueued_at"]
    if event["demanded_revision"]:
        unserved = user.forced_revision if event["forced"] else event["demanded_revision"]
        user.served_revision = min(user.served_revision, max(0, unserved - 1))


def apply_requested(user: User, trigger: Trigger, *, offset: int, now: int, deadline_ms: int) -> None:
    """Record a request that the broker has acknowledged at `offset`: in flight until answered or `deadline_ms` passed."""
    user.requested_offset = max(user.requested_offset, offset)
    user.requested_until = now + deadline_ms
    user.last_enqueued_at = now
    if trigger is Trigger.MANUAL:
        user.served_revision = user.demanded_revision


def encode_user(user: User) -> bytes:
    """Return the row as JSON."""
    channels = {
        channel_id: pack(
            _VIEW_NAMES,
            (
                view.head, view.hwm, view.revision, int(view.is_subscribed), view.retractions, view.retractions_hwm,
                view.shown_offset,
            ),
        )
        for channel_id, view in user.channels.items()
    }  # fmt: skip
    return _FORM.encode([channels, *(getattr(user, name) for name in _PLAIN_NAMES)])


def decode_user(row: bytes | None) -> User:
    """Return the user in a row; a new one without a row.

    Raises:
        ValueError: the row was written by a version of this module other than this one and the one before.
    """
    if row is None:
        return User()
    channels, *plain = _FORM.decode(row)
    views = {}
    for channel_id, found in channels.items():
        head, hwm, revision, is_subscribed, *rest = unpack(_VIEW_NAMES, found)
        views[channel_id] = ChannelView(head, hwm, revision, bool(is_subscribed), *rest)
    return User(channels=views, **dict(zip(_PLAIN_NAMES, plain, strict=False)))


_VIEW_NAMES = ("current_seq", *(name for name in ChannelView.__dataclass_fields__ if name != "head"))
_PLAIN_NAMES = tuple(name for name in User.__dataclass_fields__ if name != "channels")
# Version 2 had no retractions, and no set of accounted channels: its fields are the first of each list.
_FORM = RowForm(3, ("channels", *_PLAIN_NAMES), oldest=2, facts_min=len(_PLAIN_NAMES))


def _subscribe(user: User, channel_id: str, revision: int, *, is_subscribed: bool) -> None:
    view = user.channels.setdefault(channel_id, ChannelView())
    if revision >= view.revision:
        view.revision, view.is_subscribed = revision, is_subscribed


def _erase(user: User, revision: int) -> None:
    """Void everything up to `revision`; what the user set after returning stays."""
    if user.revision <= revision:
        fresh = User(erased_revision=revision)
        for name in User.__dataclass_fields__:
            setattr(user, name, getattr(fresh, name))
        return
    user.erased_revision = revision
    user.channels = {key: view for key, view in user.channels.items() if view.revision > revision}
    if user.plan_revision <= revision:
        user.plan, user.plan_revision = FALLBACK_PLAN, 0
    if user.active_revision <= revision:
        user.last_active_at, user.active_revision = None, 0
    if user.demanded_revision <= revision:
        user.demanded_revision = 0
    if user.forced_revision <= revision:
        user.forced_revision = 0


def _latest(one: int | None, other: int | None) -> int | None:
    return max((at for at in (one, other) if at is not None), default=None)
