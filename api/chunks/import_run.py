"""One import of documents: from an origin to the topics of chunks; waits until each event is acknowledged.

Invariant: what is published depends on the origin, the options and earlier imports of the same origin. The id of the
ingest is new, since the latest ingest of a source counts. A missing source is ended only with `--full`, only when the
whole listing was read, and is named. After Ctrl-C events in flight are still acknowledged, and their end events claim
only what was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.command import FAILED, INTERRUPTED, CommandFailedError
from highwater.api.command.connection import kafka_client
from highwater.api.command.terminal import Bar, print_json, progress, say, warn
from highwater.schemas.errors import HighwaterError
from highwater.streams.printable import printable
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from pathlib import Path

    from highwater.api.command.publishing import Publisher
    from highwater.connectors.sources.chunked import Fault, Origin, Piece, Submission, Whole
    from highwater.connectors.sources.github import Listing
    from highwater.connectors.sources.remembered import Remembered
    from highwater.streams.chunks.passports import Passport
    from highwater.streams.settings import Settings

# Faults are printed one by one up to a limit, so that they do not scroll important lines away; the rest is counted.
FAULTS_SHOWN = 50
# What is done with the parts of documents that are judged not to be text: their numbers are printed, their texts too, or
# they are published as text.
COUNT, SHOW, KEEP = "count", "show", "keep"


@dataclass(slots=True)
class Faults:
    """What could not be read: the first faults are printed as they occur, all are counted."""

    count: int = 0
    shown: list[dict[str, str]] = field(default_factory=list)

    def add(self, where: str, why: str) -> None:
        """Report one fault."""
        self.count += 1
        if self.count <= FAULTS_SHOWN:
            self.shown.append({"where": printable(where), "why": printable(why)})
            warn(f"{where}: {why}")

    def conclude(self) -> None:
        """Print how many more there were."""
        if self.count > FAULTS_SHOWN:
            warn(f"… and {self.count - FAULTS_SHOWN:,} more that could not be read")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The options of the command: the target of the chunks, and which end events are sent."""

    ns: str
    slot: str
    asks_full: bool = False
    forces: bool = False
    lasts: bool = False
    opens: bool = False
    left_out: str = COUNT

    def check(self) -> None:
        """Check that the options fit together.

        Raises:
            click.UsageError: a part of the key of chunks is invalid, or `--force` is used alone.
        """
        from highwater.schemas.errors import InvalidEventError
        from highwater.streams.chunks.identity import check_key_part

        context = click.get_current_context()
        for name, value in (("--ns", self.ns), ("--slot", self.slot)):
            try:
                check_key_part(name, value)
            except InvalidEventError as error:
                raise click.UsageError(str(error), context) from error
        if self.forces and not self.asks_full:
            raise click.UsageError("--force changes --full; give both", context)


@dataclass(slots=True)
class AgeLimit:
    """The maximum age of documents that a namespace finds, and how many imported documents are older: reported before
    they are stored.
    """

    ns: str
    days: float
    before_ms: int
    too_old: int = 0
    is_said: bool = False
    has_looked: bool = False

    def look(self, item: Whole | Piece | Fault, times: Mapping[str, int]) -> None:
        """Count a document that is too old to be found; warn before the first one is stored, with the total if `times`
        gives it.
        """
        if times and not self.has_looked:
            self.has_looked = True
            self._say(sum(at < self.before_ms for at in times.values()), len(times))
        published_at = _published_at(item)
        if published_at is not None and published_at < self.before_ms:
            self._say(1, None)
            self.too_old += 1

    def _say(self, count: int, of: int | None) -> None:
        if self.is_said or not count:
            return
        self.is_said = True
        share = "there are documents" if of is None else f"{count:,} of {of:,} documents are"
        older = f"{share} older than the {self.days:g} days of {self.ns!r}, and stored without being found"
        warn(f"{older}; to find them set ttl_days of [namespaces.{self.ns}] in HIGHWATER_NAMESPACES")


