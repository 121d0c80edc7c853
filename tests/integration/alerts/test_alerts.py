"""Alerts on failed runs, to a real mail server and a real webhook that misbehave on order (R1.35)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email
import email.policy
import json
import logging
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope

from highwater.connectors.alerts import channels as alert_channels
from highwater.connectors.alerts import services
from highwater.connectors.alerts.channels import (
    ChannelError,
    LogChannel,
    MailChannel,
    WebhookChannel,
    alert_of,
    message_of,
)
from highwater.connectors.alerts.opening import open_channels
from highwater.connectors.alerts.worker_alerts import BURST, REFILL_SECONDS, AlertsWorker, Pace, plan_messages
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import Event
from highwater.schemas.errors import ConfigurationError, UnavailableError
from highwater.streams.retry import RetryPolicy
from highwater.streams.settings import read_settings
from highwater.streams.telemetry import ALERTS
from tests.conftest import Stack
from tests.integration.connecting import event, free_port, fresh, in_transaction, running, send, until

TOPIC = "queries.run-failed"
RUN, USER = "0b5e3f5e-6a40-4a2b-9d5a-0d3c0f6a1c11", "4d1c1f0a-9b1e-4f5e-8c3d-2a7b6c5d4e33"
QUICK = RetryPolicy(first_ms=20, most_ms=20, attempts_max=3)
FROM, TO = "pipeline@highwater.test", ("ops@highwater.test", "boss@highwater.test")


def failed(offset: int, **changes: Any) -> Event:
    """A failed run at a place of the log that no other test uses, identified by its offset."""
    value = {
        "request_id": RUN,
        "user_id": USER,
        "stage": "analyzer",
        "reason": "no_prompt",
        "error": "no active prompt for Analyzer",
        "stack": "Traceback\n  somewhere",
        "is_alert": True,
        "at": 1_700_000_000_000,
    }
    return event(TOPIC, {**value, **changes}, offset=offset)


@dataclass
class Mails:
    """A mail server's handler: what it took, and how it misbehaves."""

    taken: list[EmailMessage] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # by recipient
    data_answer: str = "250 taken"
    greets: int = 0
    hang: threading.Event | None = None

    async def handle_EHLO(  # noqa: N802 - aiosmtpd's name
        self, server: Any, session: Any, envelope: Envelope, hostname: str, responses: Any
    ) -> Any:
        """Greet, late where it hangs."""
        self.greets += 1
        if self.hang is not None:
            await asyncio.to_thread(self.hang.wait, 30)
        session.host_name = hostname
        return responses

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, server: Any, session: Any, envelope: Envelope, address: str, options: Any
    ) -> str:
        """Take a recipient, or not."""
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 ok"

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's name
        """Take a mail."""
        if self.data_answer.startswith("250"):
            assert isinstance(envelope.content, bytes)
            message = email.message_from_bytes(envelope.content, policy=email.policy.default)
            assert isinstance(message, EmailMessage)
            message.add_header("X-Envelope-To", ",".join(envelope.rcpt_tos))
            self.taken.append(message)
        return self.data_answer


@contextlib.contextmanager
def mail_server(mails: Mails, port: int = 0, **more: Any) -> Iterator[int]:
    """Serve on a port of loopback, a free one where none is given."""
    if port == 0:
        port = free_port()
    controller = Controller(mails, hostname="127.0.0.1", port=port, **more)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


class Hook:
    """A webhook: answers with the next status of its script, then with 204."""

    def __init__(self) -> None:
        self.script: list[int | None] = []  # None: no values are given
        self.taken: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.asked = 0
        self.closing = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                hook.asked += 1
                status = hook.script.pop(0) if hook.script else 204
                if status is None:
                    hook.closing.wait(30)
                    return
                if status < 300:
                    hook.taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
                with contextlib.suppress(ConnectionError):
                    self.send_response(status)
                    self.send_header("Location", "http://127.0.0.1:1/")
                    self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._httpd.daemon_threads = True
        self._thread = threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._httpd.server_address[1]}/hook/token-in-the-path"

    def close(self) -> None:
        """Stop."""
        self.closing.set()
        self._httpd.shutdown()
        self._thread.join()
        self._httpd.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A webhook."""
    made = Hook()
    yield made
    made.close()


@pytest.fixture
def offset() -> int:
    """The first of a hundred thousand offsets that are this test's own."""
    return time.monotonic_ns() // 1_000 * 100


