"""Documents put and read over HTTP and PostgreSQL: whole or not at all, once, and by those who own them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from highwater.api.core.auth import OPEN
from highwater.api.core.errors import BadRequestError
from highwater.api.jobs.uploads import Uploads
from highwater.connectors.jobs import blobs
from highwater.connectors.jobs.blobs import PART_BYTES, BlobTooLargeError
from highwater.connectors.postgres.pool import open_pool
from highwater.deploy.local.ports import is_free
from highwater.schemas.errors import UnavailableError
from highwater.streams.access import trusts_nobody
from tests import ROOT
from tests.conftest import Stack
from tests.integration.api_server import NOW, Api, Seeds, running_api, wait_until
from tests.integration.connecting import fresh, until

KEYS = "admin:root-key,editor:edit-key,viewer:view-key"
MIB = 1 << 20
# The memory that a transfer of any length may add to the API: parts in hand, buffers of the server, of the client of
# PostgreSQL, and the reserve of the allocator.
MEMORY_BYTES_MAX = 16 * MIB


@pytest.fixture(scope="module")
def api(guarded: Api) -> Api:
    """An API whose limits of requests are out of the way."""
    return guarded


@pytest.fixture
async def editor(api: Api) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that may put; a minute of its own, so that no limit is reached."""
    api.clock.offset_ms += 60_000
    async with api.client("edit-key") as client:
        yield client


async def organization(seeds: Seeds, plan: str = "team", status: str = "active") -> str:
    """An organization of the test's own."""
    name = fresh("org")
    await seeds.run("INSERT INTO organizations VALUES ($1, $2, $3, NULL, 1, 't/0/0', $4)", name, plan, status, NOW)
    return name


def content(size: int) -> bytes:
    """Bytes that no other test puts."""
    return os.urandom(size)


def hexadecimal(body: bytes) -> str:
    """Their name."""
    return hashlib.sha256(body).hexdigest()


async def put(client: httpx2.AsyncClient, org: str | None, body: Any, **more: Any) -> httpx2.Response:
    """PUT, with headers and parameters by name."""
    headers = more.pop("headers", {})
    params = {**({} if org is None else {"organization_id": org}), **more}
    return await client.put("/api/blobs", params=params, content=body, headers=headers)


async def rows(seeds: Seeds, sha256: str) -> tuple[int, int, int]:
    """Rows of a blob, of its parts, and of its owners."""
    tables = ("blobs", "blob_parts", "blob_owners")
    counts = [await seeds.run(f"SELECT count(*) FROM {table} WHERE sha256 = $1", sha256) for table in tables]
    return tuple(count[0][0] for count in counts)  # type: ignore[return-value]


# -- stored bytes are returned -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 5])
async def test_a_document_is_read_as_it_was_put(editor, seeds: Seeds, size: int) -> None:
    """Bytes, length and media type, for every length around a part's."""
    org, body = await organization(seeds), content(size)
    answer = await put(editor, org, body, headers={"Content-Type": "text/markdown; charset=utf-8"})
    name = hexadecimal(body)
    assert (answer.status_code, answer.json()) == (201, {"sha256": name, "size": size})
    found = await editor.get(answer.headers["location"], params={"organization_id": org})
    assert (found.status_code, found.content) == (200, body)
    assert found.headers["content-type"] == "text/markdown; charset=utf-8"
    assert (found.headers["content-length"], found.headers["etag"]) == (str(size), f'"{name}"')
    assert found.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert found.headers["content-digest"] == f"sha-256=:{base64.b64encode(bytes.fromhex(name)).decode()}:"
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["content-disposition"] == f'attachment; filename="{name[:12]}.md"'
    again = {"If-None-Match": found.headers["etag"]}
    unchanged = await editor.get(f"/api/blobs/{name}", params={"organization_id": org}, headers=again)
    assert (unchanged.status_code, unchanged.content) == (304, b"")


