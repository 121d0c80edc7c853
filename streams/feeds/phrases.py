"""Owns phrases: the runs of words that texts share, as the texts write them. Law: a phrase stands in the texts."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from streams.feeds.tokens import FAINT_WORDS, STOP_WORDS, clean, words_of

PHRASE_WORDS_MAX = 6
# Words of one text that can begin a phrase: what a text is about stands at its beginning.
TEXT_WORDS_MAX = 40
# A phrase of w telling words in a share s of the texts scores s * w ** LENGTH_POWER: a pair in 60 % of the texts beats
# a word in all of them. Below SHARE_MIN of the texts a phrase does not speak for the cluster and is held back.
LENGTH_POWER = 0.75
SHARE_MIN = 0.35

# "feat(api)!: ..." and "MINOR: ...": how a change note is filed, not what it says.
_FILING = re.compile(
    r"^\W*(?:build|chore|ci|docs?|feat|feature|fix|hotfix|minor|misc|perf|refactor|revert|style|tests?|trivial)"
    r"(?:\([^)]*\))?!?\s*:\s*",
    re.IGNORECASE,
)
_EDGES = "()[]{}<>\"'`\u201c\u201d\u2018\u2019.,;:!?*#~=|\u2026-_/\\"
_BREAK = re.compile(r"[;:,.!?)\]}\u2014\u2013]$|^[(\[{]")


@dataclass(frozen=True, slots=True)
class Phrases:
    """`counts`: in how many distinct texts each phrase (lower-cased words) stands. `written`: its commonest spelling."""

    texts: int
    counts: dict[tuple[str, ...], int]
    written: dict[tuple[str, ...], str]

    @classmethod
    def of(cls, texts: Sequence[str | None]) -> "Phrases":
        """Gather the phrases of texts; a repeated text counts once for each of its first ten copies."""
        counts: Counter[tuple[str, ...]] = Counter()
        spellings: dict[tuple[str, ...], Counter[str]] = {}
        copies = Counter(text for text in texts if text)
        total = 0
        for text, times in sorted(copies.items()):
            weight = min(times, 10)
            total += weight
            found: dict[tuple[str, ...], str] = {}
            for run in _runs(text):
                for first in range(len(run)):
                    for last in range(first + 1, min(len(run), first + PHRASE_WORDS_MAX) + 1):
                        words = run[first:last]
                        found.setdefault(tuple(word.lower() for word in words), " ".join(words))
            for phrase, spelling in found.items():
                counts[phrase] += weight
                spellings.setdefault(phrase, Counter())[spelling] += weight
        written = {phrase: min(forms, key=lambda form: (-forms[form], form)) for phrase, forms in spellings.items()}
        return cls(total, dict(counts), written)

    def label(self, keywords: Sequence[str], characters_max: int) -> str:
        """The phrase that best says what the texts share, holding a keyword where one does; "" without any word."""
        best: tuple[str, ...] = ()
        best_score = 0.0
        for phrase, count in sorted(self.counts.items()):
            if phrase[0] in STOP_WORDS or phrase[-1] in STOP_WORDS or len(self.written[phrase]) > characters_max:
                continue
            score = self._score(phrase, count, keywords)
            if score > best_score:
                best, best_score = phrase, score
        spelling = self.written.get(best, "")
        return spelling[:1].upper() + spelling[1:] if spelling.islower() else spelling

    def _score(self, phrase: tuple[str, ...], count: int, keywords: Sequence[str]) -> float:
        telling = sum(0.5 if word in FAINT_WORDS else 1.0 for word in phrase if word not in STOP_WORDS)
        parts = {part for word in phrase for part in words_of(word)}
        rank = next((i for i, keyword in enumerate(keywords) if keyword in parts), None)
        share = count / self.texts
        known = 0.4 if rank is None else 1.0 - 0.05 * rank
        rare = 1.0 if share >= SHARE_MIN else share / SHARE_MIN
        return float(known * share * rare * telling**LENGTH_POWER)


def _runs(text: str) -> list[list[str]]:
    """The words of a text as written, in runs that no punctuation, number or id breaks."""
    cleaned = clean(text)
    unfiled = _FILING.sub("", cleaned)
    runs: list[list[str]] = [[]]
    for raw in (unfiled if words_of(unfiled) else cleaned).split()[:TEXT_WORDS_MAX]:
        word = raw.strip(_EDGES)
        if raw[:1] in "([{":
            runs.append([])
        if word and words_of(word):
            runs[-1].append(word)
        else:
            runs.append([])
        if _BREAK.search(raw):
            runs.append([])
    return [run for run in runs if run]
