"""The peers of a conditional read, each one worker on a free port of the loopback, with its configuration in a temporary folder.

nginx serves the same bytes as a file; Varnish holds nginx's answer in its cache; two servers of our own kind answer from Redis
and from memory (`peer_apps.py`). Each ends with its context, by its process id.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx2

from tests import ROOT

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10.0
CHECKOUT = ROOT

_NGINX = """
{user}
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  default_type application/json;
  etag on;
  sendfile on;
  keepalive_requests 1000000000;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {folder}/files; }}
}}
"""
_VARNISH = """
vcl 4.1;
backend nginx {{ .host = "127.0.0.1"; .port = "{backend}"; }}
sub vcl_backend_response {{ set beresp.ttl = 1h; }}
"""


class Peer(NamedTuple):
    """Where a peer answers, and the process that is it, with its children."""

    url: str
    pid: int


def free_port() -> int:
    """A free port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def child(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """A process that ends with the context; its id."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, cwd=CHECKOUT)
        try:
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until_answers(url: str, log: Path) -> httpx2.Response:
    """The first answer of 200."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx2.TransportError):
            answer = httpx2.get(url, headers={"Accept-Encoding": "identity"}, trust_env=False)
            if answer.status_code == httpx2.codes.OK:
                return answer
        time.sleep(0.05)
    raise AssertionError(f"{url} does not answer: {log.read_text(encoding='utf-8', errors='replace')[-1000:]}")


@contextlib.contextmanager
def nginx(folder: Path, body: bytes) -> Iterator[Peer]:
    """The bytes as a file."""
    port, root = free_port(), folder / "nginx"
    (root / "files").mkdir(parents=True)
    (root / "files" / "table").write_bytes(body)
    # A worker of another user could not read the temporary folder.
    user = "user root;" if os.geteuid() == 0 else ""
    (root / "nginx.conf").write_text(_NGINX.format(user=user, folder=root, port=port), encoding="utf-8")
    command = ["nginx", "-p", str(root), "-e", str(root / "nginx.log"), "-c", str(root / "nginx.conf")]
    url, log = f"http://127.0.0.1:{port}/table", root / "out.log"
    with child(command, log) as pid:
        until_answers(url, log)
        yield Peer(url, pid)


@contextlib.contextmanager
def varnish(folder: Path, backend: str) -> Iterator[Peer]:
    """The answer of a backend, cached for an hour."""
    port, root = free_port(), folder / "varnish"
    root.mkdir()
    vcl = root / "default.vcl"
    vcl.write_text(_VARNISH.format(backend=httpx2.URL(backend).port), encoding="utf-8")
    # One pool with a thread for each connection and some to spare; -j none: no other users on a developer's machine.
    command = [
        *("varnishd", "-F", "-j", "none", "-n", str(root / "work"), "-a", f"127.0.0.1:{port}", "-f", str(vcl)),
        *("-s", "malloc,32m", "-p", "thread_pools=1", "-p", "thread_pool_min=100", "-T", "none"),
    ]
    url, log = f"http://127.0.0.1:{port}/table", root / "out.log"
    with child(command, log) as pid:
        until_answers(url, log)
        yield Peer(url, pid)


@contextlib.contextmanager
def peer_app(name: str, folder: Path, body: bytes, headers: Mapping[str, str], redis_url: str) -> Iterator[Peer]:
    """One of `peer_apps.py`, answering with these headers."""
    port, file = free_port(), folder / "body"
    file.write_bytes(body)
    env = {**os.environ, "PEER_HEADERS": json.dumps(dict(headers)), "PEER_BODY": str(file), "REDIS_URL": redis_url}
    url, log = f"http://127.0.0.1:{port}/table", folder / f"{name}.log"
    with child([sys.executable, "-m", "tests.bench.peer_apps", name, str(port)], log, env) as pid:
        until_answers(url, log)
        yield Peer(url, pid)


def missing() -> list[str]:
    """The peers that are not installed."""
    return [name for name, program in (("nginx", "nginx"), ("Varnish", "varnishd")) if shutil.which(program) is None]
