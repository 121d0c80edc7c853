"""Names of files: one part of a path, and a header that says it in ASCII and in full."""

from __future__ import annotations

import pytest

from highwater.schemas.errors import InvalidEventError
from highwater.streams.jobs.file_names import (
    check_file_name,
    content_disposition,
    media_type_of,
    name_in,
    name_of_digest,
    name_of_title,
)

PPTX = "application/vnd.openxmlformats-officedocument.presentationml.presentation"


@pytest.mark.parametrize("name", ["report.pdf", "Отчёт 2026.docx", "a", ".profile", "it's (1).txt", "x" * 255])
def test_names_that_are_taken(name: str):
    """Any name that a file system accepts as one path component."""
    check_file_name("filename", name)


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a/b", "..\\x", "a\nb", 'a"b', "x" * 256, "é" * 128, "a\u202egpj.exe", " a", "\ud800"]
)
def test_names_that_are_refused(name: str):
    """Nothing that leads out of a folder, ends a header, or reads as another name."""
    with pytest.raises(InvalidEventError) as caught:
        check_file_name("filename", name)
    assert caught.value.field == "filename"


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("What is KRaft?", "What is KRaft.pptx"),
        ("../../etc/passwd", "etc passwd.pptx"),
        ("  ", "presentation.pptx"),
        ("Ж" * 200, "Ж" * 60 + ".pptx"),
    ],
)
def test_a_title_becomes_a_name(title: str, expected: str):
    """And every such name is one that is taken."""
    assert name_of_title(title, "pptx") == expected
    check_file_name("filename", expected)


def test_without_a_name_it_follows_from_the_digest():
    """With the extension of its media type, on every machine the same."""
    digest = "0123456789abcdef" * 4
    types = ("application/pdf", PPTX, "text/plain; charset=utf-8", "application/x-unheard-of")
    assert [name_of_digest(digest, one) for one in types] == [
        f"0123456789ab{extension}" for extension in (".pdf", ".pptx", ".txt", ".bin")
    ]
    assert media_type_of("a.PPTX") == PPTX
    assert media_type_of("a") is None


@pytest.mark.parametrize("name", ["a b.pdf", "Отчёт 100%.docx", "it's; (1).txt"])
def test_a_name_comes_back_from_its_header(name: str):
    """Whole, although the ASCII one comes first."""
    assert name_in(content_disposition(name)) == name
    assert name_in("attachment") is None


def test_the_header_says_the_name():
    """RFC 6266: in ASCII for all, and in UTF-8 where that is not the whole name."""
    assert content_disposition("a b.pdf") == 'attachment; filename="a b.pdf"'
    assert content_disposition('Ж 100%".pdf') == (
        "attachment; filename=\"_ 100__.pdf\"; filename*=UTF-8''%D0%96%20100%25%22.pdf"
    )
