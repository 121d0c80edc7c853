"""Shows a user's feed by theme and cluster; pure functions of the API's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from highwater.api.readers.frame import card, moment, note, text, web_link
from highwater.streams.wording import counted

Document = Mapping[str, Any]

# Headings of clusters that have no theme: beside themes, and alone.
OTHER, ALL = "Other", "Clusters"


def feed_address(user: str | None, *, path: str = "/read/feed", **more: str) -> str:
    """Return the address of a feed or of a page below it; `user` None: the reader's own."""
    query = urlencode({**({} if user is None else {"user": user}), **more})
    return f"{path}?{query}" if query else path


def by_theme(items: Iterable[Document]) -> dict[str, list[Document]]:
    """Return clusters by the theme that their version gave them; the theme with the most insights comes first.

    Clusters without a theme are under "", which is last: an older release stored the feed or the version.
    """
    found: dict[str, list[Document]] = {}
    for item in items:
        found.setdefault(item.get("theme", ""), []).append(item)

    def place(theme: str) -> tuple[bool, int, str]:
        return theme == "", -sum(item["size"] for item in found[theme]), theme

    return {theme: found[theme] for theme in sorted(found, key=place)}


def feed(document: Document, *, since: int | None = None, deck: str | None = None) -> str:
    """Return all clusters; `since`: the version of the last visit; `deck`: the address for making a deck of a cluster,
    None: none.

    The browser marks new parts again (`mark` in `read.js`), since every visit gets the same part.
    """
    items = document["items"]
    if not items:
        return note("The feed is empty. It fills when the channels you are subscribed to have enough insights.")
    groups = by_theme(items)
    themes = len(groups.keys() - {""})
    unnamed = OTHER if themes else ALL
    listed = "".join(
        f"<section><h2>{text(theme or unnamed)}</h2>"
        f"{''.join(cluster(item, since=since, deck=deck) for item in group)}</section>"
        for theme, group in groups.items()
    )
    count = 0 if since is None else sum(1 for item in items if _new_count(item, since))
    among = f" in {counted(themes, 'theme')}" if themes else ""
    about = f"{counted(len(items), 'cluster')}{among} · Updated {moment(document['built_at'])}"
    return f'<p class="note">{about} <b class="new" data-news>{news(count)}</b></p>{listed}'


def news(count: int) -> str:
    """Return how many clusters have new insights."""
    return f"{count} with news since your last visit" if count else ""


def mark(item: Document, since: int | None) -> str:
    """Return what is new in a cluster since a version; empty: nothing. Insights that only moved make it changed, not new."""
    if since is None or item["changed_version"] <= since:
        return ""
    count = _new_count(item, since)
    if count == item["size"]:
        return "New"
    return f"{count} new" if count else "Changed"


def _new_count(item: Document, since: int) -> int:
    return sum(count for version, count in item.get("arrived", ()) if version > since)


def cluster(item: Document, *, since: int | None, deck: str | None) -> str:
    """Return one cluster, its insights folded."""
    name, arrived = item["cluster_id"], " ".join(f"{version}:{count}" for version, count in item.get("arrived", ()))
    facts = [counted(item["size"], "insight"), *(text(keyword) for keyword in item["keywords"][:6])]
    action = ""
    if deck is not None:
        joined = "&" if "?" in deck else "?"
        address = f"{deck}{joined}{urlencode({'cluster': name})}"
        action = (
            f'<p><a href="{text(address)}">Make a deck<span class="hidden"> of {text(item["title"])}</span></a></p>'
        )
    return (
        f'<article class="card" data-size="{item["size"]}" data-changed="{item["changed_version"]}" '
        f'data-arrived="{arrived}"><h3>{text(item["title"])} <span class="new" data-new>{mark(item, since)}</span></h3>'
        f'<p class="said">{text(item["summary"])}</p><p><small>{" · ".join(facts)}</small></p>'
        f'<details id="c-{text(name)}"><summary>Latest insights<span class="hidden"> of {text(item["title"])}</span></summary>'
        f'<ul class="plain">{insights(item["insights"])}</ul></details>{action}</article>'
    )


def insights(found: Iterable[Document]) -> str:
    """Return insights as items of a list."""
    return "".join(
        f'<li><span class="said">{text(one["text"] or one["insight_id"])}</span><br>'
        f"<small>{text(one['channel_id'])} · {moment(one['ts'])}{_link(one.get('url'))}</small></li>"
        for one in found
    )


def _link(url: str | None) -> str:
    """Return a link to the origin of an insight."""
    link = web_link(url, "Source", "noopener noreferrer nofollow")
    return f" · {link}" if link else ""


def who(path: str = "/read/feed") -> str:
    """Return the form that asks for the user of the feed."""
    return card(
        f'<form action="{path}"><label>User<input name="user" required autocomplete="username"></label>'
        "<button>Show the feed</button></form>"
    )


def ask_form(user: str | None, once: str, question: str = "", *, has_organization: bool) -> str:
    """Return the form of a question; `once` makes it one question however often it is sent, `question` is the refused text."""
    organization = "" if has_organization else '<label>Organization (optional)<input name="organization"></label>'
    return (
        '<section class="card"><h2>Ask a question</h2><form method="post" action="/read/feed/questions">'
        f'{_hidden(user, once)}<label class="grow">Your question<textarea name="query" required maxlength="4000">{text(question)}'
        f"</textarea></label>{organization}<button>Ask</button></form></section>"
    )


def deck_form(item: Document, user: str | None, once: str, *, has_organization: bool) -> str:
    """Return the form for making a deck of a cluster."""
    organization = "" if has_organization else '<label>Organization<input name="organization" required></label>'
    return card(
        f'<form method="post" action="/read/feed/decks">{_hidden(user, once)}'
        f'<input type="hidden" name="cluster" value="{text(item["cluster_id"])}">'
        f'<label class="grow">What the deck is about<textarea name="query" required maxlength="4000">{text(item["title"])}'
        '</textarea></label><label>Slides<input type="number" name="slides" min="1" max="50" value="5" required></label>'
        f"{organization}<button>Make the deck</button></form>"
    )


def _hidden(user: str | None, once: str) -> str:
    named = "" if user is None else f'<input type="hidden" name="user" value="{text(user)}">'
    return f'{named}<input type="hidden" name="once" value="{text(once)}">'


def source_text(item: Document) -> str:
    """Return a cluster as the source document of a deck, in Markdown."""
    lines = [f"# {item['title']}", "", item["summary"], "", "## Insights", ""]
    for one in item["insights"]:
        lines += [f"{one['channel_id']}, {one['ts']}: {one['text'] or one['insight_id']}", ""]
    return "\n".join(lines)