def mail_channel(port: int, context: ProcessContext, scheme: str = "smtp", who: str = "") -> MailChannel:
    """A channel to a server of this test."""
    return MailChannel(f"{scheme}://{who}localhost:{port}", FROM, TO, context.clock)


def endless() -> Pace:
    """No limit that a test would meet."""
    return Pace(burst=10_000)


@contextlib.asynccontextmanager
async def worker(context: ProcessContext, *channels: Any, **more: Any) -> AsyncIterator[AlertsWorker]:
    """A worker that tries three times, in a tenth of a second."""
    made = AlertsWorker(context, channels, **{"policy": QUICK, "pace": endless, **more})
    yield made
    await made.close()


async def letters(context: ProcessContext, events: list[Event]) -> dict[str, dict[str, str]]:
    """The headers of the dead letters in the outbox, by position."""
    rows = await context.pool.fetch("SELECT headers FROM outbox WHERE topic = $1", f"{TOPIC}.dlq")
    found = {}
    for row in rows:
        headers = {name: base64.b64decode(value).decode() for name, value in json.loads(row["headers"])}
        found[headers["dlq_origin"]] = headers
    return {place: found[place] for one in events if (place := str(one.record.position)) in found}


def count(channel: str, outcome: str) -> float:
    """The metric."""
    return float(ALERTS.labels(channel, outcome)._value.get())


@pytest.mark.requirement("R1.35")
async def test_an_alert_is_told_once_on_every_channel(context: ProcessContext, hook: Hook, offset: int) -> None:
    """It goes out by mail and by webhook, with all known details; a redelivery sends nothing again, to any reader."""
    mails, events = Mails(), [failed(offset), failed(offset + 1, is_alert=False)]
    with mail_server(mails) as port:
        for _ in range(2):  # the second is another process, which knows only the stored state
            async with worker(context, mail_channel(port, context), WebhookChannel(hook.url)) as alerts:
                await in_transaction(context, alerts, events)
                await in_transaction(context, alerts, events)
    (mail,), ((headers, body),) = mails.taken, hook.taken
    place = f"{TOPIC}/0/{offset}"
    assert (mail["Subject"], mail["From"], mail["To"]) == (
        f"[highwater] run {RUN} failed: analyzer: no_prompt", FROM, ", ".join(TO),
    )  # fmt: skip
    assert mail["Message-ID"] == f"<{TOPIC}.0.{offset}@highwater>"
    assert mail["X-Envelope-To"] == ",".join(TO)
    text = mail.get_content()
    for told in (RUN, USER, "analyzer", "no_prompt", "no active prompt for Analyzer", "  somewhere", place):
        assert told in text
    assert f"GET /api/query/{RUN}/timeline" in text
    assert headers["idempotency-key"] == f"{TOPIC}.0.{offset}"
    assert body == {
        "event": "run_failed", "position": place, "request_id": RUN, "user_id": USER, "stage": "analyzer",
        "reason": "no_prompt", "error": "no active prompt for Analyzer", "stack": "Traceback\n  somewhere",
        "at": "2023-11-14T22:13:20Z", "look": f"GET /api/query/{RUN}/timeline",
    }  # fmt: skip
    assert await letters(context, events) == {}


async def test_what_one_channel_was_told_the_other_is_told_alone(
    context: ProcessContext, hook: Hook, offset: int
) -> None:
    """A worker that ended between two channels continues with the remaining one."""
    mails, events = Mails(), [failed(offset)]
    async with worker(context, WebhookChannel(hook.url)) as alerts:
        await in_transaction(context, alerts, events)
    with mail_server(mails) as port:
        async with worker(context, mail_channel(port, context), WebhookChannel(hook.url)) as alerts:
            await in_transaction(context, alerts, events)
    assert (len(mails.taken), len(hook.taken)) == (1, 1)


