"""What users say of a match: votes and predictions (R4.33).

The invariant: of what a user says of a match, the last in the order of the broker's time counts, whichever way it is cut into
batches. Saying the same again is no change; it is remembered all the same, so that something older cannot undo it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from highwater.schemas.positions import Cause

# Whose word it is: match and user.
Whose = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Word:
    """A vote `(choice,)` or a prediction `(home_goals, away_goals)`; `said_ms` is what its sender says of the time."""

    match_id: str
    user_id: str
    said: tuple[str | int, ...]
    said_ms: int
    cause: Cause

    @property
    def whose(self) -> Whose:
        """Match and user."""
        return self.match_id, self.user_id


@dataclass(frozen=True, slots=True)
class Settled:
    """What is to be stored after a batch, and which of it says something new."""

    stored: tuple[Word, ...] = ()
    changed: tuple[Word, ...] = ()


def settle_words(held: Mapping[Whose, Word], words: Iterable[Word]) -> Settled:
    """The last word of each user and match, against what is stored.

    A repeat keeps the time at which it was first said: who voted before kickoff and says so again after it has voted before.
    """
    last = dict(held)
    for word in sorted(words, key=lambda word: word.cause.order):
        known = last.get(word.whose)
        if known is None or known.cause.order < word.cause.order:
            is_repeat = known is not None and known.said == word.said
            last[word.whose] = replace(word, said_ms=min(known.said_ms, word.said_ms)) if known and is_repeat else word
    stored = [word for whose, word in last.items() if word != held.get(whose)]
    changed = [word for word in stored if word.whose not in held or held[word.whose].said != word.said]
    return Settled(tuple(stored), tuple(changed))