async def test_the_same_bytes_again_are_nothing_new(editor, seeds: Seeds) -> None:
    """200, the first media type stays; another organization owns the same bytes by its own, and they are stored once."""
    one, two, body = await organization(seeds), await organization(seeds), content(PART_BYTES + 1)
    statuses = [
        (await put(editor, org, body, headers={"Content-Type": kind})).status_code
        for org, kind in ((one, "text/plain"), (one, "text/html"), (two, "application/pdf"))
    ]
    assert statuses == [201, 200, 201]
    assert await rows(seeds, hexadecimal(body)) == (1, 2, 2)
    kinds = [
        (await editor.get(f"/api/blobs/{hexadecimal(body)}", params={"organization_id": org})).headers["content-type"]
        for org in (one, two)
    ]
    assert [kind.split(";")[0] for kind in kinds] == ["text/plain", "application/pdf"]


async def test_a_document_is_saved_under_its_name(editor, seeds: Seeds) -> None:
    """The name that its organization gave it first, in ASCII and in full; another organization's is its own."""
    one, two, body = await organization(seeds), await organization(seeds), content(7)
    for org, name in ((one, "Отчёт 7.pdf"), (one, "other.pdf"), (two, "report.pdf")):
        assert (await put(editor, org, body, filename=name)).status_code in (200, 201)
    answers = [
        await editor.get(f"/api/blobs/{hexadecimal(body)}", params={"organization_id": org}) for org in (one, two)
    ]
    assert [answer.headers["content-disposition"] for answer in answers] == [
        "attachment; filename=\"_____ 7.pdf\"; filename*=UTF-8''%D0%9E%D1%82%D1%87%D1%91%D1%82%207.pdf",
        'attachment; filename="report.pdf"',
    ]


async def test_only_owners_and_admins_read(api: Api, editor, seeds: Seeds) -> None:
    """To another organization there is no such blob; a session speaks for its own; a viewer puts nothing."""
    org, other, body = await organization(seeds), await organization(seeds), content(10)
    await put(editor, org, body)
    path = f"/api/blobs/{hexadecimal(body)}"
    async with api.client("root-key") as admin:
        assert (await admin.get(path)).content == body
        tokens = []
        for place in (org, other, ""):
            asked = {"user_id": fresh("u"), "role": "editor", "organization_id": place}
            tokens.append((await admin.post("/api/sessions", json=asked)).json()["session_id"])
    found = []
    for token in tokens:
        async with api.client(token) as client:
            found.append((await client.get(path)).status_code)
            found.append((await client.get(path, params={"organization_id": org})).status_code)
            found.append((await put(client, org, b"x")).status_code)
    assert found == [200, 200, 201, 404, 403, 403, 403, 403, 403]
    async with api.client("view-key") as viewer:
        assert (await put(viewer, org, b"x")).status_code == 403
        assert (await viewer.get(path)).status_code == 422
        assert (await viewer.get(path, params={"organization_id": org})).status_code == 200
    async with api.client() as nobody:
        assert (await nobody.get(path)).status_code == 401


# -- digests ---------------------------------------------------------------------------------------------------------------


async def test_what_ingestion_leaves_out_is_shown(editor, seeds: Seeds) -> None:
    """With reasons and numbers, the first parts within the limit; a document that cannot be read is named."""
    org = await organization(seeds)
    page = b"<nav>Menu</nav><nav>Help</nav><main><h1>Log</h1><p>It is kept.</main>" + b"<p>" + b"x" * 2_000
    stored = await put(editor, org, page, headers={"content-type": "text/html"})
    address = f"/api/blobs/{stored.json()['sha256']}/left-out"
    told = (await editor.get(address, params={"organization_id": org})).json()
    assert told["left_out"] == {"navigation": 2, "outside_main": 1}
    assert [part["text"] for part in told["parts"][:2]] == ["Menu", "Help"]
    assert {part["reason"] for part in told["parts"]} == {"navigation", "outside_main"}
    assert len(told["parts"][2]["text"]) == 1_000
    first = (await editor.get(address, params={"organization_id": org, "limit": 1})).json()
    assert (first["left_out"], len(first["parts"])) == (told["left_out"], 1)
    bad = await put(editor, org, b"{\\rtf1 x}", headers={"content-type": "text/plain"})
    answer = await editor.get(f"/api/blobs/{bad.json()['sha256']}/left-out", params={"organization_id": org})
    assert (answer.status_code, "an RTF document" in answer.text) == (422, True)