async def test_a_server_that_comes_back_is_told(context: ProcessContext, offset: int) -> None:
    """While it is unavailable the batch is held; once it listens the mail is sent, and nothing is dead-lettered."""
    mails, events, port = Mails(), [failed(offset)], free_port()
    patient = RetryPolicy(first_ms=50, most_ms=50, attempts_max=400)
    before = count("smtp", "attempt_failed")
    async with worker(context, mail_channel(port, context), policy=patient) as alerts:
        task = asyncio.create_task(in_transaction(context, alerts, events))
        await until(lambda: count("smtp", "attempt_failed") >= before + 2, "it was tried in vain")
        assert not task.done()
        with mail_server(mails, port):
            await task
    assert len(mails.taken) == 1
    assert await letters(context, events) == {}


async def test_a_channel_that_stays_down_is_given_up(context: ProcessContext, hook: Hook, offset: int) -> None:
    """After its attempts the other one was notified, the alert is dead-lettered and counted, and the next costs one attempt."""
    events, more = [failed(offset)], [failed(offset + 1)]
    before = count("smtp", "attempt_failed"), count("smtp", "failed")
    async with worker(context, mail_channel(free_port(), context), WebhookChannel(hook.url)) as alerts:
        assert list(await in_transaction(context, alerts, events)) == []
        assert (count("smtp", "attempt_failed"), count("smtp", "failed")) == (before[0] + 3, before[1] + 1)
        await in_transaction(context, alerts, more)
        assert (count("smtp", "attempt_failed"), count("smtp", "failed")) == (before[0] + 4, before[1] + 2)
    assert len(hook.taken) == 2
    found = await letters(context, events + more)
    assert [headers["dlq_reason"] for headers in found.values()] == ["alert_not_delivered"] * 2
    assert {headers["dlq_detail"] for headers in found.values()} == {"smtp: cannot be sent: ConnectionRefusedError"}


async def test_a_channel_that_is_down_does_not_hold_back_the_other(
    context: ProcessContext, hook: Hook, offset: int
) -> None:
    """The webhook is called while the mail server hangs, which is abandoned within its limit."""
    mails = Mails(hang=threading.Event())
    with mail_server(mails) as port, pytest.MonkeyPatch.context() as patch:
        patch.setattr(alert_channels, "CALL_SECONDS_MAX", 0.5)
        async with worker(context, mail_channel(port, context), WebhookChannel(hook.url)) as alerts:
            events = [failed(offset)]
            task = asyncio.create_task(in_transaction(context, alerts, events))
            await until(lambda: hook.taken, "the webhook is told")
            assert not task.done()
            async with asyncio.timeout(20):
                await task
        assert mails.hang is not None
        mails.hang.set()
    assert mails.greets > 0
    assert [h["dlq_detail"] for h in (await letters(context, events)).values()] == ["smtp: no answer in time"]


