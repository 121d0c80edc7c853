"""`highwater ask`: a question to the running API, its progress on a terminal, and the answer.

Invariant: the run belongs to the product, not to this command: a user who stops waiting does not end it and gets its
id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.client import api_client, detail_of, key_for, request
from highwater.api.command.command import FAILED, INTERRUPTED, Command, CommandFailedError, json_option
from highwater.api.command.connection import own_settings
from highwater.api.command.terminal import print_json, say, warn
from highwater.streams.printable import printable

if TYPE_CHECKING:
    import httpx2

# Three attempts per stage with a minute between them (R1.33) take no longer than this in an ordinary case.
TIMEOUT_SECONDS_DEFAULT = 600.0
# An answer takes seconds; each check costs a millisecond.
_LOOK_SECONDS = 0.2


@click.command(cls=Command)
@click.argument("user")
@click.argument("question")
@click.option(
    "--timeout-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_SECONDS_DEFAULT,
    show_default=True,
    help="How long to wait for the answer.",
)
@click.option("--organization", metavar="ID", help="Organization that pays [default: the key's].")
@json_option
def ask(user: str, question: str, timeout_seconds: float, organization: str | None, as_json: bool) -> None:
    """Ask QUESTION as USER and print the answer."""
    context = click.get_current_context()
    settings = own_settings()
    payer = {} if organization is None else {"organization_id": organization}
    with api_client(settings, key_for(settings, user)) as client:
        body = {"user_id": user, "query": question, **payer}
        asked: dict[str, Any] = request(client, "POST", "/api/query", json=body).json()
        request_id = asked["request_id"]
        try:
            with _progress() as show:
                document = _wait(client, asked, timeout_seconds, show)
        except KeyboardInterrupt:
            warn(f"request {request_id} continues without this command")
            context.exit(INTERRUPTED)
    if as_json:
        print_json(document)
    elif document["status"] == "completed":
        say("\n".join(printable(line) for line in document["answer"].splitlines()))
    else:
        raise CommandFailedError(f"request {request_id} failed: {printable(document['error'])}")
    if document["status"] != "completed":
        context.exit(FAILED)


def _wait(
    client: httpx2.Client, submitted: Mapping[str, Any], timeout_seconds: float, show: Callable[[str], None]
) -> dict[str, Any]:
    """Return the status once the run has ended.

    Raises:
        CommandFailedError: it took too long, or the API refuses.
    """
    import time

    import httpx2

    from highwater.streams.clock import monotonic_seconds

    request_id = submitted["request_id"]
    headers = {"X-Min-Position": ",".join(submitted["positions"])}
    until = monotonic_seconds() + timeout_seconds
    said = "accepted"
    while True:
        show(said)
        try:
            answer = client.get(f"/api/query/{request_id}/status", headers=headers)
        except httpx2.TransportError as error:
            said = f"the API does not answer: {str(error) or type(error).__name__}"
        else:
            if answer.status_code == httpx2.codes.OK:
                headers.clear()
                document: dict[str, Any] = answer.json()
                if document["status"] != "processing":
                    return document
                said = document["state"].lower()
            elif answer.status_code != httpx2.codes.SERVICE_UNAVAILABLE:
                raise CommandFailedError(
                    f"request {request_id}: the API answered {answer.status_code}: {detail_of(answer)}"
                )
        if monotonic_seconds() > until:
            raise CommandFailedError(f"request {request_id} has not ended within {timeout_seconds:g} s ({said})")
        time.sleep(_LOOK_SECONDS)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show the status of the run on standard error if that is a terminal."""
    import sys

    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("asking") as status:
        yield lambda said: status.update(escape(said))
