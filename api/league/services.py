"""The services of the routes of leagues, beside the shared ones: matches of two documents, their windows, the monitor.

Also the builders of documents that leagues pass to the service of pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from highwater.api.core.services import Services
from highwater.api.league.matches import MatchDocuments
from highwater.api.league.monitor import Monitor
from highwater.connectors.league.documents import builders
from highwater.connectors.pages.maker import Builder
from highwater.connectors.pages.reads import Documents
from highwater.streams.league.windows import window_options
from highwater.streams.settings import Settings


@dataclass(frozen=True)
class LeagueServices:
    """What the routes of leagues use."""

    documents: Documents
    matches: MatchDocuments
    build_window: Builder
    monitor: Monitor

    def start(self) -> None:
        """Start sampling."""
        self.monitor.start()

    async def close(self) -> None:
        """Stop sampling."""
        await self.monitor.close()


def page_builders(settings: Settings) -> Mapping[str, Builder]:
    """Return the builders of the documents of leagues, by kind."""
    return builders(window_options(settings))


def make_league(core: Services, documents: Documents, build_window: Builder) -> LeagueServices:
    """Wire the services over the documents of `page_builders`; `build_window` returns when matches are played."""
    return LeagueServices(
        documents=documents,
        matches=MatchDocuments(documents, core.database.require),
        build_window=build_window,
        monitor=Monitor(core.cache_link, core.database.require, core.clock),
    )


async def league_of(request: Request) -> LeagueServices:
    """Return the services of the application that a request came to."""
    league: LeagueServices = request.app.state.league
    return league


WiredLeague = Annotated[LeagueServices, Depends(league_of)]
