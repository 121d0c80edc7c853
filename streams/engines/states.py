"""State machines, each as one table of legal moves.

Invariant: a status changes only by a move of its table; a move that the table does not have raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias, TypeVar

from highwater.schemas.errors import HighwaterError

StateT = TypeVar("StateT", bound=StrEnum)
MoveT = TypeVar("MoveT", bound=StrEnum)
Moves: TypeAlias = Mapping[tuple[StateT, MoveT], StateT]


class IllegalMoveError(HighwaterError):
    """This move is not legal in the state of the run or job. Nothing was changed; this is a defect, see the log."""


def moved(moves: Moves[StateT, MoveT], state: StateT, move: MoveT, *, of: str) -> StateT:
    """Return the state after a move; `of` is the noun for the message, with its article.

    Raises:
        IllegalMoveError: the table does not have the move.
    """
    after = moves.get((state, move))
    if after is None:
        raise IllegalMoveError(f"{of} that is {state} cannot {move}")
    return after