def age_limit_of(passport: Passport, ns: str, now_ms: int) -> AgeLimit | None:
    """Return the maximum age of a namespace by its passport; None if it has none or also finds older documents."""
    from highwater.streams.chunks.passports import DAYS_MAX, TtlMode
    from highwater.streams.chunks.scoring import DAY_MS

    if passport.ttl_mode != TtlMode.FILTER or passport.ttl_days >= DAYS_MAX:
        return None
    return AgeLimit(ns, passport.ttl_days, now_ms - int(passport.ttl_days * DAY_MS))


def passport_of(file: Path | None, options: ImportOptions) -> Passport:
    """Return the passport of the namespace by the local configuration and the options.

    Raises:
        click.UsageError: the namespace is to be opened, and its own table says that it is closed.
    """
    from highwater.streams.chunks.passports import Given, load_passports

    passport = load_passports(file).of(options.ns, Given(options.lasts, options.opens))
    if options.opens and not passport.is_open:
        why = (
            f"--open cannot open {options.ns!r}: [namespaces.{options.ns}] in HIGHWATER_NAMESPACES sets is_open = false"
        )
        raise click.UsageError(why, click.get_current_context())
    return passport


def _published_at(item: Whole | Piece | Fault) -> int | None:
    from highwater.connectors.sources.chunked import Piece, Whole

    if isinstance(item, Whole):
        return item.found.published_at
    return item.fields.get("published_at") if isinstance(item, Piece) else None


# Creates the origin from what is known of it, and keeps it open while the given function runs.
Draw = Callable[["Origin"], Awaitable[None]]
UseOrigin = Callable[["Remembered", Draw], Coroutine[Any, Any, None]]


