"""What a question was not allowed to read, and how its answer says so: namespaces of chunks that are not open.

Invariant: the names of namespaces appear only in answers that no organization pays for; others get their number.
"""

from __future__ import annotations

from collections.abc import Sequence

from highwater.streams.messages import Messages
from highwater.streams.queries.context import NOT_SEARCHED_TAG
from highwater.streams.queries.local_model import says_nothing_found

# As many as a sentence can hold.
NAMED_MAX = 8


def not_searched(names: Sequence[str], organization_id: str | None, messages: Messages) -> str:
    """Return how namespaces that are not open are named in an answer; empty: there are none."""
    if not names:
        return ""
    if organization_id is not None:
        return messages.ngettext("{number} namespace", "{number} namespaces", len(names))
    listed, more = ", ".join(names[:NAMED_MAX]), len(names) - NAMED_MAX
    if more <= 0:
        return listed
    return messages.gettext("{names}, and {number} more", names=listed, number=messages.number(more))


def with_not_searched(answer: str, draft: str, messages: Messages) -> str:
    """Return the answer; one that found nothing also says what the draft's search was not allowed to read."""
    names, end, _ = draft.partition(f"<{NOT_SEARCHED_TAG}>\n")[2].partition(f"\n</{NOT_SEARCHED_TAG}>")
    if not end or not says_nothing_found(answer):
        return answer
    return f"{answer} {messages.gettext('Not searched, since not open to questions: {names}.', names=names)}"
