"""The built-in summary: sentences of the texts, unchanged. Invariant: it invents nothing.

Used for feed items when no language model is configured. Sentences are chosen by maximal marginal relevance (Carbonell
and Goldstein 1998): typical of the texts, and not a repetition of an earlier sentence.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from highwater.streams.feeds.tokens import STOP_WORDS, clean, words_of

SENTENCES_MAX = 3
SENTENCE_CHARACTERS_MAX = 240
# Distinct texts weighed; a cluster can contain thousands that say the same.
TEXTS_MAX = 500
# Share of a sentence's words that an earlier one may contain already.
OVERLAP_MAX = 0.6
KEYWORD_BONUS = 2.0
# Lines whose words a process remembers, about 1 KB each: a window has one new line in a hundred.
BAGS_MAX = 16_384
# A shorter sentence says little; a longer one is not better.
TELLING_WORDS = 5


def summarise(texts: Sequence[str | None], keywords: Sequence[str] = (), *, sentences_max: int = SENTENCES_MAX) -> str:
    """Return up to `sentences_max` texts that are most typical and different, in their given order, one per line.

    `texts` are a cluster's, `keywords` its keywords. A text is cut at `SENTENCE_CHARACTERS_MAX` characters, at a word.
    "" if all texts are blank. The same input gives the same summary. Source: R0.40 (the feed's text).
    """
    lines = list(dict.fromkeys(line for text in texts if (line := _one_line(text))))[:TEXTS_MAX]
    bags = [bag_of(line) for line in lines]
    shares = Counter(word for bag in bags for word in bag)
    # A keyword can be an identifier or a pair; the words of a sentence are single.
    named = frozenset(word for keyword in keywords for word in bag_of(keyword))
    scores = [_typicality(bag, shares, named) for bag in bags]
    chosen: list[int] = []
    for i in sorted(range(len(lines)), key=lambda i: (-scores[i], i)):
        if len(chosen) == sentences_max:
            break
        if all(_overlap(bags[i], bags[other]) <= OVERLAP_MAX for other in chosen):
            chosen.append(i)
    return "\n".join(lines[i] for i in sorted(chosen))


@lru_cache(BAGS_MAX)
def bag_of(line: str) -> frozenset[str]:
    """Return the words of a line that say something."""
    return frozenset(word for word in words_of(clean(line)) if word not in STOP_WORDS)


def _typicality(bag: frozenset[str], shares: Counter[str], keywords: frozenset[str]) -> float:
    """Return the mean number of texts that share a word of this one; keywords count double, short texts less."""
    if not bag:
        return 0.0
    weight = sum(shares[word] * (KEYWORD_BONUS if word in keywords else 1.0) for word in sorted(bag))
    return weight / max(len(bag), TELLING_WORDS)


def _overlap(bag: frozenset[str], other: frozenset[str]) -> float:
    if not bag or not other:
        return 1.0 if bag == other else 0.0
    return len(bag & other) / min(len(bag), len(other))


def _one_line(text: str | None) -> str:
    line = " ".join((text or "")[: 4 * SENTENCE_CHARACTERS_MAX].split())
    if len(line) <= SENTENCE_CHARACTERS_MAX:
        return line
    cut = line[:SENTENCE_CHARACTERS_MAX].rsplit(" ", 1)[0]
    return f"{cut}\u2026"
