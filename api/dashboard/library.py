"""NiceGUI, loaded once per process: its application with our pages, without external requests.

Invariant: this module is imported only when the first browser arrives (`api/dashboard/mount.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import jinja2
from fastapi import FastAPI
from nicegui import client, ui
from nicegui.dependencies import Component, register_vue_component

from highwater.api.dashboard import sockets
from highwater.api.dashboard.hub import Hub
from highwater.api.dashboard.mount import NONCE_KEY
from highwater.api.dashboard.pages import (
    browse,
    chunks,
    group,
    groups,
    insight,
    job,
    jobs,
    league,
    letters,
    match,
    overview,
    policies,
    queries,
    query,
    schema,
    schemas,
    sql,
    topic,
    topics,
    user,
)
from highwater.api.dashboard.zoom_map import ZoomMap

__all__ = ["Hub", "application"]

# A browser that loses its connection for this long, on a train or asleep, returns to the unchanged page.
RECONNECT_SECONDS = 10.0
# In the place of the library's script of `ui.html`, which replaces all that it shows whenever a figure changes.
_LIVE_HTML = Path(__file__).with_name("live_html.js")
_ZOOM_MAP = Path(__file__).with_name("zoom_map.js")


class NoncedTemplates(jinja2.FileSystemLoader):
    """The library's own templates, with the response's nonce on each script.

    The nonce is put into the template and not into the result, so that no text of a page gets one.
    """

    def get_source(self, environment: jinja2.Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        """Return the text of a template."""
        text, name, is_current = super().get_source(environment, template)
        return text.replace("<script", f"<script nonce=\"{{{{ request.scope['{NONCE_KEY}'] }}}}\""), name, is_current


def own_component(path: Path) -> Component:
    """Register our script at an address that changes with its content, since browsers keep it for a year (R4.26).

    The library makes addresses of the times of files, which are the same in every release of a reproducible build.
    """
    return register_vue_component(path, max_time=number_of(path.read_bytes()))


def number_of(content: bytes) -> float:
    """Return a number that another content does not have, in place of the time of its file."""
    return float(int.from_bytes(sha256(content).digest()[:6], "big"))  # six bytes are exact


@functools.cache
def application() -> FastAPI:
    """Return the application that serves pages and assets; the same one for every caller, since the library has only one."""
    for module in (
        overview,
        topics,
        topic,
        groups,
        group,
        schemas,
        schema,
        browse,
        user,
        insight,
        league,
        match,
        queries,
        query,
        jobs,
        job,
        chunks,
        letters,
        policies,
        sql,
    ):
        module.register()
    sockets.guard()
    ui.html.component = own_component(_LIVE_HTML)
    ZoomMap.component = own_component(_ZOOM_MAP)
    client.templates.env.loader = NoncedTemplates(str(Path(client.__file__).parent / "templates"))
    found = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    ui.run_with(
        found,
        title="Highwater",
        dark=None,
        language="en-US",
        favicon="/favicon.ico",  # ours (api/core/icon.py); the library's has 16 kB
        tailwind=False,
        reconnect_timeout=RECONNECT_SECONDS,
        # Nothing is bound to attributes, so nothing has to be compared ten times a second.
        binding_refresh_interval=None,
        show_welcome_message=False,
    )
    return found
