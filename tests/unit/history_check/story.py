"""Builds histories for the tests of the checks: operations one after the other, or one within another."""

from __future__ import annotations

from typing import Any

from highwater.api.history_check.checks import Verdict, check_history
from highwater.api.history_check.history import Action, Completion, Event, Invocation

ONE, OTHER = "http://one", "http://other"
CHANNEL, USER, SEASON = "c0", "u0", "s0"
_STEP_NS = 10_000_000


class Story:
    """A history that grows."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._now_ns = 0
        self._number = 0

    def invoke(self, action: Action, resource: str, *, client: str = "a", api: str = ONE, **more: Any) -> Invocation:
        """Begin an operation."""
        self._number += 1
        self._now_ns += _STEP_NS
        made = Invocation(self._number, client, api, action, resource, self._now_ns, **more)
        self.events.append(made)
        return made

    def complete(self, invocation: Invocation, status: int | None, **more: Any) -> None:
        """End it."""
        self._now_ns += _STEP_NS
        self.events.append(Completion(invocation.number, self._now_ns, status, **more))

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        self._now_ns += int(seconds * 1e9)

    def verdict(self) -> Verdict:
        """Check it."""
        return check_history(self.events)

    # -- operations of the contract ---------------------------------------------------------------------------------------

    def write(self, number: int, *, offset: int | None, at: str = "feeds.insight-ingested/0", **more: Any) -> None:
        """Write an insight; without an offset it is not answered."""
        one = self.invoke(Action.WRITE_INSIGHT, insight(number), value=f"text {number}")
        answered: dict[str, Any] = {} if offset is None else {"positions": (f"{at}/{offset}",)}
        self.complete(one, None if offset is None else 202, **answered, **more)

    def read(
        self, number: int, seq: int | None, *, offset: int = 0, status: int = 200, named: str = "", is_final: bool = False,
        client: str = "a", api: str = OTHER, **more: Any,
    ) -> None:  # fmt: skip
        """Read an insight, which stands at `seq`."""
        positions = (named,) if named else ()
        one = self.invoke(
            Action.READ_INSIGHT, insight(number), client=client, api=api, min_positions=positions, is_final=is_final
        )
        shown: dict[str, Any] = {}
        if status == 200:
            content = {"seq": seq, "text": f"text {number}", "position": f"feeds.insight-ingested/0/{offset}"}
            tag = f'W/"insight-{number}"'
            shown = {"etag": tag, "version": 1, "body_hash": f"{number}/{seq}", "content": content}
        self.complete(one, status, **{**shown, **more})

    def head(
        self, current: int, *, status: int = 200, named: str = "", is_final: bool = True, client: str = "a"
    ) -> None:
        """Read the head of the channel."""
        positions = (named,) if named else ()
        one = self.invoke(
            Action.READ_CHANNEL, f"channel:{CHANNEL}", client=client, min_positions=positions, is_final=is_final
        )
        shown: dict[str, Any] = {
            "version": current,
            "etag": f'W/"channel-{current}"',
            "body_hash": f"channel {current}",
        }
        self.complete(one, status, **({**shown, "content": {"current_seq": current}} if status == 200 else {}))

    def page(
        self, version: int, *, status: int = 200, body: str = "", tag: str = "", condition: str | None = None, client: str = "a",
        api: str = ONE, **more: Any,
    ) -> None:  # fmt: skip
        """Read a page of the season."""
        one = self.invoke(Action.READ_PAGE, f"league:{SEASON}/table", client=client, api=api, condition=condition)
        hashed = (body or f"page {version}") if status == 200 else None
        self.complete(one, status, version=version, etag=tag or f'W/"page-{version}"', body_hash=hashed, **more)

    def subscribe(self, channels: str, *, offset: int | None) -> None:
        """Replace the subscriptions of the user."""
        one = self.invoke(Action.REPLACE_SUBSCRIPTIONS, f"subscriptions:{USER}", value=channels)
        answered = {} if offset is None else {"positions": (f"feeds.subscriptions-replaced/0/{offset}",)}
        self.complete(one, None if offset is None else 202, **answered)

    def subscriptions(self, channels: str, *, named: str) -> None:
        """Read them."""
        one = self.invoke(Action.READ_SUBSCRIPTIONS, f"subscriptions:{USER}", min_positions=(named,))
        self.complete(one, 200, content={"channels": channels.split()})

    def retract(self, number: int, *, offset: int = 0, status: int = 202) -> None:
        """Retract an insight."""
        one = self.invoke(Action.RETRACT_INSIGHT, insight(number))
        positions = (f"feeds.insight-retracted/0/{offset}",) if status == 202 else ()
        self.complete(one, status, positions=positions)

    def erase(self, *, offset: int = 0, user: str = USER) -> None:
        """Erase the user."""
        one = self.invoke(Action.ERASE_USER, f"subscriptions:{user}")
        self.complete(one, 202, positions=(f"feeds.user-erased/0/{offset}",))

    def feed(self, version: int, *numbers: int, named: str = "", user: str = USER, **more: Any) -> None:
        """Read the feed of the user, which shows these insights."""
        one = self.invoke(Action.READ_FEED, f"feed:{user}", min_positions=(named,) if named else ())
        shown = {"version": version, "etag": f'W/"feed-{version}"', "body_hash": f"feed {version}"}
        self.complete(one, 200, **shown, content={"insights": [insight(number) for number in numbers]}, **more)

    def query(self, key: str, request_id: str, *, status: int = 202) -> None:
        """Submit a query under a key."""
        one = self.invoke(Action.SUBMIT_QUERY, "queries:asker", idempotency_key=key)
        self.complete(one, status, content={"request_id": request_id})

    def queries(self, *request_ids: str) -> None:
        """Read the list of queries at the end."""
        one = self.invoke(Action.READ_QUERIES, "queries:asker", is_final=True)
        self.complete(one, 200, content={"request_ids": list(request_ids)})


def insight(number: int) -> str:
    """Return the resource of an insight."""
    return f"insight:{CHANNEL}/{CHANNEL}--a-{number}"
