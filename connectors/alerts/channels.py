"""Sends messages to people: by mail, by webhook, or as a line in the log; alerts of failed runs, and what is sent daily.

Invariant: sending ends within its time limit, delivered or with a `ChannelError`; no text of a failed run can add a
header, and no error shows a password or an address that holds a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import smtplib
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from highwater.connectors.kafka.records import Event
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import ConfigurationError, HighwaterError
from highwater.schemas.queries import RunFailed
from highwater.streams.clock import Clock, to_datetime
from highwater.streams.telemetry import get_log

# A working server answers within a second or two; the limit of each SMTP answer, and of a whole webhook.
CALL_SECONDS_MAX = 10.0
# A mail takes about ten answers; one that takes longer is given up.
MAIL_SECONDS_MAX = 30.0
# What fits a readable mail; the end of a stack trace says most.
_ERROR_CHARACTERS_MAX, _STACK_CHARACTERS_MAX = 2_000, 20_000
_WORD_CHARACTERS_MAX = 100
_PORTS: Mapping[str, int] = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
_NO_ANSWER = "no answer in time"
# SMTP codes from here on are permanent; HTTP codes below this, except for temporary ones.
_MADE_FINAL = 500
_PASSES = frozenset({408, 409, 425, 429})
# Control characters, line separators that some readers interpret, lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_log = get_log("alerts")


class ChannelError(HighwaterError):
    """An alert was not delivered. See the reason; the alert is in the dead-letter topic of `queries.run-failed`."""

    def __init__(self, reason: str, *, is_final: bool) -> None:
        super().__init__(reason)
        self.is_final = is_final  # the same message will be refused, however often it is sent


@dataclass(frozen=True, slots=True)
class Alert:
    """A failed run as a message: every text is safe to show."""

    position: str
    request_id: str
    user_id: str
    stage: str
    reason: str
    error: str
    stack: str
    at: str

    @property
    def look(self) -> str:
        """Return how to see more."""
        return f"GET /api/query/{self.request_id}/timeline"

    @property
    def members(self) -> dict[str, str]:
        """Return the same for a program."""
        names = ("position", "request_id", "user_id", "stage", "reason", "error", "stack", "at", "look")
        return {name: getattr(self, name) for name in names}


def alert_of(event: Event[RunFailed]) -> Alert:
    """Return the alert of an event of `queries.run-failed`."""
    value = event.value
    return Alert(
        position=str(event.record.position),
        request_id=_word(value["request_id"]),
        user_id=_word(value["user_id"]),
        stage=_word(value["stage"]),
        reason=_word(value["reason"]),
        error=_text(value["error"])[:_ERROR_CHARACTERS_MAX],
        stack=_text(value["stack"])[-_STACK_CHARACTERS_MAX:],
        at=iso_from_ms(value["at"]),
    )


def _text(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n"))


def _word(text: str) -> str:
    """Return one short line, which is safe in a header."""
    return " ".join(_text(text).split())[:_WORD_CHARACTERS_MAX]


@dataclass(frozen=True, slots=True)
class Message:
    """What a channel sends: `subject` and `text` to a person, `body` to a program.

    `key` is the same when the message is repeated, so that a repeat is recognized.
    """

    key: str
    subject: str
    text: str
    body: Mapping[str, Any]


class Channel(Protocol):
    """A way to send messages. `is_paced`: each message disturbs a person, so storms are summarized."""

    name: str
    is_paced: bool

    async def send(self, message: Message) -> None:
        """Send one message.

        Raises:
            ChannelError: it was not delivered.
        """

    async def close(self) -> None:
        """Close its connections."""


class LogChannel:
    """The default without configuration: one line per alert, at error level."""

    name = "log"
    is_paced = False

    async def send(self, message: Message) -> None:
        """Write the line."""
        _log.error(**message.body)

    async def close(self) -> None:
        """Do nothing."""


class WebhookChannel:
    """A POST of JSON; any 2xx is a delivery. `Idempotency-Key` is the same when it is repeated."""

    name = "webhook"
    is_paced = True

    def __init__(self, url: str, setting: str = "HIGHWATER_ALERT_WEBHOOK_URL") -> None:
        parts = _split(url, setting)
        if parts.scheme not in ("http", "https"):
            raise ConfigurationError(f"{setting} is not an http:// or https:// address")
        self._url = url
        from highwater.connectors.bounded import bounded_client  # noqa: PLC0415 - only who has a webhook needs it

        self._client = bounded_client(url, seconds_max=CALL_SECONDS_MAX, bytes_max=0)

    async def send(self, message: Message) -> None:
        """Post it.

        Raises:
            ChannelError: no 2xx came within the limit.
        """
        import httpx2  # noqa: PLC0415 - as above

        headers = {"Idempotency-Key": message.key}
        try:
            async with self._client.stream("POST", self._url, json=message.body, headers=headers) as response:
                status = response.status_code  # the rest of the answer is not read
        except httpx2.TimeoutException:
            raise ChannelError(f"no answer within {CALL_SECONDS_MAX:g} s", is_final=False) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:  # its text and its request may contain the address
            raise ChannelError(f"cannot be reached: {type(error).__name__}", is_final=False) from None
        if not httpx2.codes.is_success(status):
            is_final = status < _MADE_FINAL and status not in _PASSES
            raise ChannelError(f"answered with status {status}", is_final=is_final)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()


class MailChannel:
    """A mail by SMTP, with a connection per mail: alerts are rare, and servers close idle connections."""

    name = "smtp"
    is_paced = True

    def __init__(
        self, url: str, sender: str, to: Sequence[str], clock: Clock, setting: str = "HIGHWATER_ALERT_EMAIL_TO"
    ) -> None:
        parts = _split(url, "HIGHWATER_ALERT_SMTP_URL")
        if parts.scheme not in _PORTS or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ConfigurationError(
                "HIGHWATER_ALERT_SMTP_URL is not smtp://, smtp+starttls:// or smtps://[user:password@]host[:port]"
            )
        self._scheme, self._host = parts.scheme, parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._user = None if parts.username is None else unquote(parts.username)
        self._password = unquote(parts.password or "")
        if not f"{self._user or ''}{self._password}".isascii():
            raise ConfigurationError("HIGHWATER_ALERT_SMTP_URL: user and password must be ASCII")
        self._sender = _address(sender, "HIGHWATER_ALERT_EMAIL_FROM")
        self._to = [_address(one, setting) for one in to]
        self._clock = clock

    async def send(self, message: Message) -> None:
        """Send one mail to all recipients.

        Raises:
            ChannelError: no recipient was accepted.
        """
        mail = mail_of(message, self._sender, self._to, self._clock())
        client: smtplib.SMTP | None = None
        try:
            async with asyncio.timeout(MAIL_SECONDS_MAX):
                client = await asyncio.to_thread(self._client)  # which would look up the name of this machine
                refused = await asyncio.to_thread(self._deliver, client, mail)
        except TimeoutError:  # of a socket or of all
            raise ChannelError(_NO_ANSWER, is_final=False) from None
        except (OSError, smtplib.SMTPException, ValueError) as error:
            raise _refusal(error) from None
        finally:
            if client is not None:
                _cut(client)  # a thread that still waits for it continues at once, to its end
        if refused:
            _log.warning("alert_recipients_refused", recipients=sorted(refused))

    def _client(self) -> smtplib.SMTP:
        tls = ssl.create_default_context()
        if self._scheme == "smtps":
            client: smtplib.SMTP = smtplib.SMTP_SSL(timeout=CALL_SECONDS_MAX, context=tls)
        else:
            client = smtplib.SMTP(timeout=CALL_SECONDS_MAX)
        # The name that the certificate is checked against; only the connecting constructor sets it, and during that
        # no other task has a reference to the client that may have to be closed.
        client._host = self._host  # type: ignore[attr-defined] # noqa: SLF001
        return client

    def _deliver(self, client: smtplib.SMTP, message: EmailMessage) -> Mapping[str, Any]:
        """Send in a thread; return the recipients that were refused while others were accepted."""
        client.connect(self._host, self._port)
        if self._scheme == "smtp+starttls":
            client.starttls(context=ssl.create_default_context())
        if self._user is not None:
            client.login(self._user, self._password)
        refused = client.send_message(message)
        with contextlib.suppress(OSError, smtplib.SMTPException):  # it is delivered, even if QUIT fails
            client.quit()
        return refused

    async def close(self) -> None:
        """Do nothing."""


def _refusal(error: Exception) -> ChannelError:
    """Return an error with the code only: texts of servers may quote what they were sent."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = [code for code, _ in error.recipients.values()]
        return ChannelError(f"all recipients refused: {codes}", is_final=min(codes, default=0) >= _MADE_FINAL)
    if isinstance(error, smtplib.SMTPResponseException):
        told = f"{type(error).__name__} {error.smtp_code}"
        return ChannelError(told, is_final=error.smtp_code >= _MADE_FINAL)
    if isinstance(error.__context__, TimeoutError):  # smtplib reports it as a closed connection
        return ChannelError(_NO_ANSWER, is_final=False)
    is_final = isinstance(error, (ValueError, smtplib.SMTPNotSupportedError, ssl.SSLCertVerificationError))
    return ChannelError(f"cannot be sent: {type(error).__name__}", is_final=is_final)


