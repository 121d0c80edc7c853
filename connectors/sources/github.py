"""Contents of a GitHub repository, through its REST API: a source is an issue, a pull request, a comment, a release or
a commit.

Invariant: an end event is sent only if the listing was read, and says `full` only if it was read from its first page to
its last; a limit, an exhausted rate or an unavailable service makes it `truncated`, with the place to continue in its
window (R3.24). A listing is not a snapshot, since it shifts while it is read: an entry missing from it is gone only if
GitHub confirms this for that entry.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from highwater.connectors.sources.chunked import Fault, Item, Reading, SourceDocument, time_or_none
from highwater.connectors.sources.files import MARKDOWN, PLAIN
from highwater.connectors.sources.github_pages import GitHubApi, GitHubError
from highwater.connectors.sources.remembered import Page
from highwater.schemas.envelope import ms_from_iso
from highwater.schemas.errors import InvalidEventError

API_URL = "https://api.github.com"
# GitHub's largest page.
ENTRIES_A_PAGE = 100
# Sources that are checked one by one for deletion, in one import; another import checks others.
GONE_ASKED_MAX = 200
_OK, _NOT_FOUND, _GONE, _UNPROCESSABLE = 200, 404, 410, 422
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NUMBER_OF = re.compile(r"/(?:issues|pull)/([0-9]+)")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of content of a repository.

    Attributes:
        path: of the listing, below the repository; also of one entry, followed by its id.
        query: orders the listing so that old pages do not change, if the API supports it.
        key: the field with the id.
        read: an entry's title, text, and publication time; None for another kind.
        takes_since: whether the listing can be limited to changes since a time.
    """

    path: str
    query: Mapping[str, str]
    key: str
    read: Callable[[Mapping[str, Any]], tuple[str, str, str | None] | None]
    takes_since: bool = False
    media_type: str = MARKDOWN


def _text(entry: Mapping[str, Any], name: str) -> str:
    """Return a text of an entry; GitHub has null for an empty one."""
    value = entry.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidEventError("wrong_type", f"its {name} is not a string", field=name)
    return value or ""


def _issue(entry: Mapping[str, Any]) -> tuple[str, str, str] | None:
    if "pull_request" in entry:  # the listing of issues also contains pull requests
        return None
    return _text(entry, "title"), _text(entry, "body"), _text(entry, "created_at")


