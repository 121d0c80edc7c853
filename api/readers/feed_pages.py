"""Shows a user's feed by theme and cluster; pure functions of the API's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from highwater.api.readers.frame import card, moment, note, segment, text, web_link
from highwater.streams.feeds import digest_text
from highwater.streams.feeds.label_words import is_other
from highwater.streams.messages import Messages, gettext_noop

Document = Mapping[str, Any]


class Subject(NamedTuple):
    """What a deck is made of: its kind and its name in a form, its title, a line about it, and its source in Markdown."""

    kind: str
    name: str
    title: str
    about: str
    source: str


# Headings of clusters that have no theme: beside themes, and alone.
OTHER, ALL = gettext_noop("Other"), gettext_noop("Clusters")
_EMPTY = gettext_noop("The feed is empty. It fills when the channels you are subscribed to have enough insights.")


def feed_address(user: str | None, *, path: str = "/read/feed", **more: str) -> str:
    """Return the address of a feed or of a page below it; `user` None: the reader's own."""
    query = urlencode({**({} if user is None else {"user": user}), **more})
    return f"{path}?{query}" if query else path


def by_theme(items: Iterable[Document]) -> dict[str, list[Document]]:
    """Return clusters by the theme that their version gave them; the theme with the most insights comes first.

    What is left over is last. Clusters without a theme are under "": an older release stored the feed or the version.
    """
    found: dict[str, list[Document]] = {}
    for item in items:
        found.setdefault(item.get("theme", ""), []).append(item)

    def place(theme: str) -> tuple[bool, int, str]:
        return theme == "" or is_other(theme), -sum(item["size"] for item in found[theme]), theme

    return {theme: found[theme] for theme in sorted(found, key=place)}


def feed(document: Document, messages: Messages, *, since: int | None = None, deck: str | None = None) -> str:
    """Return all clusters; `since`: the version of the last visit; `deck`: the address for making a deck of a cluster,
    None: none.

    The browser marks new parts again (`mark` in `read.js`), since every visit gets the same part.
    """
    items = document["items"]
    if not items:
        return note(messages.gettext(_EMPTY))
    groups = by_theme(items)
    themes = len(groups.keys() - {""})
    unnamed = OTHER if themes else ALL
    listed = "".join(
        f"<section><h2>{text(theme or messages.gettext(unnamed))}</h2>"
        f"{''.join(cluster(item, messages, since=since, deck=deck) for item in group)}</section>"
        for theme, group in groups.items()
    )
    count = 0 if since is None else sum(1 for item in items if _new_count(item, since))
    clusters = messages.ngettext("{number} cluster", "{number} clusters", len(items))
    among = f" {messages.ngettext('in {number} theme', 'in {number} themes', themes)}" if themes else ""
    updated = messages.gettext("Updated {time}", time=moment(document["built_at"], messages))
    about = f"{clusters}{among} · {updated}"
    basis = digest_text.basis(document, messages)
    said = note(basis) if basis else ""
    return f'<p class="note">{about} <b class="new" data-news>{news(count, messages)}</b></p>{said}{listed}'


def news(count: int, messages: Messages) -> str:
    """Return how many clusters have new insights."""
    return messages.gettext("{number} with news since your last visit", number=count) if count else ""


def digest(document: Document, messages: Messages, *, deck: str | None = None) -> str:
    """Return what is new since the last visit; `deck` as in `feed`."""
    sections = "".join(_digest_section(section, messages) for section in document["sections"])
    told = (digest_text.not_shown(document, messages), digest_text.reached(document, messages))
    notes = "".join(note(words) for words in told if words)
    action = ""
    if deck is not None and document["sections"]:
        address = _with(deck, digest=document["since"])
        action = f'<p><a href="{text(address)}">{messages.gettext("Make a deck of this")}</a></p>'
    heading = messages.gettext("What is new")
    return f"<section><h2>{heading}</h2>{note(digest_text.headline(document, messages))}{sections}{notes}{action}</section>"


def _digest_section(section: Document, messages: Messages) -> str:
    rows = "".join(
        f'<li><span class="said">{text(one["text"])}</span>{_beside(one, section, messages)}</li>'
        for one in section["examples"]
    )
    more = "".join(f"<li>{text(line)}</li>" for line in digest_text.beside(section, messages))
    return (
        f"<h3>{text(digest_text.title(section, messages))}</h3><p><small>{text(digest_text.about(section, messages))}</small></p>"
        f'<ul class="plain">{rows}{more}</ul>'
    )


def _beside(example: Document, section: Document, messages: Messages) -> str:
    link = web_link(example["url"], messages.gettext("Source"), "noopener noreferrer nofollow")
    parts = [one for one in (text(digest_text.aside(example, section, messages)), link) if one]
    return f"<br><small>{' · '.join(parts)}</small>" if parts else ""


def subscriptions(user: str, messages: Messages) -> str:
    """Return the links by which a feed reader subscribes to what is new."""
    address = f"/api/users/{segment(user)}/digest"
    links = f'<a href="{address}/atom">Atom</a> · <a href="{address}/json-feed">JSON Feed</a>'
    return f'<p class="note">{messages.gettext("For feed readers: {links}", links=links)}</p>'


def _with(address: str, **more: object) -> str:
    """Return an address with more parameters."""
    return f"{address}{'&' if '?' in address else '?'}{urlencode(more)}"


