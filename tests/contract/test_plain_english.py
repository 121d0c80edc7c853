"""What a user reads is plain English: none of the phrases of the glossary, and no number of a requirement."""

from __future__ import annotations

import re

import pytest

from tests import ROOT
from tests.contract.visible_texts import Text, all_texts

TEXTS = list(dict.fromkeys(all_texts()))
_LINES = (ROOT / "tests" / "contract" / "glossary.tsv").read_text(encoding="utf-8").splitlines()[1:]
GLOSSARY = [tuple(line.split("\t")) for line in _LINES]


def found(pattern: str, texts: list[Text]) -> list[str]:
    """Where a phrase stands, with the text around it."""
    return [
        f"{text.where}: …{text.text[max(0, match.start() - 40) : match.end() + 40]}…"
        for text in texts
        for match in re.finditer(pattern, text.text, re.IGNORECASE)
    ]


@pytest.mark.parametrize(("phrase", "instead"), GLOSSARY)
def test_no_phrase_of_the_glossary(phrase: str, instead: str):
    """None of them stands where a user reads it."""
    places = found(phrase, TEXTS)
    assert places == [], f"say: {instead}"


def test_no_number_of_a_requirement():
    """Users do not have the specification."""
    assert found(r"\bR\d+\.\d+", TEXTS) == []


def test_every_kind_of_text_is_collected():
    """OpenAPI, help, settings, metrics, alerts, errors and pages: without them a collector would be broken unnoticed."""
    beginnings = ["openapi", "highwater publish --help", "highwater publish --rate", "setting ", "metric ", "alert "]
    for beginning in [*beginnings, "api/dashboard", "api/readers", "api/core/errors.py", "connectors/"]:
        assert any(text.where.startswith(beginning) for text in TEXTS), beginning
    assert len(TEXTS) > 4_000
