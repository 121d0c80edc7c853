"""Varnish before an API: as it is shipped, and set up to serve old pages by `CDN-Cache-Control` (RFC 9213)."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx2

from tests.bench.http_peers import child, free_port, until_answers

VARNISHD = os.environ.get("VARNISHD") or shutil.which("varnishd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
LEFT_OUT = "there is no Varnish; `apt install varnish` has these tests run"

SHIPPED = """
vcl 4.1;
backend api {{ .host = "127.0.0.1"; .port = "{port}"; }}
"""
# A page within its stale TTL is kept, and served while it is fetched again.
SERVES_STALE = """
vcl 4.1;
import std;
backend api {{ .host = "127.0.0.1"; .port = "{port}"; }}
sub vcl_backend_response {{
  if (beresp.http.CDN-Cache-Control ~ "stale-while-revalidate=") {{
    set beresp.ttl = 0s;
    set beresp.grace = std.duration(
      regsub(beresp.http.CDN-Cache-Control, ".*stale-while-revalidate=([0-9]+).*", "\\1") + "s", 0s);
    return (deliver);
  }}
}}
sub vcl_deliver {{ set resp.http.X-Hits = obj.hits; }}
"""


@contextlib.contextmanager
def varnish(folder: Path, api: str, vcl: str) -> Iterator[str]:
    """The address of a Varnish that asks this API; it ends with the context."""
    assert VARNISHD is not None
    port = free_port()
    file = folder / "default.vcl"
    file.write_text(vcl.format(port=httpx2.URL(api).port), encoding="utf-8")
    # -j none: no other users on a developer's machine.
    command = [
        *(VARNISHD, "-F", "-j", "none", "-n", str(folder / "work"), "-a", f"127.0.0.1:{port}", "-f", str(file)),
        *("-s", "malloc,32m", "-p", "thread_pools=1", "-T", "none"),
    ]
    url, log = f"http://127.0.0.1:{port}", folder / "out.log"
    with child(command, log):
        until_answers(f"{url}/healthz", log)
        yield url
