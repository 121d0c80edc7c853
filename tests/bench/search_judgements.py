"""Which texts answer a question of `search_quality`, judged by reading what the systems found.

The names in `search_questions.tsv` are those that the author of a question knew; other texts often answer as well. So the
first five results of every system were pooled, as TREC does: one list for each question, in random order and without the
names of the systems, and a reader answered yes or no for each: *does this text alone answer the question?* In doubt the
answer was no. A named text needs no verdict. The verdicts are in `search_judgements.tsv`; an unread text has no verdict, and
counts as no.

Invariant: no rule and no model makes a verdict. A system that finds other texts brings them here to be read.

    python -m tests.bench.search_judgements    # counts
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

VERDICTS = Path(__file__).with_name("search_judgements.tsv")


class Verdicts(NamedTuple):
    """Of one question: the keys of texts that answer it, and of those that were read and do not."""

    yes: frozenset[str]
    no: frozenset[str]


NOTHING_READ = Verdicts(frozenset(), frozenset())


def text_key(title: str, content: str) -> str:
    """What a text is known by, wherever it is cut from; another version of a docstring is another text."""
    return hashlib.sha256(f"{title}\n{content}".encode()).hexdigest()[:8]


def verdicts() -> dict[str, Verdicts]:
    """The verdicts by question."""
    return dict(_read(VERDICTS))


def _read(path: Path) -> Iterator[tuple[str, Verdicts]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            question, yes, no = line.split("\t")
            # Beside the key of a yes stands the name of what the text documents, for readers.
            yield question, Verdicts(frozenset(one.rpartition(":")[2] for one in yes.split()), frozenset(no.split()))


def main() -> None:
    """Print how many texts were read and how many answer."""
    found = verdicts().values()
    print(f"{len(found)} questions; yes {sum(len(one.yes) for one in found)}, no {sum(len(one.no) for one in found)}")


if __name__ == "__main__":
    main()