class Import:
    """One running import."""

    def __init__(self, settings: Settings, options: ImportOptions) -> None:
        self._settings = settings
        self._options = options
        self._faults = Faults()
        self._origin: Origin | None = None
        self._submission: Submission | None = None
        self._is_interrupted = False
        self._life: AgeLimit | None = None
        self._left_out: list[dict[str, str]] = []

    def run(self, name: str, use: UseOrigin, identity: Sequence[str] | None, *, as_json: bool) -> None:
        """Import, report and end the command with its exit status.

        Args:
            name: how people name the origin.
            use: creates the origin.
            identity: the key under which it is remembered; None if nothing is remembered.
            as_json: whether the result is printed as JSON.

        Raises:
            CommandFailedError: nothing could be read.
            UnavailableError: Kafka or the registry became unavailable; a repeated import sends what is missing.
        """
        passport = passport_of(self._settings.namespaces_file, self._options)
        with self._remembered(identity) as known:
            publisher = self._publish(known, use, passport)
        self._faults.conclude()
        self._conclude(name, publisher, as_json=as_json, is_open=passport.is_open)

    def _remembered(self, identity: Sequence[str] | None) -> AbstractContextManager[Remembered]:
        from highwater.connectors.sources.remembered import Remembered

        if identity is None:
            return nullcontext(Remembered(None, []))
        about = [*identity, self._options.ns, self._options.slot]
        return Remembered.opened(self._settings.data_dir / "imports", about)

    def _publish(self, known: Remembered, use: UseOrigin, passport: Passport) -> Publisher:
        from highwater.api.command.publishing import EventPublisher, Publisher, codec_of
        from highwater.connectors.sources.chunked import Submission, Target
        from highwater.schemas.chunks import CHUNK_SUBMITTED, INGEST_FINISHED
        from highwater.schemas.topics import TOPICS
        from highwater.streams.clock import ProductClock, fresh_id

        wanted = self._options
        clock = ProductClock(self._settings.clock_file)
        self._life = age_limit_of(passport, wanted.ns, clock())
        codec = asyncio.run(codec_of(self._settings, (CHUNK_SUBMITTED, INGEST_FINISHED)))
        publisher = Publisher(kafka_client(self._settings))
        topics: dict[str, EventPublisher] = {
            name: EventPublisher(TOPICS[name], publisher, codec, clock) for name in (CHUNK_SUBMITTED, INGEST_FINISHED)
        }

        def hand_over(topic: str, event: Mapping[str, Any]) -> None:
            topics[topic](event, TOPICS[topic].key_of(event))

        target = Target(
            fresh_id(), wanted.ns, wanted.slot, asks_full=wanted.asks_full, forces=wanted.forces, lasts=wanted.lasts,
            opens=wanted.opens,
        )  # fmt: skip
        begin = partial(Submission, target, hand_over, clock, report=self._report)
        try:
            with progress("importing", None) as bar:
                asyncio.run(use(known, lambda origin: self._draw(origin, begin(is_paged=origin.is_paged), known, bar)))
        except KeyboardInterrupt:
            self._is_interrupted = True  # a second Ctrl-C also ends what follows
        if self._origin is not None and self._submission is not None:
            self._submission.conclude(self._origin.reading, is_interrupted=self._is_interrupted)
        publisher.flush()
        if self._origin is not None and self._submission is not None:
            self._remember(self._origin, self._submission, known)
        return publisher

    def _report(self, fault: Fault) -> None:
        self._faults.add(fault.where, fault.why)

    async def _draw(self, origin: Origin, submission: Submission, known: Remembered, bar: Bar) -> None:
        """Publish all documents of the origin, and end events for those that are gone."""
        from highwater.connectors.documents.reading import DocumentReader
        from highwater.connectors.sources.chunked import cut_all

        self._origin, self._submission = origin, submission
        before, noted, keeps_all = frozenset(known.sources), 0, self._options.left_out == KEEP
        async with aclosing(cut_all(origin.documents(), DocumentReader(), keeps_all=keeps_all)) as items:
            async for item in items:
                if self._life is not None:
                    self._life.look(item, origin.reading.times)
                if len(origin.reading.listed) != noted:  # before the first of them is published
                    noted = len(origin.reading.listed)
                    known.sources |= origin.reading.listed
                    known.save()
                submission.take(item)
                self._note_left_out(item)
                bar.update(submission.chunks)
        if origin.reading.why is not None:
            self._faults.add("the rest", origin.reading.why)
        elif self._options.asks_full and origin.reading.is_listed and not submission.has_unknown_faults:
            await self._end_gone(origin, submission, before - origin.reading.listed)

    def _note_left_out(self, item: Whole | Piece | Fault) -> None:
        from highwater.connectors.sources.chunked import Whole

        if self._options.left_out == SHOW and isinstance(item, Whole):
            about = {"source_id": item.found.source_id}
            self._left_out += [{**about, "reason": str(reason), "text": text} for reason, text in item.left_out]

    async def _end_gone(self, origin: Origin, submission: Submission, missing: frozenset[str]) -> None:
        if missing and not origin.reading.listed and not self._options.forces:
            # An unmounted folder looks the same (R3.20).
            were = counted(len(missing), "source was", "sources were")
            why = f"nothing is there, where {were}; their chunks stay (--force removes them)"
            self._faults.add("all of it", why)
            return
        # If only some can be requested, each import starts elsewhere, so that all are requested over time.
        begin = int(submission.target.ingest_id, 16) % max(1, len(missing))
        asked = sorted(missing)
        try:
            submission.end_gone(sorted(await origin.gone(asked[begin:] + asked[:begin])))
        except HighwaterError as error:
            if error.retriable:
                raise
            self._faults.add("what is there no longer", str(error))

    def _remember(self, origin: Origin, submission: Submission, known: Remembered) -> None:
        """Remember the acknowledged documents."""
        from highwater.connectors.sources.github import Listing

        known.sources -= set(submission.gone)
        if isinstance(origin, Listing) and not self._is_interrupted:
            is_whole = origin.reading.is_whole and not submission.has_unknown_faults
            _remember_pages(origin, submission, known, is_full=self._options.asks_full and is_whole)
        known.save()

    def _conclude(self, name: str, publisher: Publisher, *, as_json: bool, is_open: bool) -> None:
        submission = self._submission
        if self._origin is None or submission is None:  # after Ctrl-C
            click.get_current_context().exit(INTERRUPTED)
        target, reading = submission.target, self._origin.reading
        if reading.why is not None and not submission.sources and self._faults.count == 1:
            raise CommandFailedError(f"{name}: {reading.why}")
        told = {
            "ingest_id": target.ingest_id,
            "ns": target.ns,
            "slot": target.slot,
            "sources": submission.sources,
            "chunks": submission.chunks,
            "rejected": self._faults.count,
            "faults": self._faults.shown,
            "passed_over": reading.passed_over,
            "passed_over_suffixes": dict(sorted(reading.suffixes.items())),
            "gone": submission.gone,
            "truncated": not reading.is_whole or self._is_interrupted,
            "window": reading.window,
            "too_old": 0 if self._life is None else self._life.too_old,
            "left_out": dict(sorted(submission.left_out.items())),
            "left_out_parts": self._left_out,
            "open": is_open,
            "positions": list(publisher.positions().values()),
        }
        if self._options.opens and not submission.chunks:
            warn(f"no chunk was published, so {target.ns!r} was not opened")
        if as_json:
            print_json(told)
        else:
            _tell(name, told, is_interrupted=self._is_interrupted)
        if self._is_interrupted:
            click.get_current_context().exit(INTERRUPTED)
        if self._faults.count:
            click.get_current_context().exit(FAILED)


