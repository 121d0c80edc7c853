"""The sentences of a digest in a language: of its JSON, as the API serves it, and the same for mails, terminals and feeds.

Invariant: a pure function of the document and the messages; every text of others stands as it was given, in one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from highwater.streams.feeds.digest import NAMES_MAX
from highwater.streams.feeds.label_words import with_more, without_examples
from highwater.streams.messages import Messages, catalogue, gettext_noop

Document = Mapping[str, Any]

OUTSIDE = gettext_noop("In no cluster")
# What is said of a version by how it was made.
_BASES = {
    "preliminary": gettext_noop(
        "These clusters are preliminary: the texts are still being read. They are replaced once."
    ),
    "regrouped": gettext_noop("All clusters were regrouped, since the texts are compared in a new way."),
}


def messages_of(digest: Document) -> Messages:
    """Return the messages in the language of a digest's texts."""
    return catalogue().messages(digest["language"])


def headline(digest: Document, messages: Messages) -> str:
    """Return how much is new and since when; that nothing is, if so."""
    since = _since(digest, messages)
    if not digest["new_count"]:
        return messages.gettext("Nothing new since {time}.", time=since) if since else messages.gettext("Nothing yet.")
    parts = [messages.ngettext("{number} new insight", "{number} new insights", digest["new_count"])]
    if digest["cluster_count"]:
        parts.append(messages.ngettext("{number} cluster", "{number} clusters", digest["cluster_count"]))
    return " \u00b7 ".join([*parts, messages.gettext("since {time}", time=since)] if since else parts)


def basis(document: Document, messages: Messages) -> str:
    """Return how the version of a digest or a feed was made, if its reader has to know; "" if not."""
    return next((messages.gettext(said) for name, said in _BASES.items() if document.get(name)), "")


def _since(digest: Document, messages: Messages) -> str:
    if digest["since_at"] is not None:
        return _time(digest["since_at"], messages)
    return messages.pgettext("since", "version {number}", number=digest["since"]) if digest["since"] else ""


def _time(iso: str, messages: Messages) -> str:
    at = datetime.fromisoformat(iso)
    return messages.pgettext("date with time", "{date}, {time} UTC", date=messages.day(at), time=f"{at:%H:%M}")


def subject(digest: Document, messages: Messages) -> str:
    """Return what a digest is about, in a line: that of a mail, or of a deck."""
    names = [without_examples(title(section, messages))[0] for section in digest["sections"]]
    if not names:
        return headline(digest, messages)
    return messages.gettext("What is new: {names}", names=_names(list(dict.fromkeys(names)), messages, "; "))


def reached(digest: Document, messages: Messages) -> str:
    """Return how far a digest goes, so that the next one begins there; "" if the user has no version."""
    if digest["updated_at"] is None:
        return ""
    return messages.gettext(
        "Up to {time}: version {version} ({position}). The next digest begins there.",
        time=_time(digest["updated_at"], messages), version=digest["cluster_version"], position=digest["position"],
    )  # fmt: skip


def not_shown(digest: Document, messages: Messages) -> str:
    """Return how many new insights are in clusters that a digest does not show; "" if it shows all."""
    left = digest["new_count"] - sum(one["new_count"] for one in digest["sections"])
    return messages.ngettext("{number} more in other clusters", "{number} more in other clusters", left) if left else ""


def title(section: Document, messages: Messages) -> str:
    """Return the name of a section."""
    return str(section["label"]) or messages.gettext(OUTSIDE)


def about(section: Document, messages: Messages) -> str:
    """Return how much is new in a section, how it grew against last week, in which channels, and of which days."""
    new, size = section["new_count"], section["size"]
    counted = messages.ngettext("{number} new insight", "{number} new insights", new)
    parts = [counted if new == size else messages.gettext("{new} of {size}", new=counted, size=messages.number(size))]
    if section["is_new"] and 2 * new > size:  # else its older insights were regrouped
        parts.append(messages.gettext("a new cluster"))
    if section["week_before"]:
        week, before = messages.number(section["week"]), messages.number(section["week_before"])
        parts.append(messages.gettext("{week} this week, {before} the week before", week=week, before=before))
    parts.append(_names([one["channel_id"] for one in section["channels"]], messages))
    days = [messages.day(datetime.fromisoformat(section[name])) for name in ("first_at", "last_at")]
    return " \u00b7 ".join([*parts, "\u2013".join(dict.fromkeys(days))])


def bumps(section: Document, messages: Messages) -> str:
    """Return the line of the version bumps that a section has."""
    found = section["bumps"]
    names = _names(found["names"], messages)
    return messages.ngettext(
        "{number} version bump: {names}", "{number} version bumps: {names}", found["count"], names=names
    )


def _names(names: Sequence[str], messages: Messages, separator: str = ", ") -> str:
    shown, left = separator.join(names[:NAMES_MAX]), len(names) - NAMES_MAX
    return with_more(shown, left, messages) if left > 0 else shown


def aside(example: Document, section: Document, messages: Messages) -> str:
    """Return what stands beside an example: its channel, if its section has several, and whether others say nearly the same
    or none does.
    """
    parts = [example["channel_id"]] if len(section["channels"]) > 1 else []
    if example["alike_count"]:
        parts.append(messages.ngettext("{number} more like this", "{number} more like this", example["alike_count"]))
    elif example["is_odd"]:
        parts.append(messages.gettext("unlike the others"))
    return " \u00b7 ".join(parts)


def lines(section: Document, messages: Messages) -> Iterator[str]:
    """Yield the lines of a section: its examples, its bumps, and how many more there are."""
    for example in section["examples"]:
        yield " \u00b7 ".join(filter(None, (example["text"], aside(example, section, messages))))
    yield from beside(section, messages)


def beside(section: Document, messages: Messages) -> Iterator[str]:
    """Yield the lines after the examples of a section: its bumps, and how many new insights are neither."""
    if section["bumps"] is not None:
        yield bumps(section, messages)
    shown = sum(1 + example["alike_count"] for example in section["examples"])
    left = section["new_count"] - shown - (section["bumps"] or {"count": 0})["count"]
    if left > 0:
        yield messages.ngettext("{number} more", "{number} more", left)


def plain_text(digest: Document, messages: Messages, *, heading: str = "") -> str:
    """Return a digest as text for a mail or a terminal; `heading` begins the name of each section, "## " in Markdown."""
    parts = [part for part in (headline(digest, messages), basis(digest, messages)) if part]
    for section in digest["sections"]:
        listed = "\n".join(f"- {line}" for line in lines(section, messages))
        parts.append(f"{heading}{title(section, messages)}\n{about(section, messages)}\n{listed}".rstrip())
    parts += [part for part in (not_shown(digest, messages), reached(digest, messages)) if part]
    return "\n\n".join(parts) + "\n"
