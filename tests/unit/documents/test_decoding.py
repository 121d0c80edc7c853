"""The bytes of a text: decoded as browsers do, or refused by the name of the format."""

from __future__ import annotations

import io
import zipfile

import pytest

from highwater.connectors.documents.formats import blocks_of
from highwater.streams.documents.decoding import UnreadableDocumentError, decoded

HARBOUR = "The harbour crane stands at berth 7."


@pytest.mark.parametrize(
    ("label", "text", "codec"),
    [
        ("gb2312", "\u6731\u9555\u57fa\u7684\u62a5\u544a", "gbk"),
        ("gbk", "\U00020087", "gb18030"),
        ("shift_jis", "\u2460\u756a\u7dda\u306e\u99c5", "cp932"),
        (" X-SJIS ", "\u6771\u4eac", "cp932"),
        ("ks_c_5601-1987", "\ub620\ubc29\uac01\ud558", "cp949"),
        ("iso-8859-1", "\u201eM\u00fcller\u201c 5 \u20ac", "cp1252"),
        ("us-ascii", "caf\u00e9", "cp1252"),
        ("iso-8859-8-i", "\u05e9\u05dc\u05d5\u05dd", "iso8859-8"),
        ("unicode-1-1-utf-8", "caf\u00e9", "utf-8"),
        ("utf-16", "caf\u00e9", "utf-16-le"),
    ],
)
def test_a_charset_means_what_browsers_read(label: str, text: str, codec: str):
    """Labels have the meaning that the Encoding Standard gives them."""
    assert decoded(text.encode(codec), label) == text


def test_bytes_without_a_letter_are_refused_or_controls():
    """The standard gives five bytes of windows-1252 to control characters, which no reader sees; of others none is guessed."""
    assert decoded(b"a\x81b", "iso-8859-1") == "a b"
    for raw, label in ((b"\xd2", "windows-1253"), (b"\x81", "shift_jis"), (b"a", "utf-7"), (b"a", "hz-gb-2312")):
        with pytest.raises(UnreadableDocumentError):
            decoded(raw, label)


@pytest.mark.parametrize(
    ("media_type", "raw"),
    [
        ("text/csv; charset=windows-1252", "name,city\nM\u00fcller,K\u00f6ln\n".encode("cp1252")),
        ('text/plain;charset="ISO-8859-15"', "M\u00fcller".encode("iso8859-15")),
        ("text/html; charset=utf-8", "<meta charset=koi8-r><p>M\u00fcller".encode()),
        ("text/html", b"<meta charset=utf-16><p>" + "M\u00fcller".encode()),
        ("text/html", b"<meta charset=x-user-defined><p>" + "M\u00fcller".encode("cp1252")),
        ("application/xhtml+xml", b'<?xml version="1.0" encoding="iso-8859-1"?><p>' + "M\u00fcller".encode("cp1252")),
    ],
)
def test_a_declared_charset_is_used(media_type: str, raw: bytes):
    """That of the media type before that of the document; a document that declares UTF-16 in ASCII is not in it."""
    assert "M\u00fcller" in " ".join(block.text for block in blocks_of(raw, media_type))


MAIL = b"Return-Path: <a@b>\r\nFrom: A <a@b>\r\nSubject: Crane\r\nContent-Transfer-Encoding: base64\r\n\r\nVGhl\r\n"


@pytest.mark.parametrize(
    ("raw", "media_type", "reason"),
    [
        (b"{\\rtf1\\ansi The \\b crane\\b0.\\par}", "text/plain", "an RTF document"),
        (b"\r\n{\\rtf1 x}", "application/rtf", "an RTF document"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 64, "text/csv", "an old Office file"),
        (MAIL, "text/plain", "a mail"),
        (b"From: a\nSubject: b\n\nReadable.\n", "message/rfc822", "a mail"),
        (b"From: <Saved by a browser>\nContent-Type: multipart/related;\n boundary=x\n\n--x\n", "text/html", "a mail"),
        (b"\x89PNG\r\n\x1a\n", "text/plain", r"a picture \(PNG\)"),
        (b"\x1f\x8b\x08\0", "text/plain", "a gzip archive"),
        (b"%!PS-Adobe-3.0\n", "text/plain", "PostScript"),
        (
            b'<?xml version="1.0"?>\n<?mso-application progid="Excel.Sheet"?><Workbook/>',
            "text/plain",
            "an Office document in XML",
        ),
        (HARBOUR.encode("utf-16-le"), "text/plain", "it holds NUL"),
        ("M\u00fcller".encode("cp1252"), "text/csv", "not text in utf-8: save it as UTF-8, or name its charset"),
    ],
)
def test_what_is_not_text_is_named(raw: bytes, media_type: str, reason: str):
    """Rather than stored with its markup."""
    with pytest.raises(UnreadableDocumentError, match=reason):
        blocks_of(raw, media_type)


@pytest.mark.parametrize(
    "text",
    [
        "From: Mara\nSubject: Crane\n\nIt is plain text.",
        "From 1f2e Mon Sep 17 00:00:00 2001\nFrom: M <m@x>\nSubject: [PATCH] Crane\nContent-Transfer-Encoding: 8bit\n\n--- a",
        "HTTP/1.1 200 OK\nContent-Type: text/html\nServer: x\n\nAn answer.",
        "Name: Mara\nContent-Type: text/html\n\nAbout fields.",
        "Rich text begins with {\\rtf1.",
    ],
)
def test_a_text_that_shows_a_format_is_text(text: str):
    """Fields of a mail without an encoded body, fields of something else, a mark within a sentence."""
    assert blocks_of(text.encode(), "text/plain")


@pytest.mark.parametrize("name", ["application/vnd.oasis.opendocument.text", "application/epub+zip"])
def test_an_archive_names_its_format(name: str):
    """OpenDocument files and books begin with it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("mimetype", name)
    with pytest.raises(UnreadableDocumentError, match=f"it is {name.replace('+', '.')}: save it as PDF"):
        blocks_of(file.getvalue(), "text/plain")
