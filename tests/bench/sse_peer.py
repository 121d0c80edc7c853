"""A server of a job's events as one would write it in an afternoon: Starlette, a generator and an XREAD BLOCK a listener (R2.20).

Run by uvicorn as the API is. It knows no jobs, users, gaps or ends, and resumes at the id that it is given.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator

from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse  # noqa: TID251 - a peer
from starlette.routing import Route

BLOCK_MS = 30_000


def application() -> Starlette:
    """The server."""
    redis = Redis.from_url(
        os.environ["REDIS_URL"], decode_responses=True, max_connections=10_000, socket_timeout=2 * BLOCK_MS / 1000
    )

    async def published(job_id: str, last: str) -> AsyncIterator[str]:
        name, place = f"gen_progress:{job_id}", last
        while True:
            found = await redis.xread({name: place}, block=BLOCK_MS)
            for _, entries in found:
                for entry_id, fields in entries:
                    place = entry_id
                    yield f"id: {entry_id}\nevent: {fields['event_type']}\ndata: {json.dumps(fields)}\n\n"
            if not found:
                yield ": heartbeat\n\n"

    async def events(request: Request) -> Response:
        last = request.headers.get("last-event-id", "0-0")
        return StreamingResponse(published(request.path_params["job_id"], last), media_type="text/event-stream")

    async def ready(_request: Request) -> Response:
        return PlainTextResponse("ready")

    return Starlette(routes=[Route("/api/jobs/{job_id}/events", events), Route("/readyz", ready)])


if __name__ == "__main__":
    from highwater.api.app import server_of

    asyncio.run(server_of(application(), "127.0.0.1", int(sys.argv[1])).serve())