def mark(item: Document, since: int | None, messages: Messages) -> str:
    """Return what is new in a cluster since a version; empty: nothing. Insights that only moved make it changed, not new."""
    if since is None or item["changed_version"] <= since:
        return ""
    count = _new_count(item, since)
    if count == item["size"]:
        return messages.gettext("New")
    return messages.gettext("{number} new", number=count) if count else messages.gettext("Changed")


def _new_count(item: Document, since: int) -> int:
    return sum(count for version, count in item.get("arrived", ()) if version > since)


def cluster(item: Document, messages: Messages, *, since: int | None, deck: str | None) -> str:
    """Return one cluster, its insights folded."""
    name, arrived = item["cluster_id"], " ".join(f"{version}:{count}" for version, count in item.get("arrived", ()))
    size = messages.ngettext("{number} insight", "{number} insights", item["size"])
    facts = [size, *(text(keyword) for keyword in item["keywords"][:6])]
    of_title = f'<span class="hidden">: {text(item["title"])}</span>'
    action = ""
    if deck is not None:
        address = _with(deck, cluster=name)
        action = f'<p><a href="{text(address)}">{messages.gettext("Make a deck")}{of_title}</a></p>'
    return (
        f'<article class="card" data-size="{item["size"]}" data-changed="{item["changed_version"]}" '
        f'data-arrived="{arrived}"><h3>{text(item["title"])} '
        f'<span class="new" data-new>{mark(item, since, messages)}</span></h3>'
        f'<p class="said">{text(item["summary"])}</p><p><small>{" · ".join(facts)}</small></p>'
        f'<details id="c-{text(name)}"><summary>{messages.gettext("Latest insights")}{of_title}</summary>'
        f'<ul class="plain">{insights(item["insights"], messages)}</ul></details>{action}</article>'
    )


def insights(found: Iterable[Document], messages: Messages) -> str:
    """Return insights as items of a list."""
    return "".join(
        f'<li><span class="said">{text(one["text"] or one["insight_id"])}</span><br>'
        f"<small>{text(one['channel_id'])} · {moment(one['ts'], messages)}{_link(one.get('url'), messages)}</small></li>"
        for one in found
    )


def _link(url: str | None, messages: Messages) -> str:
    """Return a link to the origin of an insight."""
    link = web_link(url, messages.gettext("Source"), "noopener noreferrer nofollow")
    return f" · {link}" if link else ""


def who(messages: Messages, path: str = "/read/feed") -> str:
    """Return the form that asks for the user of the feed."""
    user, button = messages.gettext("User"), messages.gettext("Show the feed")
    return card(
        f'<form action="{path}"><label>{user}<input name="user" required autocomplete="username"></label>'
        f"<button>{button}</button></form>"
    )


def ask_form(user: str | None, once: str, messages: Messages, question: str = "", *, has_organization: bool) -> str:
    """Return the form of a question; `once` makes it one question however often it is sent, `question` is the refused text."""
    optional = f'<label>{messages.gettext("Organization (optional)")}<input name="organization"></label>'
    return (
        f'<section class="card"><h2>{messages.gettext("Ask a question")}</h2>'
        f'<form method="post" action="/read/feed/questions">{_hidden(user, once)}<label class="grow">'
        f'{messages.gettext("Your question")}<textarea name="query" required maxlength="4000">{text(question)}'
        f"</textarea></label>{'' if has_organization else optional}"
        f"<button>{messages.pgettext('to ask', 'Ask')}</button></form></section>"
    )


def deck_form(subject: Subject, user: str | None, once: str, messages: Messages, *, has_organization: bool) -> str:
    """Return the form for making a deck of a cluster or a digest."""
    needed = f'<label>{messages.gettext("Organization")}<input name="organization" required></label>'
    about, slides = messages.gettext("What the deck is about"), messages.gettext("Slides")
    return card(
        f'<form method="post" action="/read/feed/decks">{_hidden(user, once)}'
        f'<input type="hidden" name="{subject.kind}" value="{text(subject.name)}">'
        f'<label class="grow">{about}<textarea name="query" required maxlength="4000">{text(subject.title)}'
        f'</textarea></label><label>{slides}<input type="number" name="slides" min="1" max="50" value="5" required>'
        f"</label>{'' if has_organization else needed}<button>{messages.gettext('Make the deck')}</button></form>"
    )


def _hidden(user: str | None, once: str) -> str:
    named = "" if user is None else f'<input type="hidden" name="user" value="{text(user)}">'
    return f'{named}<input type="hidden" name="once" value="{text(once)}">'


def cluster_subject(item: Document, messages: Messages) -> Subject:
    """Return a cluster as the subject of a deck."""
    about = messages.gettext("The deck is made from the summary and the latest insights of this cluster.")
    return Subject("cluster", item["cluster_id"], item["title"], about, source_text(item))


def digest_subject(document: Document) -> Subject:
    """Return a digest as the subject of a deck, in the language of its texts."""
    messages = digest_text.messages_of(document)
    told = digest_text.plain_text(document, messages, heading="## ")
    title = digest_text.subject(document, messages)
    return Subject(
        "digest", str(document["since"]), title, digest_text.headline(document, messages), f"# {title}\n\n{told}"
    )


def source_text(item: Document) -> str:
    """Return a cluster as the source document of a deck, in Markdown."""
    lines = [f"# {item['title']}", "", item["summary"], "", "## Insights", ""]
    for one in item["insights"]:
        lines += [f"{one['channel_id']}, {one['ts']}: {one['text'] or one['insight_id']}", ""]
    return "\n".join(lines)
