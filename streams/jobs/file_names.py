"""The names of documents and files when a user saves them (RFC 6266).

Invariant: a name is a single path component for any caller and any title of a deck, so saving under it stays
in the folder. If no name was given, it is derived from the digest and the media type.
"""

from __future__ import annotations

import re
from mimetypes import MimeTypes
from urllib.parse import quote, unquote

from highwater.schemas.errors import InvalidEventError

# The limit of common file systems for one path component.
NAME_BYTES_MAX = 255
# This much of a title is kept, with room for the extension in any script.
_TITLE_CHARACTERS_MAX = 60
_DIGEST_CHARACTERS = 12
_UNKNOWN = ".bin"
# Separators and characters that some file systems refuse: control characters, surrogates, and marks that reverse the text.
_NOT_IN_NAMES = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]')
_PLAIN = re.compile(r"[A-Za-z0-9 !#$&'()+,.;=@^_`{}~\[\]-]")
_WHOLE_NAME = re.compile(r"filename\*\s*=\s*UTF-8''([^\s;]+)", re.IGNORECASE)
_PLAIN_NAME = re.compile(r'filename\s*=\s*"([^"]*)"', re.IGNORECASE)
# File formats of a deck.
MEDIA_TYPES = {
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "pdf": "application/pdf",
}
# The library's own table, not the machine's, which can differ.
_TYPES = MimeTypes(filenames=())
_TYPES.add_type(MEDIA_TYPES["pptx"], ".pptx")
_TYPES.add_type("application/vnd.openxmlformats-officedocument.wordprocessingml.document", ".docx")
_TYPES.add_type("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", ".xlsx")
_TYPES.add_type("text/markdown", ".md")


def check_file_name(field: str, name: str) -> None:
    """Check that a file's name is one path component that every common file system accepts.

    Raises:
        InvalidEventError: it is not; names the field.
    """
    if _NOT_IN_NAMES.search(name) or not name.strip(" .") or name != name.strip():
        raise InvalidEventError("bad_file_name", f"{field} is not the name of a file", field=field)
    if len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidEventError("too_long", f"{field} is longer than {NAME_BYTES_MAX} bytes", field=field)


def media_type_of(name: str) -> str | None:
    """Return the media type of a file's extension; None if it is unknown."""
    return _TYPES.guess_type(name)[0]


def name_of_title(title: str, extension: str) -> str:
    """Return the name of a file with a title; `extension` without the dot."""
    kept = " ".join(_NOT_IN_NAMES.sub(" ", title).split())
    if len(kept) > _TITLE_CHARACTERS_MAX:
        # Up to a word; a script without spaces is cut where it is.
        whole = kept[: _TITLE_CHARACTERS_MAX + 1].rpartition(" ")[0]
        kept = whole or kept[:_TITLE_CHARACTERS_MAX]
    kept = kept.strip(" .,;:")
    return f"{kept or 'presentation'}.{extension}"


def name_of_digest(sha256: str, media_type: str) -> str:
    """Return the name of a file without a given name."""
    known = _TYPES.guess_extension(media_type.partition(";")[0].strip().lower())
    return f"{sha256[:_DIGEST_CHARACTERS]}{known or _UNKNOWN}"


def name_in(header: str) -> str | None:
    """Return the name in such a header, preferring the extended form (RFC 6266, section 4.3); None if there is none."""
    if (whole := _WHOLE_NAME.search(header)) is not None:
        return unquote(whole[1], errors="replace")
    return None if (plain := _PLAIN_NAME.search(header)) is None else plain[1]


def content_disposition(name: str) -> str:
    """Return the header for saving a document under a name: in ASCII for old clients, and in full if ASCII loses something."""
    plain = "".join(one if _PLAIN.fullmatch(one) else "_" for one in name)
    header = f'attachment; filename="{plain}"'
    return header if plain == name else f"{header}; filename*=UTF-8''{quote(name, safe='')}"
