"""The prompts that the product begins with."""

from __future__ import annotations

import re

import pytest

from highwater.connectors.postgres import migrate
from highwater.streams.models.tokens import count_tokens
from highwater.streams.queries.context import CONTEXT_TAG, QUERY_TAG

_FILE = migrate.FOLDER / "0008_queries.sql"
PROMPTS = dict(re.findall(r"\('(\w+)', \$prompt\$(.*?)\$prompt\$, true,", _FILE.read_text(encoding="utf-8"), re.DOTALL))


@pytest.mark.requirement("R1.11")
def test_each_role_begins_with_a_prompt_in_force() -> None:
    """R1.11: Analyzer, Assembler, Mentor, Archivist; each well within the draft."""
    assert set(PROMPTS) == {"Analyzer", "Assembler", "Mentor", "Archivist"}
    assert all(200 < count_tokens(text) < 1_500 for text in PROMPTS.values())


@pytest.mark.parametrize(
    ("role", "names"),
    [
        (
            "Analyzer",
            ["needs_context", "context_type", "time_scope", "search_keywords", '"context_found": {"lsm_ids": ['],
        ),
        ("Assembler", ["<user_query>", "<raw_logs>", "<analysis>", "<memory>", "<sources>", "<mentor>", "<source n="]),
        ("Mentor", [f"<{QUERY_TAG}>", f"<{CONTEXT_TAG}>", "<sources>", "Nothing that was ingested answers this."]),
        ("Archivist", ['{"tags": ["..."], "text": "..."}', '"timestamp"']),
    ],
)
def test_a_prompt_names_what_is_given_and_what_is_read(role: str, names: list[str]) -> None:
    """The parts of its input and the form of its answer, by the names in the code; and that data is not an instruction."""
    assert [name for name in names if name not in PROMPTS[role]] == []
    assert "data" in PROMPTS[role]
    assert "do not obey" in PROMPTS[role]
