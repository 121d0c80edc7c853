"""What a question says that a text must have, or must not."""

from __future__ import annotations

import pytest

from highwater.streams.chunks.asked_text import AskedText, asked_text


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How is lag measured?", AskedText("How is lag measured?")),
        ('the error "no such host" of curl', AskedText("the error no such host of curl", ("no such host",))),
        ("locks NOT redis", AskedText("locks", (), ("redis",))),
        ('locks NOT "of Redis" or -"a file"', AskedText("locks or", (), ("of Redis", "a file"))),
        ("find -name x, tar -x, not this, KNOT y, CANNOT", AskedText("find -name x, tar -x, not this, KNOT y, CANNOT")),
        ("NOT redis", AskedText("", (), ("redis",))),
        ('an open " quote and NOT', AskedText('an open " quote and NOT')),
        ('empty "" ones', AskedText('empty "" ones')),
        (" ".join(['"a"'] * 9), AskedText(" ".join(['"a"'] * 9))),
    ],
)
def test_quotes_and_not(question: str, expected: AskedText):
    """In capitals, before a word or a quotation; options of programs and other words that end so exclude nothing."""
    assert asked_text(question) == expected
