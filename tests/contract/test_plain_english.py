"""Texts for users and developers are plain English: no phrase of the glossary; and texts for users have no number of a
requirement.
"""

from __future__ import annotations

import re

import pytest

from tests import ROOT
from tests.contract.code_texts import ROOMS, code_texts, document_texts, test_texts
from tests.contract.visible_texts import Text, all_texts, of_literals

TEXTS = list(dict.fromkeys(all_texts()))
# Columns: a phrase, what to say instead, and whether docstrings and comments (also of tests), log lines and documents avoid it
# too. "no": the phrase has a plain meaning there (the parts of a cluster, the model version called basis), so a search would
# find more than it should.
_LINES = (ROOT / "tests" / "contract" / "glossary.tsv").read_text(encoding="utf-8").splitlines()[1:]
_ENTRIES = [line.split("\t") for line in _LINES]
GLOSSARY = [(phrase, instead) for phrase, instead, _ in _ENTRIES]
IN_CODE = [phrase for phrase, _, avoided in _ENTRIES if avoided == "yes"]


def found(pattern: str, texts: list[Text]) -> list[str]:
    """Return the places of a phrase, with the text around it."""
    return [
        f"{text.where}: …{text.text[max(0, match.start() - 40) : match.end() + 40]}…"
        for text in texts
        for match in re.finditer(pattern, text.text, re.IGNORECASE)
    ]


@pytest.mark.parametrize(("phrase", "instead"), GLOSSARY)
def test_no_phrase_of_the_glossary(phrase: str, instead: str):
    """No text for users has one."""
    places = found(phrase, TEXTS)
    assert places == [], f"say: {instead}"


def test_no_phrase_of_the_glossary_in_docstrings_and_comments():
    """Developers read the same words as users."""
    texts = list(code_texts())
    assert len(IN_CODE) > 50
    assert found("|".join(IN_CODE), texts) == [], "tests/contract/glossary.tsv names what to say instead"
    # A broken collector would find nothing.
    assert {text.where.split("/")[0] for text in texts} == set(ROOMS)
    assert len(texts) > 5_000


def test_no_phrase_of_the_glossary_in_messages():
    """Neither in lines of the log, nor in reasons and effects that a status, an explanation or a verification shows."""
    texts = list(of_literals())
    assert found("|".join(IN_CODE), texts) == [], "tests/contract/glossary.tsv names what to say instead"
    assert len(texts) > 3_500


def test_no_phrase_of_the_glossary_in_tests():
    """A docstring of a test states a fact in the same words."""
    texts = list(test_texts())
    assert found("|".join(IN_CODE), texts) == [], "tests/contract/glossary.tsv names what to say instead"
    assert len(texts) > 5_000


def test_no_phrase_of_the_glossary_in_documents():
    """Neither in pages of `docs/` nor in READMEs of folders; no second name for a subsystem."""
    texts = list(document_texts())
    assert found("|".join([*IN_CODE, r"\bhouseholds?\b"]), texts) == [], (
        "tests/contract/glossary.tsv names what to say instead"
    )
    places = {text.where.split(":")[0] for text in texts}
    assert {"README.md", "docs/clusters.md", "connectors/kafka/README.md", "tests/README.md"} <= places
    assert len(places) > 150


def test_no_number_of_a_requirement():
    """Users do not have the specification."""
    assert found(r"\bR\d+\.\d+", TEXTS) == []


def test_every_kind_of_text_is_collected():
    """OpenAPI, help, settings, metrics, alerts, errors and pages: without them a collector would be broken unnoticed."""
    beginnings = ["openapi", "highwater publish --help", "highwater publish --rate", "setting ", "metric ", "alert "]
    for beginning in [*beginnings, "api/dashboard", "api/readers", "api/core/errors.py", "connectors/"]:
        assert any(text.where.startswith(beginning) for text in TEXTS), beginning
    assert len(TEXTS) > 4_000
