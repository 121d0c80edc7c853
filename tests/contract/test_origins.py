"""The sources of the specification: each row has one verdict with its proof, and the page counts them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass

import pytest

from tests import ROOT
from tests.origins import MET, NOT_MET, OTHERWISE, PAGE, VERDICTS, Row, faults, make_page, read_rows, record_paths

ROWS = read_rows()
RECORDS = record_paths()
# The sources with the number of their rows, so that none is lost.
DOCUMENTS = {
    "Reclustering on demand": 76,
    "Query pipeline (MaaS)": 156,
    "Cache and queues (Redis)": 184,
    "Data lifecycle (RC-v1)": 32,
    "Caching policy of the league": 163,
}
# Every service, language and mechanism of the sources that the product replaces.
REPLACED = ("MongoDB", "Qdrant", "Celery", "gRPC", "TypeScript", "pg_notify")


def _tests_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {f"{path}::{one.name}" for one in functions if one.name.startswith("test_")}


PATHS = {test.split("::")[0] for row in ROWS for test in row.tests}
TESTS = {test for path in PATHS if (ROOT / path).is_file() for test in _tests_of(path)}


def test_each_row_has_its_proof():
    """A test that exists, a replacement with a guarantee and a decision record, or a reason."""
    assert list(faults(ROWS, TESTS, set(RECORDS))) == []


def test_no_source_and_no_row_is_lost():
    """Every source in order, with all of its rows, each once in its section."""
    assert list(Counter(row.document for row in ROWS).items()) == list(DOCUMENTS.items())
    assert len({row[:3] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("name", REPLACED)
def test_what_is_replaced_is_named(name: str):
    """A row that names it is met otherwise."""
    assert any(row.verdict == OTHERWISE and name in row.sentence for row in ROWS)


def test_the_page_begins_with_its_counts():
    """The numbers of the page are those of the rows."""
    opening = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    counts = {name: int(number) for name, number in re.findall(r"^- \*(.+?)\*: (\d+) rows", opening, re.MULTILINE)}
    assert counts == {name: sum(row.verdict == name for row in ROWS) for name in VERDICTS}


def test_the_page_is_current():
    """`docs/origins.md` is what `python -m tests.origins` writes, in Latin letters and without paths of a machine."""
    text = PAGE.read_text(encoding="utf-8")
    assert text == make_page(ROWS, RECORDS)
    assert re.findall(r"[\u0400-\u04ff]|/(?:home|work|tmp)/", text) == []


@dataclass(frozen=True)
class _Case:
    """Changes to a good row, and the fault that they make."""

    verdict: str
    fault: str
    tests: tuple[str, ...] = ()
    answer: str = ""
    guaranteed: str = ""
    decision: str = ""


@pytest.mark.parametrize(
    "case",
    [
        _Case(MET, "no test"),
        _Case(MET, "a::test_c does not exist", tests=("a::test_c",)),
        _Case(MET, "a reason or replacement", tests=("a::test_b",), answer="x"),
        _Case("met by code", "met by code is not a verdict", answer="x"),
        _Case(NOT_MET, "no reason or replacement"),
        _Case(NOT_MET, "a test, although it is not met", tests=("a::test_b",), answer="x"),
        _Case(OTHERWISE, "a replacement has a guarantee and a decision record", answer="x", guaranteed="y"),
        _Case(
            OTHERWISE, "a replacement has a guarantee and a decision record", answer="x", guaranteed="y", decision="9"
        ),
        _Case(OTHERWISE, "a replacement has a guarantee and a decision record", answer="x", decision="1"),
    ],
)
def test_a_row_without_proof_is_a_fault(case: _Case):
    """Each kind of missing or superfluous proof is named."""
    row = Row("d", "s", "It is.", case.verdict, case.tests, case.answer, case.guaranteed, case.decision)
    assert any(case.fault in fault for fault in faults([row], {"a::test_b"}, {"1"}))
