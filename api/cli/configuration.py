"""Reads what the roles read when they start: settings that name a file, and those that only some role understands.

Invariant: nothing is connected to, and nothing is imported for a setting that is not set. So `up` can refuse in a
moment what a role would refuse later, and `doctor` can name it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import Settings

Reader: TypeAlias = Callable[[Settings], object]


def configuration_faults(settings: Settings) -> list[str]:
    """Return why roles with these settings would not start, one line for each setting or file; empty if they would."""
    found = []
    for read in READERS:
        try:
            read(settings)
        except ConfigurationError as error:
            found.append(" ".join(str(error).split()))
    return list(dict.fromkeys(found))


def refuse_faults(settings: Settings) -> None:
    """Refuse settings that a role would refuse.

    Raises:
        ConfigurationError: names all of them.
    """
    faults = configuration_faults(settings)
    if faults:
        raise ConfigurationError("; ".join(faults))


def _listening(settings: Settings) -> None:
    from highwater.api.core.listening import check_listening

    check_listening(settings)


def _policy(settings: Settings) -> None:
    from highwater.streams.feeds.policy import load_policy

    load_policy(settings.policy_file)


def _plans(settings: Settings) -> None:
    from highwater.streams.identity.plans import load_plans

    load_plans(settings.plans_file)


def _namespaces(settings: Settings) -> None:
    from highwater.streams.chunks.passports import load_passports

    load_passports(settings.namespaces_file)


def _prices(settings: Settings) -> None:
    from highwater.streams.models.context_windows import parse_context_windows
    from highwater.streams.models.costs import parse_prices

    parse_prices(settings.llm_prices)
    parse_context_windows(settings.llm_context_tokens)


def _kafka(settings: Settings) -> None:
    if settings.kafka is not None:
        settings.kafka_access()


def _redis(settings: Settings) -> None:
    for address, name in ((settings.redis, "REDIS_URL"), (settings.redis_cache, "REDIS_CACHE_URL")):
        if address is not None:
            from highwater.connectors.redis.client import open_client

            open_client(address, name, settings.redis_connections)


def _objects(settings: Settings) -> None:
    if settings.object_store is not None:
        from highwater.connectors.redis.objects import open_objects

        open_objects(settings)


def _chat(settings: Settings) -> None:
    if settings.llm_url is not None:
        from highwater.connectors.models.chat_service import check_address

        check_address(settings.llm_url, settings.llm_key)


def _embedder(settings: Settings) -> None:
    if settings.embedder is not None or settings.embeddings_url is not None:
        from highwater.connectors.models.opening import open_remote_embedder

        open_remote_embedder(settings)


def _reranker(settings: Settings) -> None:
    if settings.reranker is not None or settings.rerank_url is not None:
        from highwater.connectors.models.opening import open_reranker

        open_reranker(settings)


def _alerts(settings: Settings) -> None:
    mail = (settings.alert_smtp_url, settings.alert_email_from, settings.alert_email_to)
    if any((*mail, settings.alert_webhook_url, settings.alert_urls)):
        from highwater.connectors.alerts.opening import open_channels
        from highwater.streams.clock import ProductClock

        open_channels(settings, ProductClock())


def _digests(settings: Settings) -> None:
    if settings.digests_file is not None:
        from highwater.connectors.alerts.worker_daily import SETTING, open_channel
        from highwater.streams.clock import ProductClock
        from highwater.streams.daily_rules import load_daily_rules

        for rule in load_daily_rules(settings.digests_file, SETTING):
            open_channel(rule, settings, ProductClock())


def _google(settings: Settings) -> None:
    if settings.google_credentials_file is not None or settings.google_access_token is not None:
        from highwater.connectors.jobs.google_slides import GoogleSlides

        GoogleSlides.of(settings)


def _clock(settings: Settings) -> None:
    path = settings.clock_file
    if path is None or not path.exists():  # a missing one means no offset
        return
    try:
        path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"HIGHWATER_CLOCK_FILE={path} cannot be read: {error.strerror}") from error


def _tracing(settings: Settings) -> None:
    if settings.otlp_headers is not None:
        from highwater.connectors.tracing import parse_headers

        parse_headers(settings.otlp_headers)


# Those of the services come first: without them no role starts at all.
READERS: tuple[Reader, ...] = (
    _kafka,
    Settings.registry_access,
    _redis,
    _objects,
    _clock,
    _listening,
    _policy,
    _plans,
    _namespaces,
    _prices,
    Settings.check_job_lease,
    _chat,
    _embedder,
    _reranker,
    _alerts,
    _digests,
    _google,
    _tracing,
)