def _pull(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    return _text(entry, "title"), _text(entry, "body"), _text(entry, "created_at")


def _comment(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    number = _NUMBER_OF.search(_text(entry, "html_url"))
    title = "Comment" if number is None else f"Comment on #{number[1]}"
    return title, _text(entry, "body"), _text(entry, "created_at")


def _release(entry: Mapping[str, Any]) -> tuple[str, str, str] | None:
    if entry.get("draft") is True:
        return None
    title = _text(entry, "name") or _text(entry, "tag_name")
    return title, _text(entry, "body"), _text(entry, "published_at") or _text(entry, "created_at")


def _commit(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    commit = entry.get("commit")
    committer = commit.get("committer") if isinstance(commit, dict) else None
    if not isinstance(commit, dict) or not isinstance(committer, dict):
        raise InvalidEventError("missing_field", "it has no commit with a committer", field="commit")
    subject, _, body = _text(commit, "message").strip().partition("\n")
    return subject, body, _text(committer, "date")


def _time(value: str | None) -> int | None:
    try:
        return time_or_none(ms_from_iso(value)) if value else None
    except (ValueError, OverflowError) as error:
        raise InvalidEventError("not_a_time", f"{value!r:.40} is not a time") from error


_OLDEST_FIRST = {"sort": "created", "direction": "asc"}
KINDS: Mapping[str, Kind] = {
    "issues": Kind("issues", {"state": "all", **_OLDEST_FIRST}, "number", _issue, takes_since=True),
    "pulls": Kind("pulls", {"state": "all", **_OLDEST_FIRST}, "number", _pull),
    "comments": Kind("issues/comments", _OLDEST_FIRST, "id", _comment, takes_since=True),
    "releases": Kind("releases", {}, "id", _release),
    "commits": Kind("commits", {}, "sha", _commit, takes_since=True, media_type=PLAIN),
}


def is_repository(name: str) -> bool:
    """Return whether it can be the name of a repository: OWNER/REPO."""
    return _REPOSITORY.fullmatch(name) is not None and not name.endswith(("/.", "/.."))


class Listing:
    """The entries of one kind in a repository.

    Args:
        api: the connection.
        repository: OWNER/REPO.
        what: a name of `KINDS`.
        known: the pages of the last import, by URL; unchanged ones are not read again.
        needs_full: whether a page that was not imported in full is read again.
        pages_max: how many pages are read at most.
        since: only changes since then, in GitHub's format.
        cursor: where to continue: the cursor of an earlier window.
    """

    is_paged = True

    def __init__(
        self,
        api: GitHubApi,
        repository: str,
        what: str,
        *,
        known: Mapping[str, Page] | None = None,
        needs_full: bool = False,
        pages_max: int = 100,
        since: str | None = None,
        cursor: str | None = None,
    ) -> None:
        self._api = api
        self._repository = repository
        self._what = what
        self._kind = KINDS[what]
        self._known = known or {}
        self._needs_full = needs_full
        self._pages_max = pages_max
        self._since = since
        self._cursor = cursor
        self.identity = ("github", f"{repository}/{what}", api.url)
        self.reading = Reading(is_listed=False, is_whole=False)
        # The current pages, to be remembered once everything they name is acknowledged.
        self.pages: dict[str, Page] = {}
        self.pages_unchanged = 0

    @property
    def first_url(self) -> str:
        """Return the first URL of the listing."""
        query = {"per_page": str(ENTRIES_A_PAGE), **self._kind.query}
        if self._since is not None and self._kind.takes_since:
            query["since"] = self._since
        return f"{self._url(self._kind.path)}?{urlencode(query)}"

    async def documents(self) -> AsyncIterator[Item]:
        """Yield its documents page by page, and faults."""
        begin = self._cursor or self.first_url
        url: str | None = begin
        first = page = _number_of(begin)
        seen: set[str] = set()
        try:
            while url is not None and page - first < self._pages_max:
                items, following = await self._page(url, page)
                for item in items:
                    if item.source_id is None:
                        yield item
                    elif item.source_id not in seen:  # a listing shifts: an entry of one page may also be on the next
                        seen.add(item.source_id)
                        yield item
                url, page = following, page + 1
        except GitHubError as error:
            self.reading.why = str(error)
        finally:
            self._conclude(url, first, page - 1)

    async def gone(self, source_ids: Sequence[str]) -> list[str]:
        """Return those of the first few hundred that GitHub reports as missing.

        Raises:
            GitHubError: it does not answer.
        """
        lets = frozenset({_NOT_FOUND, _GONE} | ({_UNPROCESSABLE} if self._what == "commits" else set()))
        found = []
        for source_id in source_ids[:GONE_ASKED_MAX]:
            name = source_id.removeprefix(f"{self._what}/")
            answer = await self._api.get(self._url(f"{self._kind.path}/{quote(name, safe='')}"), lets=lets)
            if answer.status in lets:
                found.append(source_id)
        return found

    async def _page(self, url: str, page: int) -> tuple[Sequence[SourceDocument | Fault], str | None]:
        """Return the entries of a page, none of an unchanged one, and the URL of the next."""
        known = self._known.get(url)
        if known is not None and self._may_be_same(known):
            answer = await self._api.get(url, etag=known.etag)
            if answer.status != _OK:
                self.pages_unchanged += 1
                self.pages[url] = known
                self.reading.listed.update(known.sources)
                return (), answer.following if answer.has_link else known.following
        else:
            answer = await self._api.get(url)
        if not isinstance(answer.document, list):
            raise GitHubError(f"{urlsplit(url).path}: the response is not a list")
        items = [self._item(f"page {page}, entry {n}", entry) for n, entry in enumerate(answer.document, start=1)]
        found = [item for item in items if item is not None]
        named = [item.source_id for item in found if item.source_id is not None]
        self.reading.passed_over += len(items) - len(found)
        self.reading.listed.update(named)
        if answer.etag is not None and not any(isinstance(item, Fault) for item in found):
            self.pages[url] = Page(answer.etag, answer.following, len(items), named, is_full=False)
        return found, answer.following

    def _may_be_same(self, page: Page) -> bool:
        # A full last page may get a successor without a change of its ETag.
        is_last_and_full = page.following is None and page.entries >= ENTRIES_A_PAGE
        return (page.is_full or not self._needs_full) and not is_last_and_full

    def _source_id(self, entry: Any) -> str | None:
        key = entry.get(self._kind.key) if isinstance(entry, dict) else None
        is_id = _SHA.fullmatch(key) is not None if isinstance(key, str) else type(key) is int and key > 0
        return f"{self._what}/{key}" if is_id else None

    def _item(self, where: str, entry: Any) -> SourceDocument | Fault | None:
        source_id = self._source_id(entry)
        if source_id is None:
            return Fault(where, f"it has no {self._kind.key}")
        try:
            told = self._kind.read(entry)
            if told is None:
                return None
            title, text, published = told
            url = _text(entry, "html_url") or None
            published_at = _time(published)
        except InvalidEventError as error:
            return Fault(source_id, str(error), source_id)
        return SourceDocument(source_id, text, self._kind.media_type, title, url, published_at)

    def _conclude(self, url: str | None, page_from: int, page_to: int) -> None:
        reading = self.reading
        is_all = url is None and self._cursor is None and self._since is None
        reading.is_listed = is_all
        reading.is_whole = is_all
        reading.window = {
            "source": f"github:{self._repository}/{self._what}",
            "page_from": page_from,
            "page_to": page_to,
            "cursor": url,
            "limit": ENTRIES_A_PAGE,
            "truncated": not is_all,
        }

    def _url(self, path: str) -> str:
        return f"{self._api.url}/repos/{self._repository}/{path}"


def _number_of(url: str) -> int:
    """Return the page number in a URL; the first without one."""
    told = parse_qs(urlsplit(url).query).get("page", ["1"])[-1]
    return int(told) if told.isascii() and told.isdigit() and len(told) < 10 else 1