def _cut(client: smtplib.SMTP) -> None:
    held = client.sock
    if held is not None:
        with contextlib.suppress(OSError):
            held.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        client.close()


def mail_of(message: Message, sender: str, to: Sequence[str], now_ms: int) -> EmailMessage:
    """Return the mail of a message."""
    mail = EmailMessage()
    mail["Subject"] = " ".join(_text(message.subject).split())
    mail["From"], mail["To"] = sender, ", ".join(to)
    mail["Date"] = format_datetime(to_datetime(now_ms))
    mail["Message-ID"] = f"<{message.key}@highwater>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(_text(message.text), cte="quoted-printable")
    return mail


def message_of(alerts: Sequence[Alert]) -> Message:
    """Return the message of one alert, or one for all of them."""
    return Message(message_key(alerts), subject(alerts), mail_text(alerts), webhook_body(alerts))


def subject(alerts: Sequence[Alert]) -> str:
    """Return the subject."""
    first = alerts[0]
    if len(alerts) > 1:
        return f"[highwater] and {len(alerts)} more runs failed"
    return f"[highwater] run {first.request_id} failed: {first.stage or 'no stage'}: {first.reason}"


def mail_text(alerts: Sequence[Alert]) -> str:
    """Return the text for a person."""
    if len(alerts) > 1:
        lines = (f"{one.request_id}  {one.stage or '-'}  {one.reason}  {one.at}  {one.position}" for one in alerts)
        return "\n".join([f"And {len(alerts)} more:", "", *lines, "", "How to look: GET /api/query/{id}/timeline", ""])
    (one,) = alerts
    rows = {
        "Run": one.request_id,
        "User": one.user_id,
        "Stage": one.stage or "none",
        "Reason": one.reason,
        "Failed at": one.at,
        "Position": one.position,
        "How to look": one.look,
    }
    facts = "\n".join(f"{name}: {value}" for name, value in rows.items())
    return f"{facts}\n\nError:\n{one.error}\n\nStack:\n{one.stack or 'none'}\n"


def webhook_body(alerts: Sequence[Alert]) -> dict[str, Any]:
    """Return the body for a program."""
    if len(alerts) == 1:
        return {"event": "run_failed", **alerts[0].members}
    listed = ("position", "request_id", "stage", "reason", "at")
    runs = [{name: one.members[name] for name in listed} for one in alerts]
    return {"event": "more_runs_failed", "count": len(alerts), "runs": runs}


def message_key(alerts: Sequence[Alert]) -> str:
    """Name a message by the positions of its events, so that a repeat is recognized."""
    places = [one.position.replace("/", ".") for one in (alerts[0], alerts[-1])]
    return places[0] if len(alerts) == 1 else f"{places[0]}-{places[1]}-{len(alerts)}"


def _split(url: str, name: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigurationError(f"{name} is not an address") from None
    if not parts.hostname:
        raise ConfigurationError(f"{name} has no host")
    return parts


def _address(text: str, name: str) -> str:
    try:
        found = Address(addr_spec=text.strip())
    except (ValueError, IndexError, LookupError):
        found = None
    if found is None or not found.domain or not text.isascii() or not text.isprintable():
        raise ConfigurationError(f"{name}: {text[:100]!r} is not an email address")
    return found.addr_spec
