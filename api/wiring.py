"""Wires the application: the shared services, and over them those of each slice, in the order of start and end.

Invariants. Slices do not know each other: what one passes to another goes through here. Everything that publishes to
the log is closed before the log is.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi import FastAPI

from highwater.api.chunks.services import ChunkServices, make_chunks
from highwater.api.core.services import Services, make_services
from highwater.api.dead_letters.open_letters import OpenLetters
from highwater.api.feeds.services import FeedServices, make_feeds
from highwater.api.history.recorder import HistoryRecorder
from highwater.api.jobs.services import JobServices, make_jobs
from highwater.api.league.services import LeagueServices, make_league, page_builders
from highwater.api.pages.services import PageServices, make_pages
from highwater.api.queries.services import QueryServices, make_queries
from highwater.streams.clock import Clock
from highwater.streams.league.resources import LEAGUE_RULES
from highwater.streams.settings import Settings


@dataclass(frozen=True)
class Wiring:
    """Everything that the routes of one application use."""

    services: Services
    feeds: FeedServices
    pages: PageServices
    league: LeagueServices
    queries: QueryServices
    jobs: JobServices
    chunks: ChunkServices
    open_letters: OpenLetters
    history: HistoryRecorder

    def install(self, app: FastAPI) -> None:
        """Store it where the routes find it."""
        state = app.state
        state.wiring, state.services = self, self.services
        state.feeds, state.pages, state.league = self.feeds, self.pages, self.league
        state.queries, state.jobs, state.chunks = self.queries, self.jobs, self.chunks

    async def start(self) -> None:
        """Start connecting; no service has to be available."""
        await self.services.start()
        self.open_letters.start()
        self.history.start()
        self.pages.start()
        self.league.start()

    async def end(self) -> None:
        """Close the streams and sockets, which do not end by themselves, and wait briefly until clients have been notified."""
        self.services.end()
        await asyncio.gather(self.queries.end(), self.jobs.end(), self.pages.end())

    async def close(self) -> None:
        """Close everything, users before what they use."""
        core = self.services
        await self.history.close()
        await self.open_letters.close()
        users = (self.queries, self.jobs, self.league, self.pages, core.activity, self.chunks, self.feeds)
        for one in (core.changes, *users, core):
            await one.close()


def make_wiring(settings: Settings, clock: Clock) -> Wiring:
    """Wire everything; called on the running loop, performs no I/O.

    Raises:
        ConfigurationError: a setting cannot be used.
    """
    core = make_services(settings, clock)
    builders = page_builders(settings)
    pages = make_pages(core, LEAGUE_RULES, builders)
    return Wiring(
        services=core,
        feeds=make_feeds(core),
        pages=pages,
        league=make_league(core, pages.documents, builders["match_window"]),
        queries=make_queries(core),
        jobs=make_jobs(core),
        chunks=make_chunks(core),
        open_letters=OpenLetters(settings, core.admin),
        history=HistoryRecorder(core),
    )
