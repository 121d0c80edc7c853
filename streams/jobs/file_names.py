"""How documents and files are called when somebody saves them (RFC 6266).

Invariant: a name is one part of a path and nothing else, whatever the caller or a deck's title says; so saving under it stays
in the folder. Where nobody gave a name it follows from the digest and the media type.
"""

from __future__ import annotations

import re
from mimetypes import MimeTypes
from urllib.parse import quote, unquote

from highwater.schemas.errors import InvalidEventError

# What common file systems hold in one part of a path.
NAME_BYTES_MAX = 255
# Of a title so much is kept, with room for the extension in any script.
_TITLE_CHARACTERS_MAX = 60
_DIGEST_CHARACTERS = 12
_UNKNOWN = ".bin"
# Separators and what some file systems refuse, control characters, half characters, and marks that turn the text around.
_NOT_IN_NAMES = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]')
_PLAIN = re.compile(r"[A-Za-z0-9 !#$&'()+,.;=@^_`{}~\[\]-]")
_WHOLE_NAME = re.compile(r"filename\*\s*=\s*UTF-8''([^\s;]+)", re.IGNORECASE)
_PLAIN_NAME = re.compile(r'filename\s*=\s*"([^"]*)"', re.IGNORECASE)
# Of the files that a deck is written as, by format.
MEDIA_TYPES = {
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "pdf": "application/pdf",
}
# The library's own table, not the one of the machine, which may be any.
_TYPES = MimeTypes(filenames=())
_TYPES.add_type(MEDIA_TYPES["pptx"], ".pptx")
_TYPES.add_type("application/vnd.openxmlformats-officedocument.wordprocessingml.document", ".docx")
_TYPES.add_type("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", ".xlsx")
_TYPES.add_type("text/markdown", ".md")


def check_file_name(field: str, name: str) -> None:
    """A file's name is one part of a path that every common file system takes.

    Raises:
        InvalidEventError: it is not; names the field.
    """
    if _NOT_IN_NAMES.search(name) or not name.strip(" .") or name != name.strip():
        raise InvalidEventError("bad_file_name", f"{field} is not the name of a file", field=field)
    if len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidEventError("too_long", f"{field} is longer than {NAME_BYTES_MAX} bytes", field=field)


def media_type_of(name: str) -> str | None:
    """The media type that a file's extension stands for; None where it is unknown."""
    return _TYPES.guess_type(name)[0]


def name_of_title(title: str, extension: str) -> str:
    """The name of a file with a title; `extension` without the dot."""
    kept = " ".join(_NOT_IN_NAMES.sub(" ", title).split())[:_TITLE_CHARACTERS_MAX].strip(" .")
    return f"{kept or 'presentation'}.{extension}"


def name_of_digest(sha256: str, media_type: str) -> str:
    """The name of a file that nobody gave one."""
    known = _TYPES.guess_extension(media_type.partition(";")[0].strip().lower())
    return f"{sha256[:_DIGEST_CHARACTERS]}{known or _UNKNOWN}"


def name_in(header: str) -> str | None:
    """The name that such a header says; the whole one is preferred (RFC 6266, section 4.3). None where there is none."""
    if (whole := _WHOLE_NAME.search(header)) is not None:
        return unquote(whole[1], errors="replace")
    return None if (plain := _PLAIN_NAME.search(header)) is None else plain[1]


def content_disposition(name: str) -> str:
    """The header that has a document saved under a name: in ASCII for old clients, and whole where that is not all of it."""
    plain = "".join(one if _PLAIN.fullmatch(one) else "_" for one in name)
    header = f'attachment; filename="{plain}"'
    return header if plain == name else f"{header}; filename*=UTF-8''{quote(name, safe='')}"
