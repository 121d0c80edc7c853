"""The digest of a feed: what is new in a version of a user's clusters since an earlier one, as a person reads it.

Invariant: a pure function of the version, its insights and the version that the reader knows, so that equal positions
give equal digests. Growth is counted to the time of the version, not to that of the read.

Texts that say nearly the same are one example, version bumps are one line, and the last of three examples is the one
that is least like the others: three alike say no more than one. Distances are those of words, which every text has;
vectors may be missing or of two models.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from highwater.schemas.envelope import iso_from_ms, iso_from_ms_or_none
from highwater.streams.feeds.label_words import is_mixed
from highwater.streams.feeds.summary import bag_of
from highwater.streams.languages import ENGLISH, text_language

# What a person reads in a few minutes; the others are counted.
SECTIONS_MAX = 20
EXAMPLES_MAX = 3
# Names in a line; the others are counted.
NAMES_MAX = 3
# A long sentence. A longer one is cut.
TEXT_CHARACTERS_MAX = 280
# "No." does not end the sentence "No. 5 is alive".
_SENTENCE_CHARACTERS_MIN = 20
# Share of the words of the longer of two texts above which they say nearly the same: "fix the test of A" and "... of B".
_ALIKE_SHARE = 0.6
# A text of fewer words is unlike all others without saying anything.
_ODD_WORDS_MIN = 3
WEEK_MS = 7 * 86_400_000

_SENTENCE_END = re.compile(r"[.!?\u2026](?=\s)|[\u3002\uff01\uff1f]")
_PARAGRAPH = re.compile(r"\n\s*\n")
# "Bump x from 1 to 2", "Bump x in /ui", "chore(deps): update dependencies: docs" as bots write them.
_BUMPS = frozenset({"bump", "bumps", "bumped"})
_VERBS = _BUMPS | {"update", "updates", "updated", "upgrade", "upgrades", "upgraded"}
# Between verb and name, and between name and version.
_BEFORE_NAME = frozenset({"the", "dependency", "requirement", "requirements", "for", "version", "of"})
_AFTER_NAME = frozenset({"docker", "tag", "digest", "ci", "action", "monorepo", "requirement", "version"})
_ARROWS = frozenset({"->", "\u2192"})


@dataclass(frozen=True, slots=True)
class NewInsight:
    """An insight that arrived after the reader's version."""

    insight_id: str
    channel_id: str
    ts_ms: int
    text: str | None
    url: str | None


