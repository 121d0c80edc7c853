"""Owns what is left of clusters once insights in them were retracted. Its invariant: no word is shown that only these say.

A version of a user's clusters is stored once and shown for as long as it is kept. What was retracted since is taken out when it
is read: the ids with all that stands beside them, and of the words (label, keywords, title, summary) those that none of the
remaining texts holds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from highwater.streams.feeds.naming import EXAMPLES, MIXED, is_mixed
from highwater.streams.feeds.phrases import unfiled
from highwater.streams.feeds.summary import summarise
from highwater.streams.feeds.tokens import stem_of

# What a label says in place of words that were retracted, where no others are left.
RETRACTED_LABEL = "(retracted)"
# As many terms as a label has at most (`labels.LABEL_TERMS_MAX`), and as many characters.
_TERMS_MAX, _CHARACTERS_MAX = 3, 72
# Lists of a stored cluster that are parallel to another: the ids first.
_MEMBERS = ("insight_ids", "confidences", "since", "positions")
_NEARBY = ("nearby_ids", "nearby_confidences")
# A label is a phrase, terms beside it, and a mark that distinguishes two of one name: "Update dependency: css, theme (kafka)".
_PARTS = re.compile(r"[:,()]+(?:\s+|$)|\s+\(")
_NUMBER = re.compile(r" \(\d+\)$")
_TOKEN = re.compile(r"[^\W_]+")
_CASE_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def parts_of(label: str) -> list[str]:
    """The phrases and terms that a label is made of, in order; what `naming` adds to them is none."""
    told = label[len(MIXED) :] if is_mixed(_NUMBER.sub("", label)) else label
    return [part for part in (one.strip() for one in _PARTS.split(told.replace(EXAMPLES, ", "))) if part]


class Said:
    """What texts say, to be asked for phrases; words count by their stems and however they are spelled."""

    def __init__(self, texts: Iterable[str | None]) -> None:
        told = [text for text in texts if text]
        self._plain = [text.casefold() for text in told]
        self._words = [_spelled(text) for text in told]

    def __contains__(self, phrase: str) -> bool:
        """Whether one of the texts holds all words of a phrase in a row."""
        plain, words = phrase.casefold(), _spelled(phrase)
        if any(plain in text for text in self._plain):
            return True
        return words.strip() != "" and any(words in text for text in self._words)


def _spelled(text: str) -> str:
    words = _TOKEN.findall(_CASE_CHANGE.sub(" ", text))
    return f" {' '.join(stem_of(word.lower()) for word in words)} "


def label_without(label: str, gone: Collection[str]) -> str:
    """A label without those of its parts; `RETRACTED_LABEL` when nothing is left. What were examples are still no subject."""
    head, _, examples = label.partition(EXAMPLES)
    left = [part for part in parts_of(head) if part not in gone]
    beside = [part for part in parts_of(examples) if part not in gone]
    if left and not is_mixed(head):
        return ", ".join(left) + (f"{EXAMPLES}{', '.join(beside)}" if beside else "")
    return f"{MIXED}: {', '.join([*left, *beside])}" if left or beside else RETRACTED_LABEL


def redact_words(
    stored: Mapping[str, Any], texts: Mapping[str, str | None], retracted: Collection[str]
) -> dict[str, Any]:
    """A stored cluster that lost members to retractions, in words that the others hold; its lists of ids stay as they are.

    `texts`: those of its remaining members, or of enough of them, by id. The title is the label again and the summary is made
    of these texts, since what a model wrote may tell what was retracted without quoting it.
    """
    said = Said(texts.values())
    keywords = [keyword for keyword in stored.get("keywords") or () if keyword in said]
    is_own = bool(stored.get("label_by"))  # the reader's words, not those of a text
    label = str(stored["label"]) if is_own else _label(stored, said, keywords, texts, retracted)
    changed: dict[str, Any] = {"label": label, "keywords": keywords or [label.lower()]}
    if "title" in stored:
        summary = summarise(list(texts.values()), changed["keywords"])
        changed |= {"title": label, "summary": summary, "written_version": 0}
    return {**stored, **changed}


def _label(
    stored: Mapping[str, Any],
    said: Said,
    keywords: Sequence[str],
    texts: Mapping[str, str | None],
    retracted: Collection[str],
) -> str:
    """The label while the remaining texts hold all of it, else the best keywords, else the beginning of a text."""
    label = str(stored.get("label") or "")
    if label and all(part in said for part in parts_of(label)):
        return label
    if keywords:
        shown = ", ".join(keywords[:_TERMS_MAX])
    else:
        own = str(stored.get("representative_id"))
        first = [own] if own in texts else []
        told = (" ".join(unfiled(text).split()) for one in (*first, *texts) if (text := texts[one]))
        ids = (f"Insight {one}" for one in stored["insight_ids"] if one not in retracted)
        shown = next(told, "") or next(ids, RETRACTED_LABEL)
    return (shown[:1].upper() + shown[1:])[:_CHARACTERS_MAX].rstrip(" ,")


def redact_clusters(
    stored: Iterable[Mapping[str, Any]], retracted: frozenset[str], texts: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    """The clusters of a version without retracted insights; one that held nothing else is gone.

    `texts`: those of remaining members of the clusters that lost some, by id.
    """
    kept: list[dict[str, Any]] = []
    names: set[str] = set()
    touched: set[str] = set()
    for one in stored:
        cluster = _without(one, _NEARBY, retracted) if "nearby_ids" in one else dict(one)
        if not retracted.isdisjoint(one["insight_ids"]):
            touched.add(str(one.get("theme") or ""))
            if retracted.issuperset(one["insight_ids"]):
                continue
            cluster = _named_apart(_redacted(cluster, retracted, texts), names)
        names.add(str(cluster.get("label") or "").lower())
        kept.append(cluster)
    for theme in touched - {""}:
        _redact_theme(theme, kept, texts)
    return kept


def _redact_theme(theme: str, clusters: Iterable[dict[str, Any]], texts: Mapping[str, str | None]) -> None:
    """Take out of a theme what neither the given texts nor the words of its clusters, which are redacted, say."""
    own = [one for one in clusters if one.get("theme") == theme]
    ids = {insight_id for one in own for insight_id in one["insight_ids"]}
    words = (word for one in own for word in (str(one["label"]), *one.get("keywords", ())))
    said = Said([*(text for insight_id, text in texts.items() if insight_id in ids), *words])
    gone = {part for part in parts_of(theme) if part not in said}
    if gone:
        for one in own:
            one["theme"] = label_without(theme, gone)


def _redacted(cluster: Mapping[str, Any], retracted: frozenset[str], texts: Mapping[str, str | None]) -> dict[str, Any]:
    remaining = [insight_id for insight_id in cluster["insight_ids"] if insight_id not in retracted]
    own = {insight_id: texts[insight_id] for insight_id in remaining if insight_id in texts}
    left = _without(redact_words(cluster, own, retracted), _MEMBERS, retracted)
    left["size"] = len(remaining)
    if cluster.get("representative_id") in retracted:
        left["representative_id"] = _surest(left)
    return left


def redact_outside(stored: Mapping[str, Any], retracted: frozenset[str]) -> dict[str, Any]:
    """What is in no cluster, without retracted insights."""
    return _without(stored, ("insight_ids", "positions"), retracted)


def _without(stored: Mapping[str, Any], lists: Sequence[str], retracted: Collection[str]) -> dict[str, Any]:
    """With the places of retracted ids taken out of these lists, the first of which holds the ids."""
    kept = [place for place, insight_id in enumerate(stored[lists[0]]) if insight_id not in retracted]
    return {**stored, **{name: [stored[name][place] for place in kept] for name in lists if name in stored}}


def _surest(cluster: Mapping[str, Any]) -> str:
    """The member that belongs to a cluster most; of equals the first by id."""
    ids: list[str] = cluster["insight_ids"]
    sure = cluster.get("confidences") or [1.0] * len(ids)
    return min(zip(sure, ids, strict=True), key=lambda pair: (-pair[0], pair[1]))[1]


def _named_apart(cluster: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Under a label that no cluster before it has."""
    label, number = str(cluster["label"]), 2
    while label.lower() in names:
        label, number = f"{cluster['label']} ({number})", number + 1
    title = {"title": label} if "title" in cluster else {}
    return {**cluster, "label": label, **title}
