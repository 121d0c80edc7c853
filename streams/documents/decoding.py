"""The text of a document that is text: its bytes decoded as browsers do, and other formats refused by name.

Invariant: bytes become the letters that were meant, or one error names the document's format or encoding. Nothing is replaced by
a sign for an unknown letter. Reading takes linear time for any bytes.
"""

from __future__ import annotations

import codecs
import re

import webencodings

from highwater.schemas.errors import HighwaterError
from highwater.streams.documents.printed import LIGATURES

# Characters that no store accepts (NUL, surrogates) or no reader sees; tabs and line ends stay.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_LINE_END = re.compile("\r\n?|[\x85\u2028\u2029]")

_CHARSET = re.compile(
    rb"""<meta[^>]{0,200}?charset\s{0,8}=\s{0,8}["']?\s{0,8}([A-Za-z0-9_.:-]{1,40})"""
    rb"""|\A<\?xml[^>]{0,200}?encoding\s{0,8}=\s{0,8}["']([A-Za-z0-9_.:-]{1,40})""",
    re.IGNORECASE,
)
# A charset is declared at the beginning of a document, if at all (HTML: within 1,024 bytes).
_CHARSET_BYTES = 1_024


class UnreadableDocumentError(HighwaterError):
    """A document cannot be read. Check that it is what its media type says, and that it holds text."""


def clean(text: str) -> str:
    """Return a text with one kind of line end, only displayable characters, and no ligatures."""
    return _UNPRINTABLE.sub(" ", _LINE_END.sub("\n", text)).translate(LIGATURES)


def decoded(raw: bytes, charset: str | None = None, *, is_cut: bool = False) -> str:
    """Decode the text of a document, by its byte order mark, else by its declared charset, else as UTF-8.

    `charset`: a label of the Encoding Standard (https://encoding.spec.whatwg.org), which gives each label the meaning that
    browsers do: `iso-8859-1` is windows-1252, `gb2312` is gb18030. `is_cut`: its end is missing, which may be within a
    letter.

    Raises:
        UnreadableDocumentError: it is another format, or not text in that encoding.
    """
    other = _other_format(raw)
    if other is not None:
        raise UnreadableDocumentError(other)
    name = next((name for mark, name in _MARKS if raw.startswith(mark)), None)
    try:
        codec = codecs.lookup(name) if name else _codec_of(charset or "utf-8")
        text = codec.incrementaldecoder(_errors_of(codec.name)).decode(raw, final=not is_cut)
    except UnicodeError as error:
        told = (name or charset or "utf-8")[:40]
        hint = "" if name or charset else ": save it as UTF-8, or name its charset (text/plain; charset=windows-1252)"
        raise UnreadableDocumentError(f"it is not text in {told}{hint}") from error
    if "\0" in text:
        raise UnreadableDocumentError("it is not text: it holds NUL")
    return clean(text)


_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def _codec_of(label: str) -> codecs.CodecInfo:
    """Return the decoder of a label of the Encoding Standard.

    Raises:
        UnreadableDocumentError: the standard has no such label, or forbids the encoding.
    """
    known = webencodings.lookup(label)
    if known is None or known.name == "replacement":
        raise UnreadableDocumentError(f"its charset {label[:40]!r} is not one that browsers read")
    # The decoder of gbk is that of gb18030 (Encoding Standard 10.1.1); Python's knows fewer letters.
    return codecs.lookup("gb18030") if known.name == "gbk" else known.codec_info


def _errors_of(codec: str) -> str:
    """Return how a codec treats bytes without a letter: the standard gives those of windows-125x to control characters."""
    return "highwater-control" if codec.startswith(("cp125", "cp874")) else "strict"


def _control(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError) or error.object[error.start] > _CONTROLS_LAST:
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


_CONTROLS_LAST = 0x9F
codecs.register_error("highwater-control", _control)

# How formats begin that are not text and are not read, and what to save them as.
_OTHER_FORMATS = (
    (b"{\\rtf", "an RTF document: save it as PDF or text"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office file (.doc, .xls, .ppt, .msg): save it as PDF, PPTX or CSV"),
    (b"%!PS", "PostScript: save it as PDF"),
    (b"\x89PNG\r\n", "a picture (PNG)"),
    (b"\xff\xd8\xff", "a picture (JPEG)"),
    (b"GIF8", "a picture (GIF)"),
    (b"\x1f\x8b", "a gzip archive: unpack it"),
    (b"7z\xbc\xaf", "a 7z archive: unpack it"),
)
_HEADER_BYTES = 8_192
_OFFICE_XML = re.compile(rb"<\?mso-application\b|<office:document\b")
# The header of a mail (RFC 5322 2.2), and what shows that its body is encoded or in parts (RFC 2045).
_MAIL_HEADER = re.compile(rb"(?:From [^\n]*\n)?(?:[A-Za-z][A-Za-z0-9-]{0,70}:[^\n]*\n(?:[ \t][^\n]*\n)*){2,}(?=\n)")
_MAIL_FIELD = re.compile(rb"^(?:from|received|message-id|return-path|subject):", re.IGNORECASE | re.MULTILINE)
_MAIL_ENCODED = re.compile(
    rb"^(?:content-transfer-encoding:\s*(?:base64|quoted-printable)|content-type:\s*(?:multipart/|text/html)"
    rb"|subject:[^\n]*=\?[\w-]{1,40}\?[bq]\?)",
    re.IGNORECASE | re.MULTILINE,
)


def _other_format(raw: bytes) -> str | None:
    """Return the format of a document that is only named as text, and what to do; None for text."""
    begin = raw[:_HEADER_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()
    named = next((name for mark, name in _OTHER_FORMATS if begin.startswith(mark)), None)
    if named is None and _OFFICE_XML.search(begin):
        named = "an Office document in XML: save it as PDF or CSV"
    if named is None and (header := _MAIL_HEADER.match(begin.replace(b"\r\n", b"\n"))) is not None:
        named = MAIL if _MAIL_FIELD.search(header[0]) and _MAIL_ENCODED.search(header[0]) else None
    return None if named is None else f"it is {named}"


MAIL = "a mail: save its text and its attachments as files"


def html_charset(raw: bytes) -> str | None:
    """Return the charset that an HTML document declares, as the HTML Standard reads it (13.2.3.2): a document whose
    declaration can be read is not in UTF-16.
    """
    found = _CHARSET.search(raw[:_CHARSET_BYTES])
    if found is None:
        return None
    label = (found[1] or found[2]).decode("ascii")
    known = webencodings.lookup(label)
    return label if known is None else _NOT_IN_A_DOCUMENT.get(known.name, label)


_NOT_IN_A_DOCUMENT = {"utf-16le": "utf-8", "utf-16be": "utf-8", "x-user-defined": "windows-1252"}