@dataclass(frozen=True, slots=True)
class ClusterNews:
    """What is new in a cluster; `cluster_id` "" for the insights outside of all clusters. `is_new`: the cluster is, too.

    `size` of the cluster, `new_count` of its insights that arrived since, `arrived_version` the last version in which one did.
    `week` counts its insights whose own time is less than seven days before that of the version, `week_before` those of
    the seven days before these. `channels`: new insights by channel. `first_ms` and `last_ms`: their earliest and latest
    own time. `insights`: the newest of the new ones, newest first.
    """

    cluster_id: str
    label: str
    theme: str
    is_new: bool
    size: int
    new_count: int
    arrived_version: int
    week: int
    week_before: int
    channels: Mapping[str, int]
    first_ms: int
    last_ms: int
    insights: tuple[NewInsight, ...]

    @property
    def is_left_over(self) -> bool:
        """Return whether its insights have no subject in common."""
        return not self.cluster_id or is_mixed(self.label)


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a digest goes: a version, its time (None: the user has none) and the event that caused it.

    `since` is the version from which the digest begins, at `since_ms` (None: unknown, or the version is 0). `is_preliminary`
    and `is_regrouped`: how the version was made (`api/feeds/answers.py`).
    """

    version: int
    at_ms: int | None
    position: str
    since: int
    since_ms: int | None
    is_preliminary: bool = False
    is_regrouped: bool = False


@dataclass(frozen=True, slots=True)
class _Example:
    """A group of texts that say nearly the same, by its most typical one; `place` among all, newest first."""

    place: int
    insight: NewInsight
    bag: frozenset[str]
    count: int
    typicality: float


def most_news(counts: Iterable[tuple[str, str, int]]) -> list[str]:
    """Return the ids of the clusters that a digest shows, in order: those with most news first, without a subject last.

    `counts`: for each cluster its id ("" for the insights outside of all), its label, and the number of its new insights.
    """
    ranked = sorted(counts, key=lambda one: (not one[0], is_mixed(one[1]), -one[2], one[1], one[0]))
    return [cluster_id for cluster_id, _, _ in ranked[:SECTIONS_MAX]]


def digest(
    user_id: str, reached: Reached, news: Sequence[ClusterNews], *, clusters: int, insights: int
) -> dict[str, Any]:
    """Return a digest as it is served (`api/feeds/answers.py`); `clusters` and `insights` count all news, also what is not shown.

    Source: issue 47, a feed that is worth a daily visit.
    """
    sections = sorted(map(_section, news), key=_rank)
    texts = "\n".join(one["text"] for section in sections for one in section["examples"])
    return {
        "user_id": user_id,
        "since": reached.since,
        "since_at": iso_from_ms_or_none(reached.since_ms),
        "cluster_version": reached.version,
        "position": reached.position,
        "updated_at": iso_from_ms_or_none(reached.at_ms),
        "preliminary": reached.is_preliminary,
        "regrouped": reached.is_regrouped,
        "language": text_language(texts) or ENGLISH,
        "new_count": insights,
        "cluster_count": clusters,
        "sections": sections,
    }


def _rank(section: Mapping[str, Any]) -> tuple[bool, bool, int, int, str]:
    """Subjects before bumps before what has no subject; most news first, then most growth."""
    bumps = 0 if section["bumps"] is None else section["bumps"]["count"]
    rest = section["new_count"] - bumps
    growth = section["week"] - section["week_before"]
    return (
        section["cluster_id"] is None,
        section["is_left_over"],
        -rest,
        -growth,
        section["label"],
    )


def _section(news: ClusterNews) -> dict[str, Any]:
    told = [one for one in news.insights if (one.text or "").strip()]
    bumped = {one.insight_id: name for one in told if (name := bumped_name(one.text or "")) is not None}
    channels = sorted(news.channels.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "cluster_id": news.cluster_id or None,
        "label": news.label,
        "theme": news.theme,
        "is_new": news.is_new,
        "is_left_over": news.is_left_over,
        "size": news.size,
        "new_count": news.new_count,
        "arrived_version": news.arrived_version,
        "week": news.week,
        "week_before": news.week_before,
        "channels": [{"channel_id": channel_id, "count": count} for channel_id, count in channels],
        "first_at": iso_from_ms(news.first_ms),
        "last_at": iso_from_ms(news.last_ms),
        "examples": examples([one for one in told if one.insight_id not in bumped]),
        "bumps": _bumps(list(bumped.values())),
    }


def _bumps(names: Sequence[str]) -> dict[str, Any] | None:
    if not names:
        return None
    return {"count": len(names), "names": [name for name, _ in Counter(names).most_common()]}


def bumped_name(text: str) -> str | None:
    """Return what a text says has another version; None: it says something else, or more."""
    line = _lead(text)
    words = line.split() if len(line) <= TEXT_CHARACTERS_MAX else []
    if _is_packaged(words):
        return words[0].rstrip(":")
    start = 0
    while start < len(words) and _is_prefix(words[start]):
        start += 1
    words, is_of_dependencies = words[start:], any("(deps" in word for word in words[:start])
    if not words or words[0].lower() not in _VERBS:
        return None
    name = _named_bump(words, is_bump=words[0].lower() in _BUMPS, is_of_dependencies=is_of_dependencies)
    return None if name is None else name.strip("`'\":")


def _named_bump(words: Sequence[str], *, is_bump: bool, is_of_dependencies: bool) -> str | None:
    """Return what the words after a verb name that has another version."""
    if is_bump and [word.lower() for word in words[1:4:2]] == ["the", "group"]:
        return words[2]
    place = 1
    while place < len(words) - 1 and words[place].lower() in _BEFORE_NAME:
        place += 1
    name, rest = "".join(words[place : place + 1]), words[place + 1 :]
    if not name or words[place - 1].lower() == "version" or name.lower() == "version":
        return None
    if is_bump and (not rest or _is_number(rest[0]) or (rest[0] == "in" and rest[1:2] and _is_place(rest[1]))):
        return name
    if _ends_in_version(rest):
        return name.rstrip(";,")
    if not is_of_dependencies:
        return None
    other = [word for word in words[1:] if word.lower().rstrip(":") not in ("dependency", "dependencies")][:2]
    return " ".join(other if len(other) < 2 or not set(other[1]) & set("(:") else other[:1]) or None


def _ends_in_version(words: Sequence[str]) -> bool:
    """Return whether words after a name say to which version it is brought: `from 1 to 2`, `digest to 4f2a`."""
    place = 0
    while place < len(words) and words[place].lower() in _AFTER_NAME:
        place += 1
    if words[place : place + 1] == ["from"]:
        place += 2
    to = [word.lower() for word in words[place : place + 2]]
    return to[:1] == ["to"] and len(to) > 1 and (to[1] == "latest" or any(map(str.isdigit, to[1])))


def _is_packaged(words: Sequence[str]) -> bool:
    """Return whether words are a packager's `name: 1.0 -> 2.0`."""
    numbers = [word.lstrip("v^~=")[:1].isdigit() for word in words[1:4:2]]
    return numbers == [True, True] and words[2] in _ARROWS and not words[0].endswith(("(", ")"))