async def test_a_server_that_drips_is_given_up_in_all(context: ProcessContext, offset: int) -> None:
    """Each byte comes in time and the mail does not: the limit is of the whole, and its thread ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    gone = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(b"2")
                time.sleep(0.05)
        gone.set()

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    events = [failed(offset)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alert_channels, "MAIL_SECONDS_MAX", 2.0)
        once = RetryPolicy(1, 1, attempts_max=1)
        async with worker(context, mail_channel(listener.getsockname()[1], context), policy=once) as alerts:
            async with asyncio.timeout(20):  # its drops would continue forever
                await in_transaction(context, alerts, events)
    assert await asyncio.to_thread(gone.wait, 20)
    listener.close()
    assert [h["dlq_detail"] for h in (await letters(context, events)).values()] == ["smtp: no answer in time"]


@pytest.mark.parametrize(
    ("answers", "detail", "attempts"),
    [
        ([550, 550], "smtp: all recipients refused: [550, 550]", 1),
        ([450, 550], "smtp: all recipients refused: [450, 550]", 3),
        ([550, 250], None, 0),
    ],
)
async def test_refused_recipients(
    context: ProcessContext, offset: int, answers: list[int], detail: str | None, attempts: int
) -> None:
    """A permanent refusal is not retried, a temporary one is; if some are refused, the others get the message."""
    mails, events = Mails(), [failed(offset)]
    mails.refused = {to: f"{code} no" for to, code in zip(TO, answers, strict=True) if code != 250}
    before = count("smtp", "attempt_failed")
    with mail_server(mails) as port:
        async with worker(context, mail_channel(port, context)) as alerts:
            await in_transaction(context, alerts, events)
    assert count("smtp", "attempt_failed") - before == attempts
    assert [h["dlq_detail"] for h in (await letters(context, events)).values()] == ([] if detail is None else [detail])
    assert [mail["X-Envelope-To"] for mail in mails.taken] == ([TO[1]] if detail is None else [])


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ([500, 503], None),
        ([429, 408], None),
        ([500] * 3, "webhook: answered with status 500"),
        ([404], "webhook: answered with status 404"),
        ([302], "webhook: answered with status 302"),
        ([None] * 3, "webhook: no answer within 0.2 s"),
    ],
)
async def test_a_webhook_that_misbehaves(
    context: ProcessContext, hook: Hook, offset: int, script: list[int | None], detail: str | None
) -> None:
    """A transient failure is retried, a permanent one is given up at once; the key is the same each time."""
    hook.script, events = list(script), [failed(offset)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alert_channels, "CALL_SECONDS_MAX", 0.2 if None in script else 10.0)
        async with worker(context, WebhookChannel(hook.url)) as alerts:
            await in_transaction(context, alerts, events)
    found = [headers["dlq_detail"] for headers in (await letters(context, events)).values()]
    assert found == ([] if detail is None else [detail])
    assert (hook.asked, len(hook.taken)) == (len(script) + (detail is None), int(detail is None))


async def test_no_text_of_a_run_becomes_a_header(context: ProcessContext, offset: int) -> None:
    """Line breaks of all kinds, in every text, stay texts; so do bytes that no encoding has."""
    evil = "x\r\nBcc: thief@evil.test\r\n\r\nbody\u2028Bcc: a@evil.test\nBcc: b@evil.test\x0bc\x00\ud800"
    names = ("request_id", "user_id", "stage", "reason", "error", "stack")
    mails, events = Mails(), [failed(offset, **dict.fromkeys(names, evil))]
    with mail_server(mails) as port:
        async with worker(context, mail_channel(port, context)) as alerts:
            await in_transaction(context, alerts, events)
    (mail,) = mails.taken
    wanted = {"Subject", "From", "To", "Date", "Message-ID", "Auto-Submitted", "MIME-Version"}
    assert set(mail.keys()) - {"X-Peer", "X-MailFrom", "X-RcptTo", "X-Envelope-To"} == wanted | {
        "Content-Type",
        "Content-Transfer-Encoding",
    }
    assert mail["X-Envelope-To"] == ",".join(TO)
    assert "Bcc: thief@evil.test" in mail.get_content()


async def test_a_storm_is_summed_up(context: ProcessContext, hook: Hook, offset: int) -> None:
    """The pace limits the single messages; the last message has the rest, with its runs; all of them are sent."""
    mails, events = Mails(), [failed(offset + n, request_id=f"run-{n}") for n in range(40)]
    pace: Callable[[], Pace] = lambda: Pace(burst=4)  # noqa: E731
    with mail_server(mails) as port:
        channels = mail_channel(port, context), WebhookChannel(hook.url)
        async with worker(context, *channels, pace=pace) as alerts:
            await in_transaction(context, alerts, events)
            await in_transaction(context, alerts, events)
    assert len(mails.taken) == len(hook.taken) == 4
    assert mails.taken[3]["Subject"] == "[highwater] and 37 more runs failed"
    text = mails.taken[3].get_content()
    assert text.startswith("And 37 more:")
    assert [f"run-{n} " in text for n in range(40)] == [False] * 3 + [True] * 37
    body = hook.taken[3][1]
    assert (body["event"], body["count"]) == ("more_runs_failed", 37)
    assert [run["request_id"] for run in body["runs"]] == [f"run-{n}" for n in range(3, 40)]


async def test_what_is_too_much_waits_for_its_turn(context: ProcessContext, hook: Hook, offset: int) -> None:
    """With nothing left of its pace a channel waits, and then sums up all that has come."""
    pace = Pace(burst=1, refill_seconds=0.5)
    async with worker(context, WebhookChannel(hook.url), pace=lambda: pace) as alerts:
        began = time.monotonic()  # before the first is sent: from then on the pace refills
        await in_transaction(context, alerts, [failed(offset)])
        await in_transaction(context, alerts, [failed(offset + n) for n in (1, 2)])
        assert time.monotonic() - began > 0.45
    assert [body.get("count", 1) for _, body in hook.taken] == [1, 2]


def test_a_person_gets_ten_messages_a_minute_at_most() -> None:
    """This holds for any minute of an endless storm."""
    now = 0.0
    pace = Pace(seconds=lambda: now)
    sent = []
    while now < 600:
        for _ in range(pace.left()):
            pace.take(1)
            sent.append(now)
        now += 0.5
    most = max(sum(begin <= at <= begin + 60 for at in sent) for begin in sent)
    assert BURST < most <= BURST + 60 / REFILL_SECONDS == 10
    assert len(sent) >= BURST + 540 / REFILL_SECONDS  # and it does not stop telling


@pytest.mark.parametrize(("alerts", "most", "sizes"), [(3, 3, [1] * 3), (4, 3, [1, 1, 2]), (9, 1, [9]), (1, 1, [1])])
def test_messages_are_planned(alerts: int, most: int, sizes: list[int]) -> None:
    """Never more than may be sent, and nothing is left out."""
    found = plan_messages([alert_channels.alert_of(failed(n)) for n in range(alerts)], most)
    assert [len(message) for message in found] == sizes
    assert [one.position for message in found for one in message] == [f"{TOPIC}/0/{n}" for n in range(alerts)]


async def test_what_was_sent_while_the_store_was_away_is_not_sent_again(
    context: ProcessContext, hook: Hook, offset: int
) -> None:
    """The batch is repeated until PostgreSQL has recovered; the alert is sent once, and recorded."""

    class AwayAfterTheFirst:
        """A pool that loses its server between two transactions."""

        def __init__(self) -> None:
            self.left = 1

        def acquire(self, **more: Any) -> Any:
            if self.left == 0:
                raise ConnectionRefusedError("PostgreSQL is stopped")
            self.left -= 1
            return context.pool.acquire(**more)

    pool, events = AwayAfterTheFirst(), [failed(offset)]
    async with worker(replace(context, pool=pool), WebhookChannel(hook.url)) as alerts:  # type: ignore[arg-type]
        with pytest.raises(UnavailableError):
            await alerts.prepare(events)
        assert hook.asked == 1
        with pytest.raises(UnavailableError):
            await alerts.prepare(events)
        pool.left = 100
        assert await alerts.prepare(events) == {}
    assert hook.asked == 1
    stored = await context.pool.fetchval("SELECT channel FROM alerts_sent WHERE position = $1", f"{TOPIC}/0/{offset}")
    assert stored == "webhook"


async def test_without_a_channel_the_log_is_told(
    context: ProcessContext, offset: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line an alert, with all that is known, at error level."""
    channels = open_channels(read_settings({}), context.clock)
    assert [type(channel) for channel in channels] == [LogChannel]
    async with worker(context, *channels) as alerts:
        await in_transaction(context, alerts, [failed(offset), failed(offset + 1, is_alert=False)])
        await in_transaction(context, alerts, [failed(offset)])
    found = capsys.readouterr()
    lines = [line for line in (found.out + found.err).splitlines() if "run_failed" in line]
    assert len(lines) == 1
    assert f"{TOPIC}/0/{offset}" in lines[0]
    assert "error" in lines[0]


