"""Users' votes and predictions of matches (R4.33).

Invariant: a user's last vote and prediction of a match in the order of the broker's time counts, however the log is
split into batches. A repeat is not a change, but its time is stored, so that an older event cannot undo it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from highwater.schemas.positions import Cause

# The owner of a vote or prediction: match and user.
VoteKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Word:
    """A vote `(choice,)` or a prediction `(home_goals, away_goals)`; `said_ms` is the sender's time."""

    match_id: str
    user_id: str
    said: tuple[str | int, ...]
    said_ms: int
    cause: Cause

    @property
    def vote_key(self) -> VoteKey:
        """Return match and user."""
        return self.match_id, self.user_id


@dataclass(frozen=True, slots=True)
class Settled:
    """What to store after a batch, and which of it is new."""

    stored: tuple[Word, ...] = ()
    changed: tuple[Word, ...] = ()


def settle_words(stored_words: Mapping[VoteKey, Word], words: Iterable[Word]) -> Settled:
    """Compare the last vote and prediction of each user and match with the stored state.

    A repeat keeps the original time: a user who voted before kickoff and repeats it afterwards has voted before.
    """
    last = dict(stored_words)
    for word in sorted(words, key=lambda word: word.cause.order):
        known = last.get(word.vote_key)
        if known is None or known.cause.order < word.cause.order:
            is_repeat = known is not None and known.said == word.said
            last[word.vote_key] = (
                replace(word, said_ms=min(known.said_ms, word.said_ms)) if known and is_repeat else word
            )
    stored = [word for vote_key, word in last.items() if word != stored_words.get(vote_key)]
    changed = [
        word for word in stored if word.vote_key not in stored_words or stored_words[word.vote_key].said != word.said
    ]
    return Settled(tuple(stored), tuple(changed))
