"""Which label of the last version belongs to a cluster or theme of this one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence


def former_labels(
    owned: Sequence[Sequence[str]], insight_ids: Sequence[str], former: Mapping[str, Collection[str]]
) -> list[str | None]:
    """Return the former label of each group of insights: of the one that most of it was in, and most of whose remaining
    insights it has.

    `owned`: their ids; `insight_ids`: all of this version; `former`: labels with the ids of the last version.
    """
    here = frozenset(insight_ids)
    label_of = {insight_id: label for label, ids in former.items() for insight_id in ids if insight_id in here}
    remaining = Counter(label_of.values())
    called: list[str | None] = []
    for ids in owned:
        shared = Counter(label_of[insight_id] for insight_id in ids if insight_id in label_of)
        label, times = max(shared.items(), key=lambda item: (item[1], item[0]), default=(None, 0))
        is_same = label is not None and 2 * times > max(remaining[label], sum(shared.values()))
        called.append(label if is_same else None)
    return called
