"""A client of GitHub's REST API: page by page, only what has changed, and within its rate limits.

Invariant: an answer is complete or an error with the reason; attempts, time and memory are limited. Rate limits are
obeyed before the next request. The token is sent only to the service's own address, wherever a `Link` or a redirect
points.

A limit is given by `retry-after` (seconds), else by `x-ratelimit-reset` (seconds since 1970, by the clock of the
service, so it is compared with the `Date` of the same answer), as
https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api describes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import httpx2
import orjson

from highwater.connectors.bounded import UnusableAnswerError, bounded_client
from highwater.schemas.errors import ConfigurationError, HighwaterError
from highwater.streams.clock import to_ms
from highwater.streams.retry import RetryPolicy

# A page of a hundred issues of the maximum length (64 KiB of text) is 7 MB, with every letter escaped some 40 MB.
RESPONSE_BYTES_MAX = 48 << 20
# Without a byte, and for a whole page: 48 MiB at 160 kB a second.
_TIMEOUT_SECONDS, _PAGE_SECONDS_MAX = 30.0, 300.0
# Pauses for a service that is briefly unavailable: 1, 2, 4 and 8 s between five attempts.
_AWAY = RetryPolicy(first_ms=1_000, most_ms=8_000, attempts_max=5)
# The pause if a limit has no end.
_UNTOLD_SECONDS = 60.0
_REDIRECTS_MAX = 5
_DETAIL_CHARACTERS_MAX = 200
# It is stored in the window of each end event, which has a size limit.
_URL_CHARACTERS_MAX = 2_048
_LINK = re.compile(r'<([^<>]*)>((?:\s*;\s*[\w-]+\s*=\s*(?:"[^"]*"|[^\s",;]+))*)')
_SECONDS = re.compile(r"[0-9]{1,12}")
_REL = re.compile(r';\s*rel\s*=\s*"?([^";]+)"?', re.IGNORECASE)
_TOKEN = re.compile(r"[\x21-\x7e]+")
_REDIRECTS = frozenset({301, 302, 307, 308})
_LIMITED = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS})

Sleep = Callable[[float], Awaitable[None]]


class GitHubError(HighwaterError):
    """GitHub refused the request. Read its message; a private repository needs GITHUB_TOKEN."""


class RateLimitedError(GitHubError):
    """GitHub allows no more requests for now. Continue later, or with --wait."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a request. `status`: 200, 304 if nothing changed, or one of the statuses in `lets`."""

    status: int
    document: Any
    etag: str | None
    following: str | None
    has_link: bool


