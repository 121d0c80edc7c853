"""What a question was not allowed to read, and how its answer says so: namespaces of chunks that are not open.

Invariant: the names of namespaces appear only in answers that no organization pays for; others get their number.
"""

from __future__ import annotations

from collections.abc import Sequence

from highwater.streams.queries.context import NOT_SEARCHED_TAG
from highwater.streams.queries.local_model import NOTHING_FOUND
from highwater.streams.wording import counted

# As many as a sentence can hold.
NAMED_MAX = 8


def not_searched(names: Sequence[str], organization_id: str | None) -> str:
    """Return how namespaces that are not open are named in an answer; empty: there are none."""
    if not names:
        return ""
    more = [f"and {len(names) - NAMED_MAX:,} more"] if len(names) > NAMED_MAX else []
    return counted(len(names), "namespace") if organization_id is not None else ", ".join([*names[:NAMED_MAX], *more])


def with_not_searched(answer: str, draft: str) -> str:
    """Return the answer; one that found nothing also says what the draft's search was not allowed to read."""
    names, end, _ = draft.partition(f"<{NOT_SEARCHED_TAG}>\n")[2].partition(f"\n</{NOT_SEARCHED_TAG}>")
    if not end or NOTHING_FOUND not in answer:
        return answer
    return f"{answer} Not searched, since not open to questions: {names}."