async def test_digests_are_checked(editor, seeds: Seeds) -> None:
    """A digest in the query or in `Content-Digest` that fits is taken; one that does not is 422, and nothing is stored."""
    org, body = await organization(seeds), content(1000)
    wrong = hexadecimal(b"other")

    def field(name: str, digest: bytes) -> dict[str, str]:
        return {"Content-Digest": f"{name}=:{base64.b64encode(digest).decode()}:"}

    bad: list[dict[str, Any]] = [
        {"sha256": wrong},
        {"headers": field("sha-256", bytes.fromhex(wrong))},
        {"headers": field("sha-512", hashlib.sha512(b"other").digest())},
        {"sha256": hexadecimal(body), "headers": field("sha-256", bytes.fromhex(wrong))},
    ]
    for given in bad:
        answer = await put(editor, org, body, **given)
        assert (answer.status_code, answer.json()["sha256"]) == (422, hexadecimal(body))
    assert await rows(seeds, hexadecimal(body)) == (0, 0, 0)
    good: list[dict[str, Any]] = [
        {"sha256": hexadecimal(body).upper()},
        {"headers": field("sha-256", hashlib.sha256(body).digest())},
        {"headers": field("sha-512", hashlib.sha512(body).digest())},
        {"headers": field("md5", b"nonsense")},
    ]
    assert [(await put(editor, org, body, **given)).status_code for given in good] == [201, 200, 200, 200]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"sha256": "abc"}, "sha256"),
        ({"filename": "../x"}, "filename"),
        ({"filename": 'a"\r\nX: y'}, "filename"),
        ({"headers": {"Content-Digest": "sha-256=abc"}}, "Content-Digest"),
        ({"headers": {"Content-Digest": "sha-256=:a:"}}, "Content-Digest"),
        ({"headers": {"Content-Type": "words"}}, "Content-Type"),
        ({"headers": {"Content-Type": "a/b; " + "x" * 300}}, "Content-Type"),
        ({"headers": {"Content-Encoding": "gzip"}}, "Content-Encoding"),
    ],
)
async def test_what_is_malformed_is_named(editor, seeds: Seeds, given: dict[str, Any], field: str) -> None:
    """422 with the field at fault; a coding is refused before its route is known, with 415 as everywhere."""
    answer = await put(editor, await organization(seeds), b"x", **given)
    assert (answer.status_code, answer.json()["field"]) == (415 if field == "Content-Encoding" else 422, field)


async def test_a_part_of_a_document_is_not_taken(editor, seeds: Seeds) -> None:
    """RFC 9110, section 14.5: 400."""
    answer = await put(editor, await organization(seeds), b"x", headers={"Content-Range": "bytes 0-0/2"})
    assert answer.status_code == 400


# -- interruptions and concurrency
# -----------------------------------------------------------------------------------------------


