"""The clusters of a user on a page: map, members, feed, tables and history, now or as of an earlier version.

Invariants. Everything shown is from one version, which the page names. A page that shows an earlier version keeps it
while new ones are made. A selection on the map is resolved among the insights of the displayed version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.dashboard import as_of, clusters_html, river
from highwater.api.dashboard import map as cluster_map
from highwater.api.dashboard.explained import explain_card
from highwater.api.dashboard.slider import Slider
from highwater.api.dashboard.view import ReadRefusedError, View, heading, link, note, segment, set_html, text
from highwater.api.dashboard.zoom_map import Selection, ZoomMap
from highwater.connectors.dashboard import read_model as dashboard_reads
from highwater.connectors.explain.explaining import Explainer
from highwater.connectors.explain.explanations import Explanation
from highwater.schemas.errors import HighwaterError

_NOT_FOUND = 404
# For 200 versions (HIGHWATER_CLUSTER_HISTORY_VERSIONS) with a hundred changes each.
_CHANGES_MAX = 20_000


class ClustersPanel:
    """The panel in one browser."""

    def __init__(self, view: View, user: str) -> None:
        self._view = view
        self._user = user
        # None: the newest version at any time.
        self._version: int | None = None
        self._newest = -1
        self._rows: list[dict[str, Any]] = []
        self._document: Mapping[str, Any] = {"clusters": [], "noise": 0, "cluster_version": 0}
        self._chosen = view.asked("cluster")
        self._turn = asyncio.Lock()

    def build(self) -> None:
        """Add the elements."""
        with ui.column().classes("hw-card"):
            heading("Version")
            with ui.element("div").classes("hw-as-of"):
                self._slider = Slider("Version of the clusters", self._moved)
                self._shown = ui.html("", sanitize=False).props("role=status")
                self._back = ui.button("Back to now", icon="update", on_click=self._to_now).props("flat no-caps dense")
                self._back.set_visibility(False)
            self._problem = ui.html("", sanitize=False).classes("full-width")
        with ui.column().classes("hw-card"):
            heading("Clusters")
            self._map = ZoomMap(self._pick, self._select).classes("full-width")
            self._legend = ui.html('<p class="hw-muted">Loading the clusters…</p>', sanitize=False)
            self._legend.classes("full-width")
        self._cluster = ui.html("", sanitize=False).classes("hw-card")
        self._cluster.set_visibility(False)
        self._why = explain_card(
            self._view,
            "How its insights came here",
            self._explained,
            anchor="explain-cluster",
            label="Explain this cluster",
        )
        self._why.card.set_visibility(False)
        with ui.column().classes("hw-card"):
            heading("History of the clusters")
            self._river = ui.html("", sanitize=False).classes("full-width")
            note(
                "Each band is a cluster; its thickness is the number of insights. A grey cluster is not in the version shown."
            )
        self._feed = ui.html("", sanitize=False).classes("hw-card")
        self._versions = ui.html("", sanitize=False).classes("hw-card")

    async def refresh(self, newest: int) -> None:
        """Show the current state, if a version was made since."""
        if newest == self._newest:
            return
        is_first = self._newest < 0
        pool = self._view.services.database.require()
        self._rows, changes = await asyncio.gather(
            dashboard_reads.versions(pool, self._user),
            dashboard_reads.cluster_sizes(pool, self._user, _CHANGES_MAX),
        )
        if is_first:
            choice = as_of.choose(
                as_of.stored_versions(self._rows), self._view.asked("version"), self._view.asked("at")
            )
            self._version = choice.version
            self._tell(choice.problem)
        self._history = river.river_of(changes, newest)
        await self._show()
        # Only now: after a failure the next refresh tries again.
        self._newest = newest

    async def _show(self) -> None:
        """Read the version and show it everywhere; one at a time, so that the last request is shown last."""
        async with self._turn:
            await self._read_and_show()

    async def _read_and_show(self) -> None:
        self._document, feed = await self._read()
        self._show_version()
        await self._show_map()
        set_html(self._feed, clusters_html.feed(feed, self._cluster_address, is_now=self._version is None))
        await self._show_cluster()

    async def _read(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the clusters and the feed of the version; of the newest one if it is no longer kept."""
        path = f"/api/users/{segment(self._user)}"
        if self._version is not None:
            try:
                document = await self._view.get(f"{path}/clusters", version=self._version)
            except ReadRefusedError as error:
                if error.status != _NOT_FOUND:
                    raise
                self._tell(f"Version {self._version} is no longer kept; the newest is shown.")
                self._version = None
            else:
                return document, document
        document, feed = await asyncio.gather(self._view.get(f"{path}/clusters"), self._view.get(f"{path}/feed"))
        return document, feed

    def _show_version(self) -> None:
        kept = as_of.stored_versions(self._rows)
        numbers = [one.version for one in kept]
        shown = self._document["cluster_version"]
        words = as_of.described(kept, self._version if self._version in numbers else None)
        self._slider.show(len(kept) - 1, numbers.index(shown) if shown in numbers else len(kept) - 1, words)
        set_html(self._shown, text(words))
        self._back.set_visibility(self._version is not None)
        set_html(
            self._versions,
            clusters_html.versions(self._rows, shown, self._as_of),
        )

    async def _show_map(self) -> None:
        found = cluster_map.points_of(self._document)
        ids = [one.insight_id for one in found.points]
        texts = await dashboard_reads.texts(self._view.services.database.require(), ids)
        self._map.set_visibility(bool(found.points))
        self._map.show(cluster_map.draw(self._document, found, texts), self._mark())
        set_html(self._legend, clusters_html.legend(self._document, found, self._cluster_address))
        numbers = {one["cluster_id"]: number for number, one in enumerate(self._document["clusters"])}
        drawn = river.draw(
            self._history,
            self._document["cluster_version"],
            numbers,
            lambda name: self._cluster_address(name) if name in numbers else None,
        )
        empty = '<p class="hw-muted">There is no history yet: each rebuild adds a version.</p>'
        set_html(self._river, drawn or empty)

    async def _show_cluster(self) -> None:
        """Show the members of the selected cluster, or a notice if this version does not have it."""
        self._map.stand_out(self._mark())
        self._cluster.set_visibility(bool(self._chosen))
        one = self._clusters().get(self._chosen)
        self._why.card.set_visibility(one is not None)
        self._why.clear()
        if one is not None:
            members = await self._members(clusters_html.listed(one))
            set_html(self._cluster, clusters_html.cluster(one, members, self._document["cluster_version"], self._as_of))
        elif self._chosen:
            version = self._document["cluster_version"]
            told = f"Cluster {self._chosen} is not in version {version}. Move the slider to a version that has it."
            set_html(self._cluster, f'<p class="hw-muted hw-flat">{text(told)}</p>')

    def _explained(self, explainer: Explainer) -> Awaitable[Explanation]:
        """Return the explanation of the selected cluster, in the displayed version."""
        return explainer.cluster(self._user, self._chosen, self._view.services.clock(), self._version)

    async def _tried(self, work: Awaitable[None]) -> None:
        """Do an action of the user; a failure is shown above the page, which stays unchanged."""
        try:
            await work
        except HighwaterError as error:
            self._view.tell(f"{error}. Try again.")
        else:
            self._view.tell(None)

    async def _pick(self, number: str, insight_id: str) -> None:
        """Handle a click on a point or label of the map."""
        await self._tried(self._choose(number, insight_id))

    async def _choose(self, number: str, insight_id: str) -> None:
        """Show the cluster of a point, or only its insight if it is in none."""
        clusters = self._document["clusters"]
        if number.isascii() and number.isdigit() and int(number) < len(clusters):
            self._chosen = clusters[int(number)]["cluster_id"]
            await self._show_cluster()
            self._note_address()
        elif insight_id:
            await self._show_selection(Selection((insight_id,), 1))

    async def _select(self, selected: Selection) -> None:
        """Handle a line drawn around points."""
        await self._tried(self._show_selection(selected))

    async def _show_selection(self, selected: Selection) -> None:
        shown = {one.insight_id for one in cluster_map.points_of(self._document).points}
        ids = [one for one in selected.ids if one in shown]
        self._chosen = ""
        self._why.card.set_visibility(False)
        self._map.stand_out("")
        members = await self._members(ids[: clusters_html.MEMBERS_MAX])
        set_html(self._cluster, clusters_html.selection(ids, min(selected.total, len(shown)), members))
        self._cluster.set_visibility(True)

    async def _members(self, ids: Sequence[str]) -> clusters_html.Members:
        return await dashboard_reads.insights(self._view.services.database.require(), ids)

    async def _moved(self, step: int) -> None:
        """Handle the slider's release at a step."""
        kept = as_of.stored_versions(self._rows)
        await self._tried(self._to(None if step >= len(kept) - 1 else kept[step].version))

    async def _to_now(self) -> None:
        await self._tried(self._to(None))

    async def _to(self, version: int | None) -> None:
        self._version = version
        self._tell("")
        await self._show()
        self._note_address()

    def _tell(self, problem: str) -> None:
        set_html(self._problem, f'<p class="hw-warn hw-flat" role="alert">{text(problem)}</p>' if problem else "")

    def _clusters(self) -> dict[str, Mapping[str, Any]]:
        return {one["cluster_id"]: one for one in self._document["clusters"]}

    def _mark(self) -> str:
        """Return the place of the selected cluster among those of the version."""
        return next((str(n) for n, name in enumerate(self._clusters()) if name == self._chosen), "")

    def _cluster_address(self, cluster_id: str) -> str:
        return self._address(self._version, cluster_id) + "#cluster"

    def _as_of(self, version: int) -> str:
        """The address of the page as of a version."""
        return self._address(version, None)

    def _address(self, version: int | None, cluster_id: str | None) -> str:
        named = {"id": self._user}
        if version is not None:
            named["version"] = str(version)
        if cluster_id:
            named["cluster"] = cluster_id
        return link("/user", **named)

    def _note_address(self) -> None:
        """Put the displayed state into the browser's address, so that it can be shared."""
        ui.navigate.history.replace(self._address(self._version, self._chosen))
