"""Two small servers that answer 304 as one would write them in an afternoon; run by uvicorn as the API is.

`PEER_HEADERS` (JSON) and `PEER_BODY` (a file) are what our own API answers, so that all systems send the same bytes.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from fastapi import FastAPI
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

VERSION_KEY = "bench:version"
_HEADERS = json.loads(os.environ.get("PEER_HEADERS", "{}"))
_BODY = Path(os.environ["PEER_BODY"]).read_bytes() if "PEER_BODY" in os.environ else b""


def _answer(wanted: str | None, version: str) -> Response:
    headers = {**_HEADERS, "ETag": version}
    return Response(status_code=304, headers=headers) if wanted == version else Response(_BODY, headers=headers)


def fastapi_redis() -> FastAPI:
    """FastAPI and redis-py: one GET of the version a request."""
    app = FastAPI()
    redis = Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)

    @app.get("/table")
    async def table(request: Request) -> Response:
        return _answer(request.headers.get("if-none-match"), await redis.get(VERSION_KEY))

    return app


def starlette_dict() -> Starlette:
    """Starlette with the version in a dict: what the same server can do when nothing has to be known."""
    versions = {"table": _HEADERS["ETag"]}

    async def table(request: Request) -> Response:
        return _answer(request.headers.get("if-none-match"), versions["table"])

    return Starlette(routes=[Route("/table", table)])


if __name__ == "__main__":
    from highwater.api.app import server_of

    application = {"fastapi": fastapi_redis, "starlette": starlette_dict}[sys.argv[1]]()
    asyncio.run(server_of(application, "127.0.0.1", int(sys.argv[2])).serve())
