"""A digest for feed readers: Atom (RFC 4287) and JSON Feed 1.1, an entry for each cluster with news.

Invariant: an entry's id names the user, the cluster and the version in which its last insight arrived. So a feed reader
that polls shows an entry once, and another one when the cluster has more news.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import urlencode
from uuid import NAMESPACE_URL, uuid5
from xml.etree import ElementTree as ET

import orjson

from highwater.streams.feeds.digest_text import about, basis, headline, lines, messages_of, not_shown, reached, title
from highwater.streams.messages import Messages

ATOM, JSON_FEED = "application/atom+xml", "application/feed+json"
_ATOM_NAMESPACE = "http://www.w3.org/2005/Atom"
_JSON_FEED_VERSION = "https://jsonfeed.org/version/1.1"

Document = Mapping[str, Any]


def atom(digest: Document, base: str, own: str) -> bytes:
    """Return a digest as an Atom feed; `base` is the address of the installation, `own` that of the feed."""
    messages = messages_of(digest)
    root = ET.Element("feed", {"xmlns": _ATOM_NAMESPACE, "xml:lang": digest["language"]})
    _add(root, "id", _id(digest["user_id"]))
    _add(root, "title", _title(digest, messages))
    _add(root, "subtitle", _subtitle(digest, messages))
    _add(root, "updated", digest["updated_at"] or "1970-01-01T00:00:00Z")
    _add(_add(root, "author"), "name", "Highwater")
    _add(root, "link", rel="self", type=ATOM, href=own)
    _add(root, "link", rel="alternate", type="text/html", href=_page(digest, base))
    for section in digest["sections"]:
        entry = _add(root, "entry")
        _add(entry, "id", _entry_id(digest, section))
        _add(entry, "title", title(section, messages))
        _add(entry, "updated", section["last_at"])
        _add(entry, "link", rel="alternate", type="text/html", href=_page(digest, base))
        if section["theme"]:
            _add(entry, "category", term=section["theme"])
        _add(entry, "content", _html(section, messages), type="html")
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def json_feed(digest: Document, base: str, own: str) -> bytes:
    """Return a digest as a JSON Feed; `_highwater` says how far it goes."""
    messages = messages_of(digest)
    items = [
        {
            "id": _entry_id(digest, section),
            "url": _page(digest, base),
            "title": title(section, messages),
            "content_html": _html(section, messages),
            "date_published": section["last_at"],
            "tags": [section["theme"]] if section["theme"] else [],
        }
        for section in digest["sections"]
    ]
    document = {
        "version": _JSON_FEED_VERSION,
        "title": _title(digest, messages),
        "home_page_url": _page(digest, base),
        "feed_url": own,
        "description": _subtitle(digest, messages),
        "language": digest["language"],
        "items": items,
        "_highwater": {name: digest[name] for name in ("since", "cluster_version", "position")},
    }
    return orjson.dumps(document)


def _title(digest: Document, messages: Messages) -> str:
    return messages.gettext("Feed of {user}", user=digest["user_id"])


def _subtitle(digest: Document, messages: Messages) -> str:
    parts = (
        headline(digest, messages),
        basis(digest, messages),
        not_shown(digest, messages),
        reached(digest, messages),
    )
    return " \u00b7 ".join(filter(None, parts))


def _html(section: Document, messages: Messages) -> str:
    listed = "".join(f"<li>{escape(line)}</li>" for line in lines(section, messages))
    return f"<p>{escape(about(section, messages))}</p>" + (f"<ul>{listed}</ul>" if listed else "")


def _page(digest: Document, base: str) -> str:
    return f"{base}/read/feed?{urlencode({'user': digest['user_id']}, errors='replace')}"


def _id(*names: object) -> str:
    """Return an id made of names; it reveals none of them."""
    return uuid5(NAMESPACE_URL, orjson.dumps(["digest", *map(str, names)]).decode()).urn


def _entry_id(digest: Document, section: Document) -> str:
    return _id(digest["user_id"], section["cluster_id"] or "", section["arrived_version"])


def _add(parent: ET.Element, name: str, text: str | None = None, **attributes: str) -> ET.Element:
    """Add an element; characters that XML has no form for are left out."""
    element = ET.SubElement(parent, name, {key: _xml(value) for key, value in attributes.items()})
    element.text = None if text is None else _xml(text)
    return element


def _xml(text: str) -> str:
    return "".join(one for one in text if one >= " " and not "\ud800" <= one <= "\udfff" and one not in "\ufffe\uffff")
