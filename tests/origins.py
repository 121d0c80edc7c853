"""The sources of the specification, sentence by sentence, with what the product does: writes `docs/origins.md`.

    python -m tests.origins

The rows are in `origins.tsv`, in the order of the sources. A row is *met* by the tests that it names, *met otherwise* by
what it names with a decision record, or *not met*.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from highwater.deploy.site import decisions
from tests import ROOT

ROWS = ROOT / "tests" / "origins.tsv"
PAGE = ROOT / "docs" / "origins.md"
MET, OTHERWISE, NOT_MET = VERDICTS = ("met", "met otherwise", "not met")

_OPENING = """# Origins

<!-- Written by `python -m tests.origins` from tests/origins.tsv; do not edit. -->

For the authors of the five sources of the specification, and for readers who want to know which test shows a sentence, what was
replaced and what is missing. Each sentence, field, key, default and code block of a source is a row, in English and in the order
of the source.

- *met*: {met} rows. The named tests show the sentence.
- *met otherwise*: {otherwise} rows. Something else stands in its place: the row says what, what stays guaranteed, and why.
- *not met*: {not_met} rows, with the reason. A sentence that no test shows is *not met*, even if the code does it.

[Requirements](requirements.md) has the same content in the product's own words. `tests/contract/test_origins.py` compares the
rows with the tests and decisions, and these counts with the rows.
"""


class Row(NamedTuple):
    """A sentence of a source. `tests`: `file::test`; `answer`: what stands in its place, or why it is not met."""

    document: str
    section: str
    sentence: str
    verdict: str
    tests: tuple[str, ...]
    answer: str
    guaranteed: str
    decision: str


def read_rows(path: Path = ROWS) -> list[Row]:
    """The rows in the order of the file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows)
        return [
            Row(document, section, sentence, verdict, tuple(tests.split()), *others)
            for document, section, sentence, verdict, tests, *others in rows
        ]


def record_paths() -> dict[str, str]:
    """The path of each decision record by its number, from `docs/`."""
    return {str(number): f"decisions/{name}" for number, (name, _) in enumerate(decisions.records(), 1)}


def faults(rows: Sequence[Row], tests: set[str], records: set[str]) -> Iterator[str]:
    """What is wrong with rows: one sentence each, with the sentence of the row.

    Args:
        rows: the rows.
        tests: all tests, as `file::test`.
        records: the numbers of all decision records.
    """
    for row in rows:
        needs_words = row.verdict != MET
        is_otherwise = row.verdict == OTHERWISE
        if row.verdict not in VERDICTS:
            yield f"{row.sentence}: {row.verdict} is not a verdict"
        if row.verdict == MET and not row.tests:
            yield f"{row.sentence}: no test"
        if row.verdict == NOT_MET and row.tests:
            yield f"{row.sentence}: a test, although it is not met"
        if bool(row.answer) != needs_words:
            yield f"{row.sentence}: {'no' if needs_words else 'a'} reason or replacement"
        if bool(row.guaranteed) != is_otherwise or (row.decision in records) != is_otherwise:
            yield f"{row.sentence}: a replacement has a guarantee and a decision record, others have neither"
        yield from (f"{row.sentence}: {test} does not exist" for test in row.tests if test not in tests)


def make_page(rows: Sequence[Row], records: dict[str, str]) -> str:
    """The page."""
    count = Counter(row.verdict for row in rows)
    parts = [_OPENING.format(met=count[MET], otherwise=count[OTHERWISE], not_met=count[NOT_MET])]
    for document, of_document in groupby(rows, lambda row: row.document):
        parts.append(f"\n## {document}\n")
        for section, of_section in groupby(of_document, lambda row: row.section):
            parts.append(f"\n### {section}\n\n| the source says | verdict | by |\n|---|---|---|\n")
            parts += [_line(row, records) for row in of_section]
    return "".join(parts)


def _line(row: Row, records: dict[str, str]) -> str:
    tests = ", ".join(f"[{name.removeprefix('test_')}](../{path})" for path, name in (t.split("::") for t in row.tests))
    words = [row.answer]
    if row.verdict == OTHERWISE:
        words += [
            f"Guaranteed: {row.guaranteed}",
            f"[Decision {row.decision}]({records[row.decision]}).",
        ]
    text = " ".join([*filter(None, words), f"Tests: {tests}." if row.tests and words[0] else tests])
    return "| " + " | ".join(cell.strip().replace("|", "\\|") for cell in (row.sentence, row.verdict, text)) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(make_page(read_rows(), record_paths()), encoding="utf-8")