async def test_events_of_the_topic_are_told(stack: Stack, context: ProcessContext, hook: Hook) -> None:
    """The group reads `queries.run-failed` and moves on; a second reader begins after it."""
    name = fresh("run")
    value = context.codec.encode(TOPIC, {**failed(0).value, "reason": name})
    async with worker(context, WebhookChannel(hook.url)) as alerts, running(BatchConsumer(alerts, context)):
        send(stack.kafka, TOPIC, [(RUN.encode(), value)])
        await until(lambda: [body for _, body in hook.taken if body.get("reason") == name], "the webhook is told")
    told = len(hook.taken)
    async with worker(context, WebhookChannel(hook.url)) as alerts, running(BatchConsumer(alerts, context)):
        send(stack.kafka, TOPIC, [(RUN.encode(), context.codec.encode(TOPIC, {**failed(0).value, "reason": "last"}))])
        await until(lambda: len(hook.taken) > told, "the next is told")
    assert [body["reason"] for _, body in hook.taken[told:]] == ["last"]


# -- mail in transit, and settings -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssl.SSLContext]:
    """A certificate of localhost that this process trusts."""
    folder: Path = tmp_path_factory.mktemp("tls")
    files = str(folder / "key.pem"), str(folder / "cert.pem")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    asked = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-keyout",
        files[0],
        "-out",
        files[1],
    ]
    subprocess.run([*asked, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1], files[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", files[1])
        yield context


def _signs_in(*_: Any) -> AuthResult:
    login = _[-1]
    return AuthResult(success=(login.login, login.password) == (b"u@x", b"p:a/ss w%rd"), handled=False)


@pytest.mark.filterwarnings("ignore:Requiring AUTH while", "ignore:Session.login_data is deprecated")
@pytest.mark.parametrize("scheme", ["smtp+starttls", "smtps"])
async def test_mail_goes_by_tls_and_signed_in(
    context: ProcessContext, offset: int, certificate: ssl.SSLContext, scheme: str
) -> None:
    """STARTTLS or TLS from the start, with user and password as they are written in an address."""
    mails = Mails()
    tls: dict[str, Any] = {"ssl_context": certificate, "server_hostname": "localhost"}
    if scheme == "smtp+starttls":
        tls = {"tls_context": certificate, "require_starttls": True}
    more = {"authenticator": _signs_in, "auth_required": True, "auth_require_tls": scheme == "smtp+starttls"}
    with tls_server(mails, **tls, **more) as port:
        who = "u%40x:p%3Aa%2Fss%20w%25rd@"
        async with worker(context, mail_channel(port, context, scheme, who)) as alerts:
            await in_transaction(context, alerts, [failed(offset)])
        assert len(mails.taken) == 1
        secret = "hunter2-hunter2"
        async with worker(context, mail_channel(port, context, scheme, f"u:{secret}@")) as alerts:
            await in_transaction(context, alerts, [failed(offset + 1)])
    assert len(mails.taken) == 1
    (found,) = (await letters(context, [failed(offset + 1)])).values()
    assert found["dlq_detail"] == "smtp: SMTPAuthenticationError 535"


@contextlib.contextmanager
def tls_server(mails: Mails, **more: Any) -> Iterator[int]:
    """The same, on a given port."""
    with mail_server(mails, **more) as port:
        yield port


async def test_a_stranger_is_told_nothing(context: ProcessContext, offset: int, certificate: ssl.SSLContext) -> None:
    """A certificate of another name ends the call before user and password are sent, and no other attempt is made."""
    mails, before = Mails(), count("smtp", "attempt_failed")
    with tls_server(mails, tls_context=certificate) as port:
        channel = MailChannel(f"smtp+starttls://u:p@127.0.0.1:{port}", FROM, TO, context.clock)
        async with worker(context, channel) as alerts:
            await in_transaction(context, alerts, [failed(offset)])
    assert (mails.taken, count("smtp", "attempt_failed") - before) == ([], 1)
    (found,) = (await letters(context, [failed(offset)])).values()
    assert found["dlq_detail"] == "smtp: cannot be sent: SSLCertVerificationError"


MAIL = {
    "HIGHWATER_ALERT_SMTP_URL": "smtp://u:hunter2@mail.test",
    "HIGHWATER_ALERT_EMAIL_FROM": FROM,
    "HIGHWATER_ALERT_EMAIL_TO": ",".join(TO),
}


@pytest.mark.parametrize(
    "given",
    [
        *({name: value for name, value in MAIL.items() if name != left_out} for left_out in MAIL),
        {**MAIL, "HIGHWATER_ALERT_SMTP_URL": "mail.test:25"},
        {**MAIL, "HIGHWATER_ALERT_SMTP_URL": "http://u:hunter2@mail.test"},
        {**MAIL, "HIGHWATER_ALERT_SMTP_URL": "smtp://"},
        {**MAIL, "HIGHWATER_ALERT_SMTP_URL": "smtp://u:hunter2@mail.test:99999"},
        {**MAIL, "HIGHWATER_ALERT_SMTP_URL": "smtp://u:hunter2@mail.test/path"},
        {**MAIL, "HIGHWATER_ALERT_SMTP_URL": "smtp://u:hunter2%C3%A9@mail.test"},
        {**MAIL, "HIGHWATER_ALERT_EMAIL_FROM": "nobody"},
        {**MAIL, "HIGHWATER_ALERT_EMAIL_FROM": "a@b.test\r\nBcc: c@d.test"},
        {**MAIL, "HIGHWATER_ALERT_EMAIL_TO": "ops@mail.test,a b"},
        {"HIGHWATER_ALERT_WEBHOOK_URL": "hook.test/hunter2"},
        {"HIGHWATER_ALERT_WEBHOOK_URL": "ftp://hook.test/hunter2"},
        {"HIGHWATER_ALERT_WEBHOOK_URL": "http://[hunter2"},
        {"HIGHWATER_ALERT_URLS": "json://hook.test/x nonsense://u:hunter2@hook.test"},
        {"HIGHWATER_ALERT_URLS": "hunter2"},
    ],
    ids=str,
)
def test_a_wrong_setting_stops_the_program(given: dict[str, str], context: ProcessContext) -> None:
    """The error names it, and does not reveal its secrets."""
    with pytest.raises(ConfigurationError, match=r"^HIGHWATER_ALERT_\w+") as found:
        open_channels(read_settings(given), context.clock)
    assert "hunter2" not in str(found.value)


async def test_services_are_told_beside_the_others_and_one_that_fails_holds_up_none(
    context: ProcessContext, hook: Hook, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One service accepts every alert; one without a listener is given up, and its address is shown nowhere."""
    caplog.set_level(logging.DEBUG)
    taken, gone = hook.url.replace("http://", "json://"), f"json://u:hunter2@127.0.0.1:{free_port()}/hunter2"
    channels = open_channels(read_settings({"HIGHWATER_ALERT_URLS": f"{gone} {taken}"}), context.clock)
    assert [channel.name for channel in channels] == ["json-1", "json-2"]
    async with worker(context, *channels) as alerts:
        await in_transaction(context, alerts, [failed(offset)])
    ((_, body),) = hook.taken
    assert body["title"] == f"[highwater] run {RUN} failed: analyzer: no_prompt"
    assert "no active prompt for Analyzer" in body["message"]
    (found,) = (await letters(context, [failed(offset)])).values()
    assert found["dlq_detail"] == "json-1: the service cannot be reached or did not take it"
    assert "hunter2" not in caplog.text
    assert "token-in-the-path" not in caplog.text


async def test_a_service_that_hangs_is_given_up_in_time(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its thread ends by itself."""
    monkeypatch.setattr(services, "SERVICE_SECONDS_MAX", 0.2)
    hook.script = [None]
    (channel,) = services.open_services([hook.url.replace("http://", "json://") + "?rto=1"])
    with pytest.raises(ChannelError, match=r"no answer within 0\.2 s") as found:
        await channel.send(message_of([alert_of(failed(0))]))
    assert not found.value.is_final


async def test_both_channels_are_open_where_both_are_set(context: ProcessContext) -> None:
    """And the ports are those of their kinds."""
    channels = open_channels(
        read_settings({**MAIL, "HIGHWATER_ALERT_WEBHOOK_URL": "https://hook.test/x"}), context.clock
    )
    assert [channel.name for channel in channels] == ["smtp", "webhook"]
    for channel in channels:
        await channel.close()
