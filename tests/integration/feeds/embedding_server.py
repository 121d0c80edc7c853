"""An embedding service on this machine."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

DIMENSIONS = 384


@dataclass
class Service:
    """A scripted embedding service with OpenAI's API."""

    mode: str = "good"
    asked: list[list[str]] = field(default_factory=list)
    url: str = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            request = json.loads(await reader.readexactly(length))
            texts = request["input"]
            self.asked.append(texts)
            if self.mode == "silent":
                await reader.read()
                return
            count = 3 if self.mode == "short" else DIMENSIONS
            # A model's vectors all point along the coordinate that its name's length says.
            vector = [2.0 * (n == len(request["model"]) - 1) for n in range(count)]
            data = [{"object": "embedding", "index": i, "embedding": vector} for i in range(len(texts))]
            body = json.dumps({"object": "list", "model": "m", "data": data}).encode()
            status = "500 No" if self.mode == "failing" else "200 OK"
            writer.write(
                f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        finally:
            writer.close()
