"""One version of clusters on a user's page: legend, members, feed, versions. Pure.

Invariant: external text is escaped; a list that is cut shows how much is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from highwater.api.dashboard import figures
from highwater.api.dashboard import map as cluster_map
from highwater.api.dashboard.addresses import insight_address
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.tiles import linked
from highwater.api.dashboard.view import text
from highwater.streams.wording import counted

LEGEND_MAX = 14
MEMBERS_MAX = 20
_ITEMS_MAX = 12

# Texts of insights: id -> the row of the dashboard's read model.
Members: TypeAlias = Mapping[str, Mapping[str, Any]]
# The address of the page as of a version (None: now) with a cluster selected (None: none).
AddressOf: TypeAlias = Callable[["int | None", "str | None"], str]


def legend(document: Mapping[str, Any], found: cluster_map.Map, address_of: Callable[[str], str]) -> str:
    """Return the largest clusters with their colours; each links to its members."""
    clusters = document["clusters"]
    if not clusters:
        return (
            '<p class="hw-muted">No clusters yet. They are made by the first rebuild, once enough insights are pending; '
            "“Is a rebuild due?” says what it waits for.</p>"
        )
    shown = "".join(
        f'<li><span aria-hidden="true" class="hw-dot" style="background:{cluster_map.colour(number)}"></span>'
        f'<span><a href="{text(address_of(one["cluster_id"]))}">{text(one["label"])}</a> '
        f'<span class="hw-muted">{linked(figures.count(one["size"]), address_of(one["cluster_id"]))} · '
        f"{text(', '.join(one['keywords'][:4]))}</span></span></li>"
        for number, one in enumerate(clusters[:LEGEND_MAX])
    )
    thinned = "" if len(found.points) == found.total else f"; {len(found.points):,} of {found.total:,} points are drawn"
    rest = len(clusters) - LEGEND_MAX
    unlisted = f", {rest:,} of them not listed here" if rest > 0 else ""
    more = f"{counted(len(clusters), 'cluster')}{unlisted}, {counted(document['noise'], 'insight')} in none{thinned}"
    return f'<ul class="hw-dots">{shown}</ul><p class="hw-muted hw-small hw-flat">{more}</p>'


def cluster(
    one: Mapping[str, Any], members: Members, version: int, address_of: Callable[[int], str] | None = None
) -> str:
    """A cluster with its members, the representative first, then those that belong to it most.

    `address_of` gives the address of the page as of a version.
    """
    confidences = dict(zip(one["insight_ids"], one.get("confidences", ()), strict=False))
    since = dict(zip(one["insight_ids"], one.get("since", ()), strict=False))
    title = text(one.get("title") or one["label"])
    summary = f'<p class="hw-flat">{text(one["summary"])}</p>' if one.get("summary") else ""
    born = f", born in version {one['born_version']}" if one.get("born_version") else ""
    about = f"{counted(one['size'], 'insight')} in version {version}{born} · {text(', '.join(one['keywords']))}"
    table_label = f"Insights of {one['label']}"
    rows = "".join(
        _member(members[insight_id], confidences.get(insight_id), since.get(insight_id), address_of)
        for insight_id in listed(one)
        if insight_id in members
    )
    return (
        f'<h2 class="hw" id="cluster" tabindex="-1">{title}</h2>{summary}<p class="hw-muted hw-small hw-flat">{about}</p>'
        f"{members_table(rows, table_label)}{_more(len(one['insight_ids']), rows)}"
        '<p class="hw-flat"><a href="#explain-cluster">Explain how these insights came here</a></p>'
    )


def listed(one: Mapping[str, Any]) -> list[str]:
    """Return the ids of the listed members."""
    confidences = dict(zip(one["insight_ids"], one.get("confidences", ()), strict=False))
    first = one.get("representative_id")
    ordered = sorted(one["insight_ids"], key=lambda name: (name != first, -confidences.get(name, 0.0), name))
    return ordered[:MEMBERS_MAX]


def selection(ids: Sequence[str], total: int, members: Members) -> str:
    """Return insights that were selected on the map."""
    rows = "".join(_member(members[one], None, None) for one in ids[:MEMBERS_MAX] if one in members)
    head = f'<h2 class="hw" id="cluster" tabindex="-1">{counted(total, "insight")} selected</h2>'
    if not rows:
        return f'{head}<p class="hw-muted hw-flat">There is no point within the line. Draw it around some.</p>'
    return f"{head}{members_table(rows, 'Selected insights')}{_more(total, rows)}"


def members_table(rows: str, label: str) -> str:
    """Return a table of insights."""
    return table_html(("insight", "channel", "from (UTC)", "belongs#", "since version#"), rows, label)


def _member(
    row: Mapping[str, Any],
    confidence: float | None,
    since: int | None,
    address_of: Callable[[int], str] | None = None,
) -> str:
    words = text(row["text"] or row["insight_id"])
    address = text(insight_address(row["channel_id"], row["insight_id"]))
    belongs = "" if confidence is None else f"{confidence:.0%}"
    began = "" if since is None else str(since)
    if since is not None and address_of is not None:
        began = linked(began, address_of(since))
    return (
        f'<tr><td class="hw-cell"><a href="{address}">{words}</a></td><td>{text(row["channel_id"])}</td>'
        f"<td>{figures.moment(row['ts'])}</td>{numbers(belongs, began)}</tr>"
    )


def _more(total: int, rows: str) -> str:
    rest = total - rows.count("<tr>")
    return f'<p class="hw-muted hw-small hw-flat">and {rest:,} more</p>' if rest > 0 else ""


def feed(document: Mapping[str, Any], address_of: Callable[[str], str], *, is_now: bool) -> str:
    """Return the feed: one item per cluster. An earlier version's feed is built from what is stored with its clusters."""
    items = document["items"] if is_now else document["clusters"]
    lines = "".join(
        f'<li><a href="{text(address_of(item["cluster_id"]))}"><b>{text(item.get("title") or item["label"])}</b></a> '
        f'<span class="hw-muted hw-small">{_size(item, address_of)}</span><br>'
        f'<span class="hw-small">{text(item.get("summary", ""))}</span></li>'
        for item in items[:_ITEMS_MAX]
    )
    made = document["built_at"] if is_now else document["updated_at"]
    built = f"version {document['cluster_version']}, built {figures.iso_text(made)} UTC" if items else ""
    empty = '<p class="hw-muted">The feed is empty until the first clusters are made.</p>'
    rest = len(items) - _ITEMS_MAX
    more = f'<p class="hw-muted hw-small hw-flat">and {rest:,} more</p>' if rest > 0 else ""
    head = f'<h2 class="hw">Feed{"" if is_now else " as of then"}</h2><p class="hw-muted hw-small hw-flat">{built}</p>'
    return head + (f'<ol class="hw-items">{lines}</ol>{more}' if items else empty)