def _remember_pages(origin: Listing, submission: Submission, known: Remembered, *, is_full: bool) -> None:
    """Remember the pages whose entries were all published; after a complete listing there are no others."""
    pages = {}
    for url, page in origin.pages.items():
        if submission.faulty.isdisjoint(page.sources):
            page.is_full = page.is_full or is_full
            pages[url] = page
    known.pages = pages if origin.reading.is_whole else known.pages | pages


def _tell(name: str, told: Mapping[str, Any], *, is_interrupted: bool) -> None:
    counts = f"{counted(told['sources'], 'source')}, {counted(told['chunks'], 'chunk')}"
    if told["rejected"]:
        counts += f", {told['rejected']:,} rejected"
    if is_interrupted:
        warn(f"interrupted: {counts} were published")
    elif not told["positions"]:
        say(f"{printable(name)}: nothing to import")
    else:
        say(f"imported {printable(name)} to {printable(told['ns'])}|{printable(told['slot'])}: {counts}")
        say(f"  ingest {told['ingest_id']}")
        say(f"  {_who_may_ask(told)}")
    if told["too_old"]:
        say(f"  not found, since they are too old: {told['too_old']:,}")
    for source_id in told["gone"]:
        say(f"  gone: {printable(source_id)}")
    _tell_left_out(told)
    if told["passed_over"]:
        kinds = [
            f"{printable(suffix) or 'no suffix'} {count:,}" for suffix, count in told["passed_over_suffixes"].items()
        ]
        say(f"  passed over: {told['passed_over']:,} of other kinds" + (f" ({', '.join(kinds)})" if kinds else ""))
    window = told["window"]
    if window is not None:
        more = f"; continue with --cursor '{window['cursor']}'" if window["cursor"] else ""
        say(f"  pages {window['page_from']} to {window['page_to']}{printable(more)}")
    for position in told["positions"]:
        say(f"  {position}")


def _who_may_ask(told: Mapping[str, Any]) -> str:
    if told["open"]:
        return "questions: answers to every user may quote this"
    return (
        f"questions: no answer quotes this unless {printable(told['ns'])} is open; import again with --open to open it to every"
        " user's questions"
    )


def _tell_left_out(told: Mapping[str, Any]) -> None:
    if told["left_out"]:
        counts = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in told["left_out"].items())
        say(f"  left out of the text: {counts}")
    for part in told["left_out_parts"]:
        text = " ".join(part["text"].split())
        say(f"    {printable(part['source_id'])}: {part['reason'].replace('_', ' ')}: {printable(text)}")