def _is_prefix(word: str) -> bool:
    """Return whether a word stands before what a change does: `chore(deps):`, `KAFKA-1:`, `[3.0]`."""
    if word.startswith("[") and word.endswith("]"):
        return True
    kind, _, scope = word.rstrip("!:").partition("(")
    return word.endswith(":") and kind.replace("-", "").replace("_", "").isalnum() and scope[-1:] in ("", ")")


def _is_number(word: str) -> bool:
    """Return whether a word is that of a pull request: `(#12)`."""
    return word.startswith("(#") and word.endswith(")") and word[2:-1].isdigit()


def _is_place(word: str) -> bool:
    return word.startswith("/") or word == "the"


def examples(insights: Sequence[NewInsight]) -> list[dict[str, Any]]:
    """Return up to `EXAMPLES_MAX` of these insights, which have texts and are in the order newest first.

    The first two are the most frequent things that they say, the third is the one that is least like all of them.
    `alike_count`: how many others say nearly the same.
    """
    groups = _groups(insights)
    usual = sorted(groups, key=lambda one: (-one.count, -one.typicality, one.place))
    chosen = usual[:EXAMPLES_MAX]
    odd = None
    if len(groups) > EXAMPLES_MAX:
        able = [one for one in usual[EXAMPLES_MAX - 1 :] if len(one.bag) >= _ODD_WORDS_MIN and one.count == 1]
        odd = min(able, key=lambda one: (one.typicality, one.place), default=None)
        chosen = chosen if odd is None else [*usual[: EXAMPLES_MAX - 1], odd]
    return [
        {
            "insight_id": one.insight.insight_id,
            "channel_id": one.insight.channel_id,
            "ts": iso_from_ms(one.insight.ts_ms),
            "text": whole_sentences(one.insight.text or ""),
            "url": one.insight.url,
            "alike_count": one.count - 1,
            "is_odd": one is odd,
        }
        for one in chosen
    ]


def _groups(insights: Sequence[NewInsight]) -> list[_Example]:
    """Return the insights as groups of those that say nearly the same, in the order of the newest of each."""
    bags = [bag_of(_lead(one.text or "")) for one in insights]
    centre = Counter(word for bag in bags for word in bag)
    length = math.sqrt(sum(count * count for _, count in sorted(centre.items())))
    grouped: list[list[int]] = []
    for place, bag in enumerate(bags):
        for group in grouped:
            if _is_alike(bag, bags[group[0]]):
                group.append(place)
                break
        else:
            grouped.append([place])

    def typicality(place: int) -> float:
        """The cosine of a text's words and those of all."""
        bag = bags[place]
        return sum(centre[word] for word in bag) / (length * math.sqrt(len(bag))) if bag else 0.0

    found = []
    for group in grouped:
        best = min(group, key=lambda place: (-typicality(place), place))
        found.append(_Example(best, insights[best], bags[best], len(group), typicality(best)))
    return found


def _is_alike(bag: frozenset[str], other: frozenset[str]) -> bool:
    return bag == other or len(bag & other) > _ALIKE_SHARE * max(len(bag), len(other))


def whole_sentences(text: str) -> str:
    """Return the first paragraph of a text, in one line; of a long one the sentences that fit, or else its words, and "…"."""
    line = _lead(text)
    if len(line) <= TEXT_CHARACTERS_MAX:
        return line
    ends = [found.end() for found in _SENTENCE_END.finditer(line[: TEXT_CHARACTERS_MAX + 1])]
    whole = [end for end in ends if _SENTENCE_CHARACTERS_MIN <= end <= TEXT_CHARACTERS_MAX]
    if whole:
        return line[: whole[-1]]
    words = line[:TEXT_CHARACTERS_MAX].rsplit(" ", 1)[0]
    return f"{words.rstrip(' ,;:')}\u2026"


def _lead(text: str) -> str:
    """Return the first paragraph of a text in one line."""
    return " ".join(_PARAGRAPH.split(text.strip(), maxsplit=1)[0].split())