def _size(item: Mapping[str, Any], address_of: Callable[[str], str]) -> str:
    return linked(counted(item["size"], "insight"), address_of(item["cluster_id"]))


def _made_how(row: Mapping[str, Any]) -> str:
    """Return how a version was made, if not from the vectors of the one before it."""
    return "preliminary" if row["preliminary"] else "regrouped" if row["regrouped"] else ""


def versions(rows: Sequence[Mapping[str, Any]], shown: int | None, address_of: Callable[[int], str]) -> str:
    """Return the stored versions; each links to the page as of then."""
    lines = "".join(
        f'<tr{" aria-current=true" if row["cluster_version"] == shown else ""}><td class="hw-number">'
        f'<a href="{text(address_of(row["cluster_version"]))}">{row["cluster_version"]}</a></td>'
        f"<td>{figures.moment(row['updated_at'])}</td><td>{_made_how(row)}</td>"
        + numbers(
            *(
                linked(f"{row[name]:,}", address_of(row["cluster_version"]))
                for name in ("clusters", "noise", "dataset_size")
            )
        )
        + f'<td class="hw-mono">{text(row["caused_by"])}</td></tr>'
        for row in rows
    )
    head = '<h2 class="hw" id="versions">Versions that are kept</h2>'
    if not rows:
        return f'{head}<p class="hw-muted">None yet: the first rebuild makes one.</p>'
    columns = ("version#", "made (UTC)", "how", "clusters#", "insights in none#", "of insights#", "caused by")
    return head + table_html(columns, lines, "Versions that are kept")
