"""Decks written to Google Slides (R2.38): Google Drive converts the file of a deck to a presentation.

Invariants. A job makes one presentation: it carries the job's id, and is searched for before one is made, so a repeat
after a crash or a lost answer finds it. The only permission requested is for the account's own files (`drive.file`).
Answers are bounded in bytes and seconds, and credentials are never shown or logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import httpx2
import orjson
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from highwater.connectors.bounded import bounded_client
from highwater.connectors.jobs.steps import JobFailedError
from highwater.schemas.errors import ConfigurationError, UnavailableError
from highwater.streams.clock import ProductClock, monotonic_seconds
from highwater.streams.jobs.file_names import MEDIA_TYPES
from highwater.streams.models.answers import clean_text
from highwater.streams.settings import Settings

SCOPE = "https://www.googleapis.com/auth/drive.file"
JOB_PROPERTY = "highwater_job"
# A conversion of fifty slides takes some ten seconds.
ANSWER_SECONDS_MAX = 60.0
# Answers are a few hundred bytes.
ANSWER_BYTES_MAX = 256 << 10
# Google issues tokens for an hour, and accepts no assertion that is valid for longer.
_TOKEN_SECONDS, _TOKEN_SPARE_SECONDS = 3_600, 60
_SLIDES = "application/vnd.google-apps.presentation"
_FIELDS = "id,webViewLink"
_DETAIL_CHARACTERS_MAX = 300
_SETTING = "HIGHWATER_GOOGLE_CREDENTIALS_FILE"
# Temporary reasons of a 403.
_PASSING = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "sharingRateLimitExceeded"})


@dataclass(frozen=True, slots=True)
class GoogleCredentials:
    """How tokens are obtained: by a service account (`key`), or a user who allowed it (`refresh`); `token` is a given one."""

    token_uri: str = ""
    account: str = ""
    key: RSAKey | None = None
    refresh: Mapping[str, str] | None = None
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Presentation:
    """A presentation in Google Slides, and its address."""

    file_id: str
    url: str


def read_credentials(settings: Settings) -> GoogleCredentials | None:
    """Return the credentials of the settings; None without any.

    Raises:
        ConfigurationError: they cannot be used; names the setting, never its value.
    """
    path, token = settings.google_credentials_file, settings.google_access_token
    if path is not None and token is not None:
        raise ConfigurationError(f"{_SETTING} and HIGHWATER_GOOGLE_ACCESS_TOKEN are both set; set one of them")
    if path is None:
        return None if token is None else GoogleCredentials(token=token)
    try:
        return _credentials_of(orjson.loads(path.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"{_SETTING}={path} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, JoseError):
        # Not as a cause: it may quote the key.
        raise ConfigurationError(f"{_SETTING}={path} has neither a service account nor an authorized user") from None


def _credentials_of(found: Any) -> GoogleCredentials:
    if not isinstance(found, dict):
        raise TypeError("no object")
    token_uri = str(found.get("token_uri", "https://oauth2.googleapis.com/token"))
    if found["type"] == "service_account":
        return GoogleCredentials(token_uri, str(found["client_email"]), RSAKey.import_key(str(found["private_key"])))
    if found["type"] != "authorized_user":
        raise ValueError("another type")
    refresh = {name: str(found[name]) for name in ("client_id", "client_secret", "refresh_token")}
    return GoogleCredentials(token_uri, refresh=refresh)


class GoogleSlides:
    """The presentations of an account."""

    def __init__(self, credentials: GoogleCredentials, *, api_url: str, folder_id: str | None) -> None:
        """`folder_id`: the folder for them; None: the account's root."""
        self._credentials = credentials
        self._api_url = api_url.rstrip("/")
        self._folder_id = folder_id
        self._client = bounded_client(api_url, seconds_max=ANSWER_SECONDS_MAX, bytes_max=ANSWER_BYTES_MAX)
        # Google uses real time, even if the product's clock is shifted.
        self._clock = ProductClock()
        self._token: tuple[str, float] | None = None

    @classmethod
    def of(cls, settings: Settings) -> GoogleSlides | None:
        """Return the account of the settings; None without one.

        Raises:
            ConfigurationError: its credentials or its address cannot be used.
        """
        credentials = read_credentials(settings)
        if credentials is None:
            return None
        parts = urlsplit(settings.google_api_url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigurationError("HIGHWATER_GOOGLE_API_URL is not an HTTP address")
        return cls(credentials, api_url=settings.google_api_url, folder_id=settings.google_folder_id)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def write(self, job_id: str, title: str, file: bytes) -> Presentation:
        """Return the presentation of a job, made from the file of a deck if it does not exist yet.

        Raises:
            JobFailedError: Google refuses it permanently; gives the reason.
            UnavailableError: Google does not answer, or has reached a temporary limit.
        """
        return await self._find(job_id) or await self._make(job_id, title, file)

    async def _find(self, job_id: str) -> Presentation | None:
        wanted = f"appProperties has {{ key='{JOB_PROPERTY}' and value='{job_id}' }} and trashed = false"
        parameters = {"q": wanted, "fields": f"files({_FIELDS})", "pageSize": "1", "corpora": "allDrives"}
        parameters |= {"supportsAllDrives": "true", "includeItemsFromAllDrives": "true"}
        found = await self._asked("GET", "/drive/v3/files", parameters)
        files = found.get("files") or ()
        return _presentation(files[0]) if files else None

    async def _make(self, job_id: str, title: str, file: bytes) -> Presentation:
        about: dict[str, Any] = {"name": title, "mimeType": _SLIDES, "appProperties": {JOB_PROPERTY: job_id}}
        if self._folder_id is not None:
            about["parents"] = [self._folder_id]
        # A job's id is a UUID, which after two dashes occurs in none of our JSON and in no ZIP archive.
        boundary = f"deck-{job_id}"
        body = b"".join(
            (
                f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".encode(),
                orjson.dumps(about),
                f"\r\n--{boundary}\r\nContent-Type: {MEDIA_TYPES['pptx']}\r\n\r\n".encode(),
                file,
                f"\r\n--{boundary}--\r\n".encode(),
            )
        )
        parameters = {"uploadType": "multipart", "fields": _FIELDS, "supportsAllDrives": "true"}
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        return _presentation(await self._asked("POST", "/upload/drive/v3/files", parameters, headers, body))

    async def _asked(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Any:
        """Return the answer of the API; with a new token if the current one is no longer accepted."""
        for is_last in (False, True):
            authorized = {**(headers or {}), "Authorization": f"Bearer {await self._access_token()}"}
            request = self._client.build_request(
                method, f"{self._api_url}{path}", params=dict(parameters), headers=authorized, content=body
            )
            status, answer = await self._sent(request)
            if status == HTTPStatus.UNAUTHORIZED and not is_last:
                self._token = None
                continue
            break
        if status == HTTPStatus.OK and isinstance(answer, dict):
            return answer
        raise _refusal(status, answer)

    async def _access_token(self) -> str:
        if self._credentials.token is not None:
            return self._credentials.token
        if self._token is None or self._token[1] <= monotonic_seconds():
            request = self._client.build_request("POST", self._credentials.token_uri, data=self._grant())
            status, answer = await self._sent(request)
            if status != HTTPStatus.OK or not isinstance(answer, dict) or "access_token" not in answer:
                raise _refusal(status, answer)
            seconds = min(int(answer.get("expires_in", _TOKEN_SECONDS)), _TOKEN_SECONDS) - _TOKEN_SPARE_SECONDS
            self._token = str(answer["access_token"]), monotonic_seconds() + seconds
        return self._token[0]

    def _grant(self) -> dict[str, str]:
        """Return the parameters of a token request (RFC 7523, or RFC 6749, section 6)."""
        credentials = self._credentials
        if credentials.key is None:
            return {"grant_type": "refresh_token", **(credentials.refresh or {})}
        now = self._clock() // 1000
        claims = {"iss": credentials.account, "scope": SCOPE, "aud": credentials.token_uri}
        claims_in_time = {**claims, "iat": now, "exp": now + _TOKEN_SECONDS}
        assertion = jwt.encode({"alg": "RS256", "typ": "JWT"}, claims_in_time, credentials.key)
        return {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": assertion}

    async def _sent(self, request: httpx2.Request) -> tuple[int, Any]:
        """Return status and JSON of an answer; None if it is not JSON.

        Raises:
            UnavailableError: there is no answer.
        """
        try:
            answer = await self._client.send(request)
        # Not as a cause: the error of a library may quote the request with its token.
        except httpx2.HTTPError as error:
            raise UnavailableError(f"Google does not answer: {type(error).__name__}") from None
        try:
            return answer.status_code, orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            return answer.status_code, None


def _presentation(found: Mapping[str, Any]) -> Presentation:
    file_id = str(found["id"])
    return Presentation(
        file_id, str(found.get("webViewLink") or f"https://docs.google.com/presentation/d/{file_id}/edit")
    )


def _refusal(status: int, answer: Any) -> JobFailedError | UnavailableError:
    """Return the error for a status other than 200: temporary or final."""
    told = answer if isinstance(answer, dict) else {}
    error = told.get("error")
    detail = error.get("message") if isinstance(error, dict) else told.get("error_description") or error
    reasons = {one.get("reason") for one in error.get("errors") or ()} if isinstance(error, dict) else set()
    text = f"Google answered {status}: {clean_text(str(detail or 'no reason'))[:_DETAIL_CHARACTERS_MAX]}"
    passes = (
        status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
        or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    )
    if passes or reasons & _PASSING:
        return UnavailableError(text)
    return JobFailedError(text)
