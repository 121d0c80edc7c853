"""The WebSocket on which a job is watched: the same events as `GET /api/jobs/{id}/events`, by the same reader.

Invariants. Nothing is sent before the caller is authenticated. It ends with the job, by 1000; any other code gives the
reason, and the watcher may reconnect with the last id that it received.
"""

from __future__ import annotations

import contextlib

import orjson
from fastapi import APIRouter
from starlette.websockets import WebSocket

from highwater.api.core.access import declared
from highwater.api.core.resources import JOB
from highwater.api.core.services import Services
from highwater.api.core.sockets import Socket, close_with_reason
from highwater.api.core.uuids import canonical_uuid
from highwater.api.jobs.routes import READ_JOB, place_after
from highwater.api.jobs.services import JobServices
from highwater.api.jobs.stream import JobHub, Listener
from highwater.connectors.jobs.read_model import JobRead
from highwater.streams.clock import fresh_id

ENDED = 1000

router = APIRouter(tags=["jobs"])


@router.websocket("/api/jobs/{job_id}/ws")
@declared(READ_JOB)
async def job_socket(websocket: WebSocket, job_id: str) -> None:
    """Send a job's events from the first one, or after `?last_event_id=`."""
    services: Services = websocket.app.state.services
    jobs: JobServices = websocket.app.state.jobs
    socket = JobSocket(websocket, services, jobs.watchers)
    await jobs.watchers.audience.serve(websocket, lambda: socket.watch(job_id))


class JobSocket(Socket):
    """One socket on a job; it is authenticated as any other."""

    def __init__(self, websocket: WebSocket, services: Services, watchers: JobHub) -> None:
        super().__init__(websocket, services)
        self._watchers = watchers

    async def watch(self, text: str) -> None:
        """Authenticate, then send events until one side closes it.

        Raises:
            ProblemError: access is refused, or the request is invalid.
            UnavailableError: a service that a socket needs is unavailable.
        """
        websocket, services = self._websocket, self._services
        called = await self._admitted()
        job = await called.found(JOB, canonical_uuid("job_id", text))
        after = place_after(websocket.query_params.get("last_event_id"), job)
        services.activity.note(called.principal)
        await self._open(called)
        if job.has_ended and after >= job.seq:
            await websocket.close(ENDED)
            return
        with self._watchers.audience.places.taken(called.principal):
            await self._told(job, after, may_end=called.principal.may_end)

    async def _told(self, job: JobRead, after: int, *, may_end: bool) -> None:
        hub = self._watchers
        async with hub.socket(job.user_id, fresh_id()):
            with hub.listening(job.job_id, after) as listener:
                await self._attended(listener, [self._tell(listener), self._hear(listener)], may_end=may_end)
        if listener.closed is not None:
            await close_with_reason(self._websocket, *listener.closed)

    async def _tell(self, listener: Listener) -> None:
        async with contextlib.aclosing(listener.frames()) as told:
            async for frames in told:
                for frame in frames:
                    await self._websocket.send_text(frame.text)
                if not frames:
                    await self._websocket.send_text('{"event_type":"heartbeat"}')
        if not listener.is_ended:
            listener.close(ENDED, "the job has ended")

    async def _hear(self, listener: Listener) -> None:
        """Answer pings; a watcher has nothing else to send."""
        while True:
            await self._received()
            pong = {"event_type": "pong", "id": f"{listener.place}-0"}
            await self._websocket.send_text(orjson.dumps(pong).decode())
