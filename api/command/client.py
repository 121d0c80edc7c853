"""The client of the running API for commands: its address, a key for it, and the meaning of its refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from highwater.api.command.command import CommandFailedError
from highwater.api.command.connection import api_address, api_trust, own_settings
from highwater.streams.settings import environment_with_file

if TYPE_CHECKING:
    import httpx2

    from highwater.streams.settings import Settings

_REQUEST_SECONDS = 30.0
# The API's limit of a page.
_PAGE_MAX = 1_000


def any_key(settings: Settings) -> str | None:
    """Return the key to send: the command's own, else the API key that can read most; None without keys."""
    if settings.api_key is not None:
        return settings.api_key
    from highwater.api.core.auth import parse_api_keys

    keys = parse_api_keys(settings.api_keys)
    if not keys:
        return None
    return max(keys, key=lambda one: (not one.principal.is_bound, one.principal.role)).secret.decode()


def key_for(settings: Settings, user_id: str) -> str | None:
    """Return the command's own key, else the first API key that may submit for a user; None without keys.

    An organization pays for submissions, so a key bound to a user without one may not submit.

    Raises:
        CommandFailedError: no key may.
    """
    if settings.api_key is not None:
        return settings.api_key
    from highwater.api.core.access import Access, OwnedBy, Owner, owner_refusal
    from highwater.api.core.auth import Role, parse_api_keys

    keys = parse_api_keys(settings.api_keys)
    if not keys:
        return None
    asking = Access(Role.EDITOR, owned_by=OwnedBy.USER)
    for key in keys:
        one = key.principal
        has_payer = one.role is Role.ADMIN or not one.is_bound or one.organization_id is not None
        if has_payer and owner_refusal(asking, one, Owner(user_id)) is None:
            return key.secret.decode()
    raise CommandFailedError(f"no key in HIGHWATER_API_KEYS may call {user_id}")


@contextmanager
def api_client(settings: Settings, api_key: str | None) -> Iterator[httpx2.Client]:
    """Yield a client of the API with that key; None: without a key."""
    import httpx2

    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    url = api_address(settings, environment_with_file())
    # trust_env off: a proxy of the environment cannot reach this machine's own ports.
    verify = api_trust(settings, url)
    with httpx2.Client(
        base_url=url, headers=headers, timeout=_REQUEST_SECONDS, trust_env=False, verify=verify
    ) as client:
        yield client


def ask_api(method: str, path: str, **more: Any) -> Any:
    """Return the document with which the running API answers a request under `any_key`.

    Raises:
        click.UsageError: the request is invalid.
        CommandFailedError: the API is unavailable, or refuses.
    """
    settings = own_settings()
    with api_client(settings, any_key(settings)) as client:
        return request(client, method, path, **more).json()


def path_segment(value: str, name: str) -> str:
    """Return the value of an argument as a segment of a path.

    Raises:
        click.UsageError: it is empty, so the path would name something else.
    """
    if not value:
        raise click.UsageError(f"{name} is empty", click.get_current_context())
    return quote(value, safe="")


def ask_pages(path: str, member: str, limit: int, parameters: Mapping[str, str]) -> list[Any]:
    """Return the first `limit` rows of a paged list, which are in `member` of each page; errors as of `ask_api`."""
    settings = own_settings()
    found: list[Any] = []
    cursor: dict[str, str] | None = {}
    with api_client(settings, any_key(settings)) as client:
        while len(found) < limit and cursor is not None:
            page = {"limit": str(min(limit - len(found), _PAGE_MAX)), **cursor}
            document = request(client, "GET", path, params={**parameters, **page}).json()
            found += document[member]
            cursor = None if document["next_cursor"] is None else {"cursor": document["next_cursor"]}
    return found


def request(client: httpx2.Client, method: str, path: str, **more: Any) -> httpx2.Response:
    """Return a 2xx answer.

    Raises:
        click.UsageError: the request is invalid.
        CommandFailedError: the API is unavailable, or refuses.
    """
    import httpx2

    try:
        answer = client.request(method, path, **more)
    except httpx2.HTTPError as error:
        raise CommandFailedError(
            f"the API at {client.base_url} does not answer ({str(error) or type(error).__name__}); `highwater up` starts one"
        ) from error
    check(answer)
    return answer


def check(answer: httpx2.Response) -> None:
    """Refuse an answer that is not 2xx.

    Raises:
        click.UsageError: the request is invalid.
        CommandFailedError: the API refuses.
    """
    import httpx2

    if answer.status_code == httpx2.codes.UNPROCESSABLE_CONTENT:
        raise click.UsageError(detail_of(answer), click.get_current_context())
    if not answer.is_success:
        raise CommandFailedError(f"the API answered {answer.status_code}: {detail_of(answer)}")


def detail_of(answer: httpx2.Response) -> str:
    """Return the detail of a problem."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
