"""The running API as commands use it: its address, a key for it, and what its refusals mean for the command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.command import CommandFailedError
from highwater.api.command.connection import api_address, api_trust, own_settings
from highwater.streams.settings import environment_with_file

if TYPE_CHECKING:
    import httpx

    from highwater.streams.settings import Settings

_REQUEST_SECONDS = 30.0
# What the API lists in one page at most.
_PAGE_MAX = 1_000


def any_key(settings: Settings) -> str | None:
    """The key to send: the own one, else that of the API's keys that sees most; None where there are no keys."""
    if settings.api_key is not None:
        return settings.api_key
    from highwater.api.core.auth import parse_api_keys

    keys = parse_api_keys(settings.api_keys)
    if not keys:
        return None
    return max(keys, key=lambda one: (not one.principal.is_bound, one.principal.role)).secret.decode()


def key_for(settings: Settings, user_id: str) -> str | None:
    """The own key, else the first of the API's keys that may ask and submit for a user; None where there are no keys.

    What is asked and submitted is paid by an organization, so a key that is bound to a user of none may not.

    Raises:
        CommandFailedError: none may.
    """
    if settings.api_key is not None:
        return settings.api_key
    from highwater.api.core.access import Access, Owner, Whose, owner_refusal
    from highwater.api.core.auth import Role, parse_api_keys

    keys = parse_api_keys(settings.api_keys)
    if not keys:
        return None
    asking = Access(Role.EDITOR, whose=Whose.USER)
    for key in keys:
        one = key.principal
        has_payer = one.role is Role.ADMIN or not one.is_bound or one.organization_id is not None
        if has_payer and owner_refusal(asking, one, Owner(user_id)) is None:
            return key.secret.decode()
    raise CommandFailedError(f"no key in HIGHWATER_API_KEYS may call {user_id}")


@contextmanager
def api_client(settings: Settings, api_key: str | None) -> Iterator[httpx.Client]:
    """A client of the API with that key; None where there are no keys."""
    import httpx

    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    url = api_address(settings, environment_with_file())
    # trust_env off: a proxy of the environment is not on the way to this machine's own ports.
    verify = api_trust(settings, url)
    with httpx.Client(
        base_url=url, headers=headers, timeout=_REQUEST_SECONDS, trust_env=False, verify=verify
    ) as client:
        yield client


def ask_api(method: str, path: str, **more: Any) -> Any:
    """The document that the running API answers with, asked under `any_key`.

    Raises:
        click.UsageError: what was asked is wrong.
        CommandFailedError: the API is away, or will not.
    """
    settings = own_settings()
    with api_client(settings, any_key(settings)) as client:
        return request(client, method, path, **more).json()


def ask_pages(path: str, member: str, limit: int, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
    """The first `limit` rows of a paged list, which are in `member` of each page; errors as of `ask_api`."""
    settings = own_settings()
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] | None = {}
    with api_client(settings, any_key(settings)) as client:
        while len(found) < limit and cursor is not None:
            page = {"limit": str(min(limit - len(found), _PAGE_MAX)), **cursor}
            document = request(client, "GET", path, params={**parameters, **page}).json()
            found += document[member]
            cursor = None if document["next_cursor"] is None else {"cursor": document["next_cursor"]}
    return found


def request(client: httpx.Client, method: str, path: str, **more: Any) -> httpx.Response:
    """An answer of the 200s.

    Raises:
        click.UsageError: what was asked is wrong.
        CommandFailedError: the API is away, or will not.
    """
    import httpx

    try:
        answer = client.request(method, path, **more)
    except httpx.HTTPError as error:
        raise CommandFailedError(
            f"the API at {client.base_url} does not answer ({str(error) or type(error).__name__}); `highwater up` starts one"
        ) from error
    check(answer)
    return answer


def check(answer: httpx.Response) -> None:
    """Refuse an answer that is not of the 200s.

    Raises:
        click.UsageError: what was asked is wrong.
        CommandFailedError: the API will not.
    """
    import httpx

    if answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
        raise click.UsageError(detail_of(answer), click.get_current_context())
    if not answer.is_success:
        raise CommandFailedError(f"the API answered {answer.status_code}: {detail_of(answer)}")


def detail_of(answer: httpx.Response) -> str:
    """What a problem says of itself."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
