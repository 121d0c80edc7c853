"""Security headers: no answer lets a browser guess types, be framed, send referrers, or run code that is not ours.

Invariants. Every answer has these fields, errors and files too. An answer that is not a page may load nothing. A page
names its own scripts by a nonce that is used once.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import TypeAlias

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]

CONTENT_SECURITY_POLICY = b"content-security-policy"
_NO_PAGE = b"default-src 'none'; frame-ancestors 'none'"
# Half a year, as browsers' preload lists require; without subdomains, which others may own.
_TRANSPORT = (b"strict-transport-security", b"max-age=15768000")

COMMON: Fields = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
PLAIN: Fields = (*COMMON, (CONTENT_SECURITY_POLICY, _NO_PAGE))
ENCRYPTED: Fields = (*PLAIN, _TRANSPORT)
NAMES = frozenset(name for name, _ in ENCRYPTED)


def with_policies(given: list[tuple[bytes, bytes]], fields: Fields) -> list[tuple[bytes, bytes]]:
    """Add the security headers that an answer does not have itself."""
    own = {name for name, _ in given if name in NAMES}
    if not own:
        return [*given, *fields]
    return [*given, *(field for field in fields if field[0] not in own)]


def page_policy(nonce: str) -> bytes:
    """Return the policy of a page of the dashboard.

    Its library compiles the templates of tables in the browser and runs what the server sends over the page's own
    socket, both by `eval`, hence `unsafe-eval`; it also sets styles on elements, hence `unsafe-inline` of styles. A
    script in the page runs by its nonce only, and everything is of this origin.
    """
    return (
        f"default-src 'self'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; font-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ).encode()


def own_files_policy() -> str:
    """Return the policy of a page with our own script and style files: nothing inline runs, and it connects to this
    origin only.
    """
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    )


def style_policy(style: str) -> str:
    """Return the policy of a page without scripts: one inline style, and forms to its own origin."""
    digest = b64encode(sha256(style.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
