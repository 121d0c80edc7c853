"""The rest of clusters after insights in them were retracted. Invariant: no word is shown that only retracted insights
contain.

A version of a user's clusters is stored once and served while it is kept. Later retractions are applied when it is
read: the ids with their parallel values are removed, and words (label, keywords, title, summary) that none of the
remaining texts contains.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from highwater.streams.feeds.label_words import (
    NUMBERED,
    is_other,
    language_of_label,
    mixed,
    with_examples,
    with_more,
    without_examples,
    without_more,
    words_of_mixed,
)
from highwater.streams.feeds.phrases import unfiled
from highwater.streams.feeds.summary import summarise
from highwater.streams.feeds.tokens import stem_of
from highwater.streams.messages import Messages, catalogue, gettext_noop, messages_for

# The label in place of retracted words, if no others remain.
RETRACTED_LABEL = gettext_noop("(retracted)")
# As many terms as a label has at most (`labels.LABEL_TERMS_MAX`), and as many characters.
_TERMS_MAX, _CHARACTERS_MAX = 3, 72
# Lists of a stored cluster that are parallel to another: the ids first.
_MEMBERS = ("insight_ids", "confidences", "since", "arrived", "positions")
_NEARBY = ("nearby_ids", "nearby_confidences")
# A label is a phrase, terms beside it, and a mark that distinguishes two with one name: "Update dependency: css, theme
# (kafka)".
_PARTS = re.compile(r"(?:(?<![:,()])|(?<=\s\())[:,()]++(?:\s+|$)|(?<!\s)\s++\(")
_TOKEN = re.compile(r"[^\W_]+")
_CASE_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def parts_of(label: str) -> list[str]:
    """Return the phrases and terms of a label, in order, without what `label_words` adds to them."""
    if is_other(label):
        return []
    label = without_more(label)
    plain = NUMBERED.sub("", label)
    words = words_of_mixed(plain)
    left = label if words is None else f"{words}{label[len(plain) :]}"
    found: list[str] = []
    while left:
        subject, left = without_examples(left)
        found += filter(None, (part.strip() for part in _PARTS.split(subject)))
    return found


def _messages_of(label: str) -> Messages:
    """Return the messages in the language of a label: of what was added to it, else of its words."""
    added = language_of_label(label)
    return messages_for(label) if added is None else catalogue().messages(added)


class SearchedTexts:
    """What texts contain, to be searched for phrases; words match by their stems and in any spelling."""

    def __init__(self, texts: Iterable[str | None]) -> None:
        told = [text for text in texts if text]
        self._plain = [text.casefold() for text in told]
        self._words = [_spelled(text) for text in told]

    def __contains__(self, phrase: str) -> bool:
        """Return whether one of the texts contains all words of a phrase in a row."""
        plain, words = phrase.casefold(), _spelled(phrase)
        if any(plain in text for text in self._plain):
            return True
        return words.strip() != "" and any(words in text for text in self._words)


def _spelled(text: str) -> str:
    words = _TOKEN.findall(_CASE_CHANGE.sub(" ", text))
    return f" {' '.join(stem_of(word.lower()) for word in words)} "


def label_without(label: str, gone: Collection[str]) -> str:
    """Return a label without those of its parts; `RETRACTED_LABEL` if nothing is left. Examples never become a subject."""
    messages = _messages_of(label)
    head, examples = without_examples(label)
    left = [part for part in parts_of(head) if part not in gone]
    beside = [part for part in parts_of(examples) if part not in gone]
    if left and words_of_mixed(head) is None:
        return with_examples(", ".join(left), ", ".join(beside), messages)
    return mixed(", ".join([*left, *beside]), messages) if left or beside else messages.gettext(RETRACTED_LABEL)


def redact_words(
    stored: Mapping[str, Any], texts: Mapping[str, str | None], retracted: Collection[str]
) -> dict[str, Any]:
    """Return a stored cluster that lost members to retractions, in words of the others; its lists of ids are unchanged.

    `texts`: those of its remaining members, or of enough of them, by id. The title becomes the label again and the
    summary is extracted from these texts, since a model may have paraphrased what was retracted.
    """
    said = SearchedTexts(texts.values())
    keywords = [keyword for keyword in stored.get("keywords") or () if keyword in said]
    is_own = bool(stored.get("label_by"))  # the reader's words, not those of a text
    label = str(stored["label"]) if is_own else _label(stored, said, keywords, texts, retracted)
    changed: dict[str, Any] = {"label": label, "keywords": keywords or [label.lower()]}
    if "title" in stored:
        summary = summarise(list(texts.values()), changed["keywords"])
        changed |= {"title": label, "summary": summary, "written_version": 0, "written_for": ""}
    return {**stored, **changed}


def _label(
    stored: Mapping[str, Any],
    searched: SearchedTexts,
    keywords: Sequence[str],
    texts: Mapping[str, str | None],
    retracted: Collection[str],
) -> str:
    """Return the label while the remaining texts contain all of it, else the best keywords, else the beginning of a text."""
    label = str(stored.get("label") or "")
    if label and all(part in searched for part in parts_of(label)):
        return label
    if keywords:
        shown = ", ".join(keywords[:_TERMS_MAX])
    else:
        own = str(stored.get("representative_id"))
        first = [own] if own in texts else []
        told = (" ".join(unfiled(text).split()) for one in (*first, *texts) if (text := texts[one]))
        messages = _messages_of(label)
        ids = (messages.gettext("Insight {id}", id=one) for one in stored["insight_ids"] if one not in retracted)
        shown = next(told, "") or next(ids, messages.gettext(RETRACTED_LABEL))
    return (shown[:1].upper() + shown[1:])[:_CHARACTERS_MAX].rstrip(" ,")


def redact_clusters(
    stored: Iterable[Mapping[str, Any]], retracted: frozenset[str], texts: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    """Return the clusters of a version without retracted insights; one without other members is removed.

    `texts`: those of remaining members of the affected clusters, by id.
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
    """Remove from a theme what neither the given texts nor the redacted words of its clusters contain."""
    own = [one for one in clusters if one.get("theme") == theme]
    if own and own[0].get("theme_for") is not None:  # a model may have paraphrased what was retracted
        label, more = str(own[0]["label"]), len(own) - 1
        name = with_more(label, more, _messages_of(label)) if more else label
        for one in own:
            one.update(theme=name, theme_for=None)
        return
    ids = {insight_id for one in own for insight_id in one["insight_ids"]}
    words = (word for one in own for word in (str(one["label"]), *one.get("keywords", ())))
    said = SearchedTexts([*(text for insight_id, text in texts.items() if insight_id in ids), *words])
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
    """Return the unclustered insights, without retracted ones."""
    return _without(stored, ("insight_ids", "positions", "arrived"), retracted)


def _without(stored: Mapping[str, Any], lists: Sequence[str], retracted: Collection[str]) -> dict[str, Any]:
    """Remove the entries of retracted ids from these lists, the first of which holds the ids."""
    kept = [place for place, insight_id in enumerate(stored[lists[0]]) if insight_id not in retracted]
    return {**stored, **{name: [stored[name][place] for place in kept] for name in lists if name in stored}}


def _surest(cluster: Mapping[str, Any]) -> str:
    """Return the member with the highest membership; ties by id."""
    ids: list[str] = cluster["insight_ids"]
    sure = cluster.get("confidences") or [1.0] * len(ids)
    return min(zip(sure, ids, strict=True), key=lambda pair: (-pair[0], pair[1]))[1]


def _named_apart(cluster: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the cluster with a label that no earlier one has."""
    label, number = str(cluster["label"]), 2
    while label.lower() in names:
        label, number = f"{cluster['label']} ({number})", number + 1
    title = {"title": label} if "title" in cluster else {}
    return {**cluster, "label": label, **title}
