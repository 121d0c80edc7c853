"""Chooses the coding of a body by the client's `Accept-Encoding` (RFC 9110, section 12.5.3).

Invariants. No coding is sent that the client did not name, directly or by `*`. A body without coding is always
acceptable unless `identity;q=0` refuses it, or `*;q=0` without an element for identity. Among the acceptable codings
the client's weight decides, then our order.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

import brotli

Encoding: TypeAlias = Literal["br", "gzip", "identity"]

# The smallest first; documents are stored in brotli.
ALL: tuple[Encoding, ...] = ("br", "gzip", "identity")
# RFC 9110, section 8.4.1.3: another name of gzip.
_ALIASES = {"x-gzip": "gzip"}
# A coding, and a weight of at most three decimals (section 12.4.2); an element of another form is ignored.
_ELEMENT = re.compile(r"([!#$%&'*+.^_`|~0-9a-z-]+)(?:[ \t]*;[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?", re.ASCII)
# Pages are encoded for each answer: brotli's level 5 takes a millisecond for 100 kB.
_BROTLI_QUALITY, _GZIP_LEVEL = 5, 5
# Browsers send a few short fields, which are cached; a long one is parsed each time.
_REMEMBERED, _REMEMBERED_CHARACTERS_MAX = 256, 128


def negotiate(accept_encoding: str | None, available: Sequence[Encoding] = ALL) -> Encoding | None:
    """Return the coding of the answer; None if the client accepts none of them (406).

    Args:
        accept_encoding: the field, several joined by commas; None = not sent, and then the body is not encoded.
        available: the available codings, the preferred first.
    """
    if accept_encoding is None:
        return "identity"
    if len(accept_encoding) > _REMEMBERED_CHARACTERS_MAX:
        return _negotiate(accept_encoding, tuple(available))
    return _negotiate_remembered(accept_encoding, tuple(available))


def encoded(content: bytes, encoding: Encoding) -> bytes:
    """Encode a body that is generated for one answer."""
    if encoding == "br":
        packed: bytes = brotli.compress(content, quality=_BROTLI_QUALITY)
        return packed
    return gzip.compress(content, _GZIP_LEVEL, mtime=0) if encoding == "gzip" else content


def _negotiate(accept_encoding: str, available: tuple[Encoding, ...]) -> Encoding | None:
    weights = _weights(accept_encoding)
    best: Encoding | None = None
    best_weight = 0.0
    for coding in available:
        weight = weights.get(coding, weights.get("*", 0.0))
        if weight > best_weight:
            best, best_weight = coding, weight
    if best is None and "identity" in available and "identity" not in weights and "*" not in weights:
        return "identity"
    return best


_negotiate_remembered = lru_cache(_REMEMBERED)(_negotiate)


def _weights(accept_encoding: str) -> dict[str, float]:
    """Return the weight of each coding; the last one counts if a coding is named twice."""
    weights: dict[str, float] = {}
    for element in accept_encoding.lower().split(","):
        found = _ELEMENT.fullmatch(element.strip(" \t"))
        if found is not None:
            weights[_ALIASES.get(found[1], found[1])] = 1.0 if found[2] is None else float(found[2])
    return weights