class GitHubApi:
    """A connection to the API.

    Args:
        url: its address.
        token: the authorization to send.
        wait_seconds: how long rate limits may delay it in total.
        sleep: how it waits.
    """

    def __init__(
        self, url: str, *, token: str | None = None, wait_seconds: float = 60.0, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.url = url.rstrip("/")
        self._origin = _origin(self.url)
        self._left_seconds = wait_seconds
        self._due_seconds = 0.0
        self._sleep = sleep
        headers = {
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "highwater-import",
        }
        if token is not None:
            if _TOKEN.fullmatch(token) is None:  # the client's own error would quote it
                raise ConfigurationError("GITHUB_TOKEN has characters that a header cannot contain")
            headers["Authorization"] = f"Bearer {token}"
        self._client = bounded_client(
            url,
            seconds_max=_PAGE_SECONDS_MAX,
            bytes_max=RESPONSE_BYTES_MAX,
            headers=headers,
            idle_seconds_max=_TIMEOUT_SECONDS,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, url: str, *, etag: str | None = None, lets: frozenset[int] = frozenset()) -> Answer:
        """Request a page.

        Args:
            url: its URL.
            etag: of the known page: the answer is 304 if it is unchanged.
            lets: other statuses that are not errors.

        Raises:
            RateLimitedError: GitHub requires a longer wait than is allowed.
            GitHubError: it refuses, is unavailable, or sends an invalid answer.
        """
        attempt = 1
        for_sure = frozenset({HTTPStatus.OK, *lets}) | ({HTTPStatus.NOT_MODIFIED} if etag else set())
        while True:
            await self._wait()
            try:
                response, body = await self._send(url, etag)
            except UnusableAnswerError as error:
                raise GitHubError(f"{_path(url)}: {error}") from error
            except httpx2.InvalidURL as error:
                raise GitHubError(f"{url[:_DETAIL_CHARACTERS_MAX]} is not an address: {error}") from error
            except httpx2.RequestError as error:
                attempt = await self._again(attempt, url, str(error) or type(error).__name__)
                continue
            if response.status_code in for_sure:
                return _answer(response, body, self.checked)
            if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                attempt = await self._again(attempt, url, _said(response, body))
            elif not self._is_limited(response, body):
                raise GitHubError(f"{_path(url)}: {_said(response, body)}")

    def checked(self, url: str) -> str:
        """Return a URL if it belongs to this service.

        Raises:
            GitHubError: it does not.
        """
        if _origin(url) != self._origin or len(url) > _URL_CHARACTERS_MAX:
            raise GitHubError(
                f"GitHub redirects to {url[:_DETAIL_CHARACTERS_MAX]}, which is not an address at {self.url}"
            )
        return url

    async def _send(self, url: str, etag: str | None) -> tuple[httpx2.Response, bytes]:
        headers = {} if etag is None else {"If-None-Match": etag}
        for _ in range(_REDIRECTS_MAX + 1):
            response = await self._client.get(self.checked(url), headers=headers)
            self._note_limit(response.headers)
            target = response.headers.get("location")
            if response.status_code not in _REDIRECTS or target is None:
                return response, response.content
            url = _joined(url, target)
        raise GitHubError(f"{_path(url)}: more than {_REDIRECTS_MAX} redirects")

    async def _again(self, attempt: int, url: str, why: str) -> int:
        """Wait before the next attempt; return its number."""
        wait_ms = _AWAY.wait_ms(attempt)
        if wait_ms is None:
            raise GitHubError(f"{_path(url)}: no answer after {attempt} attempts: {why}")
        await self._sleep(wait_ms / 1000)
        return attempt + 1

    def _note_limit(self, headers: Mapping[str, str]) -> None:
        """Note an exhausted rate: the next request waits for the reset, after any outcome of this one."""
        if headers.get("x-ratelimit-remaining") == "0":
            self._due_seconds = _until_reset(headers)

    def _is_limited(self, response: httpx2.Response, body: bytes) -> bool:
        """Return whether it was refused by its rate limit; the next request then waits as long as the service requires."""
        if response.status_code not in _LIMITED:
            return False
        headers = response.headers
        after = _retry_after(headers)
        if after is not None:
            self._due_seconds = after
        elif headers.get("x-ratelimit-remaining") == "0":
            return True  # until its reset, as noted from its headers
        elif response.status_code == HTTPStatus.TOO_MANY_REQUESTS or b"rate limit" in body.lower():
            self._due_seconds = _UNTOLD_SECONDS
        else:
            return False
        return True

    async def _wait(self) -> None:
        due, self._due_seconds = self._due_seconds, 0.0
        if due > self._left_seconds:
            raise RateLimitedError(
                f"GitHub allows no more requests for {due:,.0f} s; continue then, or use --wait {due:.0f}"
            )
        if due > 0:
            self._left_seconds -= due
            await self._sleep(due)


def _answer(response: httpx2.Response, body: bytes, checked: Callable[[str], str]) -> Answer:
    document = None
    if response.status_code == HTTPStatus.OK:
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise GitHubError(f"{_path(str(response.url))}: the answer is not JSON: {error}") from error
    link = response.headers.get("link")
    following = next_link(link or "")
    return Answer(
        response.status_code,
        document,
        response.headers.get("etag"),
        None if following is None else checked(_joined(str(response.url), following)),
        link is not None,
    )


def _joined(base: str, address: str) -> str:
    try:
        return urljoin(base, address)
    except ValueError as error:
        raise GitHubError(f"GitHub redirects to {address[:_DETAIL_CHARACTERS_MAX]}, which is not an address") from error


def next_link(header: str) -> str | None:
    """Return the URL of `rel="next"` in a Link header (RFC 8288)."""
    for address, parameters in _LINK.findall(header):
        rel = _REL.search(parameters)
        if rel is not None and "next" in rel[1].lower().split():
            return str(address)
    return None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `retry-after`, at least one."""
    told = headers.get("retry-after", "").strip()
    return float(max(1, int(told))) if _SECONDS.fullmatch(told) else None


def _until_reset(headers: Mapping[str, str]) -> float:
    """Return the seconds until the limit ends, by the clock of the service; plus one, since both times are whole seconds."""
    reset, date = headers.get("x-ratelimit-reset", "").strip(), headers.get("date")
    try:
        now_ms = to_ms(parsedate_to_datetime(date or ""))
    except (ValueError, TypeError):
        return _UNTOLD_SECONDS
    if _SECONDS.fullmatch(reset) is None:
        return _UNTOLD_SECONDS
    return max(0.0, int(reset) - now_ms / 1000) + 1


def _said(response: httpx2.Response, body: bytes) -> str:
    """Return a refusal in one line."""
    try:
        message = str(orjson.loads(body)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = body[:_DETAIL_CHARACTERS_MAX].decode("utf-8", "replace")
    said = " ".join(message.split())[:_DETAIL_CHARACTERS_MAX]
    return f"{response.status_code} {response.reason_phrase}{f': {said}' if said else ''}"


def _origin(url: str) -> tuple[str, str, int | None]:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", url, None


def _path(url: str) -> str:
    return urlsplit(url).path