async def begun(api: Api, org: str, length: int, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A PUT that has announced this many bytes and sent these."""
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"PUT /api/blobs?organization_id={org} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer edit-key\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    writer.write(head.encode() + sent)
    await writer.drain()
    return reader, writer


async def test_a_transfer_that_breaks_off_leaves_nothing(api: Api, editor, seeds: Seeds) -> None:
    """Half a document and a closed connection: no row, no file, and the place is free again."""
    org, uploads = await organization(seeds), api.app.state.jobs.uploads
    before = await seeds.run("SELECT count(*) FROM blobs")
    for _ in range(3):
        _, writer = await begun(api, org, 4 * MIB, content(2 * MIB))
        await until(lambda: uploads._places.count == 1, "it is being taken")
        writer.close()
        await until(lambda: uploads._places.count == 0, "its place is free")
    assert await seeds.run("SELECT count(*) FROM blobs") == before
    assert await seeds.run("SELECT count(*) FROM blob_owners WHERE organization_id = $1", org) == [(0,)]
    assert files_left() == []


async def test_a_killed_api_leaves_nothing(stack: Stack, seeds: Seeds) -> None:
    """Kill -9 during an upload leaves no row and no file, and the next process accepts the same document."""
    org, body = await organization(seeds), content(3 * MIB)
    with api_process(stack, seeds) as (process, url):
        before = open_temporaries(process.pid)
        _, writer = await begun(Api(url, None, None, None, None), org, len(body), body[: 2 * MIB])  # type: ignore[arg-type]

        def is_spooled() -> bool:
            return any(size >= MIB for name, size in open_temporaries(process.pid).items() if name not in before)

        await until(is_spooled, "it is spooled")
        process.kill()
        process.wait()
        writer.close()
    assert await rows(seeds, hexadecimal(body)) == (0, 0, 0)
    assert files_left() == []
    with api_process(stack, seeds) as (_, url):
        async with httpx2.AsyncClient(base_url=url, headers={"Authorization": "Bearer edit-key"}) as client:
            assert (await put(client, org, body)).status_code == 201


def files_left() -> list[str]:
    """Files of documents that have a name in the folder."""
    return [path.name for path in Path(tempfile.gettempdir()).glob("highwater-blob-*")]


def open_temporaries(pid: int) -> dict[str, int]:
    """The open temporary files of a process, with or without a name, and their size."""
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target, size = str(link.readlink()), link.stat().st_size
        except FileNotFoundError:
            continue
        if target.startswith(f"{tempfile.gettempdir()}/"):
            found[target] = size
    return found


async def test_the_same_bytes_at_once_are_stored_once(own_settings, api: Api, editor, seeds: Seeds) -> None:
    """Two processes and two organizations, twelve at once: one blob; each organization gets "new" once."""
    orgs, body = [await organization(seeds) for _ in range(2)], content(4 * MIB + 3)
    with running_api(own_settings(HIGHWATER_API_KEYS=KEYS)) as other:
        async with other.client("edit-key") as second:
            clients = (editor, second)
            answers = await asyncio.gather(*(put(clients[n % 2], orgs[n // 2 % 2], body) for n in range(12)))
    statuses = [(n // 2 % 2, answer.status_code) for n, answer in enumerate(answers)]
    assert sorted(statuses) == sorted([(org, status) for org in (0, 1) for status in [201] + [200] * 5])
    assert await rows(seeds, hexadecimal(body)) == (1, 5, 2)
    assert (await editor.get(f"/api/blobs/{hexadecimal(body)}", params={"organization_id": orgs[0]})).content == body


async def test_as_many_as_may_be_are_taken_at_once() -> None:
    """One more gets a retry time, and nothing of it is read."""

    class Request:
        def stream(self) -> AsyncIterator[bytes]:
            return pieces()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"

    uploads = Uploads(uploads_max=1)
    async with uploads.spooled(Request(), OPEN, 10) as found:  # type: ignore[arg-type]
        assert found.size_bytes == 3
        with pytest.raises(UnavailableError):
            async with uploads.spooled(Request(), OPEN, 10):  # type: ignore[arg-type]
                pass
    with pytest.raises(BlobTooLargeError):
        async with uploads.spooled(Request(), OPEN, 2):  # type: ignore[arg-type]
            pass
    async with uploads.spooled(Request(), OPEN, 3):  # type: ignore[arg-type]
        pass


async def test_a_silent_client_loses_its_place() -> None:
    """A client that announces a document and sends nothing gets an error after a while."""

    class Request:
        def stream(self) -> AsyncIterator[bytes]:
            return silence()

    async def silence() -> AsyncIterator[bytes]:
        yield b"abc"
        await asyncio.Event().wait()

    uploads = Uploads(uploads_max=1, silence_seconds_max=0.05)
    with pytest.raises(BadRequestError):
        async with uploads.spooled(Request(), OPEN, 10):  # type: ignore[arg-type]
            pass
    assert uploads._places.count == 0


async def test_a_slow_client_loses_its_place() -> None:
    """One that sends often, but less than the least number of bytes, gets an error; one that sends enough is read to its end."""

    class Request:
        def __init__(self, size: int) -> None:
            self.size = size

        async def stream(self) -> AsyncIterator[bytes]:
            for _ in range(40):
                await asyncio.sleep(0.005)
                yield b"a" * self.size

    uploads = Uploads(uploads_max=1, silence_seconds_max=0.1)
    with pytest.raises(BadRequestError, match="bytes a second"):
        async with uploads.spooled(Request(1), OPEN, MIB):  # type: ignore[arg-type]
            pass
    async with uploads.spooled(Request(10_000), OPEN, MIB) as found:  # type: ignore[arg-type]
        assert found.size_bytes == 400_000
    assert uploads._places.count == 0


# -- limits of the plan ------------------------------------------------------------------------------------------------------


async def test_what_is_announced_too_large_is_refused_unread(api: Api, editor, seeds: Seeds) -> None:
    """413 by its length alone, before a byte of it came; one that does not say its length, as soon as too much has come."""
    org = await organization(seeds, "free")
    reader, writer = await begun(api, org, 10 * MIB + 1, b"")
    assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 413 ")
    writer.close()
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(400):
            sent += MIB // 4
            yield bytes(MIB // 4)
            await asyncio.sleep(0)

    answer = await put(editor, org, pieces())
    assert (answer.status_code, answer.json()["limit"]) == (413, "max_file_size_mb")
    assert (await put(editor, org, content(10 * MIB))).status_code == 201


async def test_storage_is_a_limit(own_settings, seeds: Seeds, tmp_path: Path) -> None:
    """The blobs of an organization stay below the plan's limit; of two concurrent ones that fit alone one is accepted; a repeat
    needs no room.
    """
    plans = tmp_path / "plans.toml"
    plans.write_text("[plans.pro]\nmax_file_size_mb = 700\nstorage_gb = 1\nrequests_per_minute = 1000\n")
    org, filler = await organization(seeds, "pro"), hexadecimal(content(32))
    await seeds.run("INSERT INTO blobs VALUES ($1, $2, $3)", filler, (1 << 30) - 3 * MIB, NOW)
    await seeds.run("INSERT INTO blob_owners VALUES ($1, $2, 'a/b', $3)", filler, org, NOW)
    with running_api(own_settings(HIGHWATER_API_KEYS=KEYS, HIGHWATER_PLANS=plans)) as api:
        async with api.client("edit-key") as client:
            bodies = [content(2 * MIB) for _ in range(2)]
            answers = await asyncio.gather(*(put(client, org, body) for body in bodies))
            assert sorted(answer.status_code for answer in answers) == [201, 402]
            refused = next(answer for answer in answers if answer.status_code == 402)
            assert refused.json()["limit"] == "storage_gb"
            taken = bodies[answers.index(next(answer for answer in answers if answer.status_code == 201))]
            assert (await put(client, org, taken)).status_code == 200
            assert (await put(client, org, content(MIB))).status_code == 201
            assert (await put(client, org, b"x")).status_code == 402
            assert (await put(client, await organization(seeds, "pro"), b"x")).status_code == 201


async def test_a_suspended_organization_puts_nothing(editor, seeds: Seeds) -> None:
    """403 with the reason; one that owes money may still put."""
    answer = await put(editor, await organization(seeds, status="suspended"), b"x")
    assert (answer.status_code, answer.json()["limit"]) == (403, "suspended")
    assert (await put(editor, await organization(seeds, status="past_due"), b"x")).status_code == 201


# -- memory ------------------------------------------------------------------------------------------------------------------


async def test_fifty_megabytes_in_a_few(stack: Stack, seeds: Seeds) -> None:
    """A document of 50 MiB, put and read, several at once: the API's memory grows by parts and not by documents."""
    org, size = await organization(seeds), 50 * MIB
    with api_process(stack, seeds) as (process, url):
        async with httpx2.AsyncClient(
            base_url=url, headers={"Authorization": "Bearer edit-key"}, timeout=120.0
        ) as client:
            await put(client, org, content(2 * MIB))  # libraries that are loaded once
            resting = peak_bytes(process.pid)
            bodies = [content(size) for _ in range(2)]
            answers = await asyncio.gather(*(put(client, org, body) for body in bodies))
            assert [answer.status_code for answer in answers] == [201, 201]
            put_peak = peak_bytes(process.pid)
            for body in bodies:
                found = await client.get(f"/api/blobs/{hexadecimal(body)}", params={"organization_id": org})
                assert hexadecimal(found.content) == hexadecimal(body)
            read_peak = peak_bytes(process.pid)
    print(f"resting {resting >> 20} MiB, two puts {put_peak >> 20}, reads {read_peak >> 20}")
    assert put_peak - resting < MEMORY_BYTES_MAX
    assert read_peak - resting < MEMORY_BYTES_MAX


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@contextmanager
def api_process(stack: Stack, seeds: Seeds) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The API as a process of its own."""
    port = next(port for port in range(18_080, 18_180) if is_free(port))
    named = {"DATABASE_URL": seeds.url, "HIGHWATER_API_KEYS": KEYS, "HIGHWATER_PORT": str(port)}
    environment = stack.environment(**named, PYTHONPATH=str(ROOT))
    process = subprocess.Popen([sys.executable, "-m", "highwater.api.cli.main", "api"], env=environment, cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(process, url)
        yield process, url
    finally:
        process.terminate()
        process.wait(20)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    def is_ready() -> bool:
        assert process.poll() is None
        try:
            return httpx2.get(f"{url}/readyz", verify=trusts_nobody()).status_code == 200
        except httpx2.TransportError:
            return False

    wait_until(is_ready, "the API is ready")


# -- the store, as workers use it ----------------------------------------------------------------------------------------------


async def test_workers_ask_for_what_their_organization_owns(seeds: Seeds) -> None:
    """`known` and `exists` find owned ones only, `read` returns them in parts; a spool in pieces of any size is the same."""
    org, other, body = fresh("org"), fresh("org"), content(2 * PART_BYTES + 7)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 70_001):
            yield body[start : start + 70_001]

    async with await open_pool(seeds.url) as pool:
        more = {"media_type": "a/b", "now_ms": 1, "bytes_max": len(body)}
        found = await blobs.put(pool, pieces(), organization_id=org, **more)  # type: ignore[arg-type]
        assert (found.sha256, found.size_bytes, found.is_new) == (hexadecimal(body), len(body), True)
        assert set(await blobs.known(pool, [found.sha256, hexadecimal(b"")], org)) == {found.sha256}
        assert (await blobs.exists(pool, [found.sha256], org), await blobs.exists(pool, [found.sha256], other)) == (
            True,
            False,
        )
        assert await blobs.exists(pool, [], other)
        blob = await blobs.find(pool, found.sha256)
        assert blob is not None
        parts = [part async for part in blobs.read(pool, blob)]
    assert [len(part) for part in parts] == [PART_BYTES, PART_BYTES, 7]
    assert b"".join(parts) == body
