"""The one catalogue of settings. Everything that can be configured is named here, read once, and typed.

An unknown `HIGHWATER_*` name or an unreadable value stops the program with one line that names it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from highwater.schemas.errors import ConfigurationError

# The standard library's, which `telemetry.configure_logging` takes over: `--help` reads settings and is to stay quick.
_log = logging.getLogger("highwater.settings")
PREFIX = "HIGHWATER_"


def _text(raw: str) -> str:
    return raw


def _path(raw: str) -> Path:
    return Path(raw).expanduser()


def _positive_int(raw: str) -> int:
    value = int(raw)
    if value < 1:
        raise ValueError("must be at least 1")
    return value


def _positive_float(raw: str) -> float:
    value = float(raw)
    if not 0 < value < 1e9:
        raise ValueError("must be above 0")
    return value


def _port(raw: str) -> int:
    value = int(raw)
    if not 0 <= value <= 65535:
        raise ValueError("must be a port")
    return value


def _names(raw: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in raw.split(",") if name.strip())


def _vote_window(raw: str) -> float:
    value = float(raw)
    if not 5 <= value <= 10:
        raise ValueError("must be 5 to 10 (R4.33)")
    return value


# A field of the catalogue; ruff's RUF009 is about defaults shared between instances, which these immutable ones may be.
def _setting(
    name: str, parse: Callable[[str], Any], default: Any, about: str, secret: bool = False, lenient: bool = False
) -> Any:
    """One setting; a `lenient` one that cannot be read keeps its default, with a warning (R4.10)."""
    told = {"name": name, "parse": parse, "about": about, "secret": secret, "lenient": lenient}
    return field(default=default, metadata=told)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its value; the name in the environment stands beside each."""

    kafka: str | None = _setting("KAFKA_BOOTSTRAP_SERVERS", _text, None, "brokers; unset = the embedded one")
    kafka_security_protocol: str | None = _setting("KAFKA_SECURITY_PROTOCOL", _text, None, "as in the Kafka clients")
    kafka_sasl_mechanism: str | None = _setting("KAFKA_SASL_MECHANISM", _text, None, "as in the Kafka clients")
    kafka_sasl_username: str | None = _setting("KAFKA_SASL_USERNAME", _text, None, "as in the Kafka clients")
    kafka_sasl_password: str | None = _setting("KAFKA_SASL_PASSWORD", _text, None, "as in the Kafka clients", True)
    kafka_ssl_ca_location: str | None = _setting("KAFKA_SSL_CA_LOCATION", _text, None, "as in the Kafka clients")
    kafka_ssl_certificate_location: str | None = _setting(
        "KAFKA_SSL_CERTIFICATE_LOCATION", _text, None, "as in the Kafka clients"
    )
    kafka_ssl_key_location: str | None = _setting("KAFKA_SSL_KEY_LOCATION", _text, None, "as in the Kafka clients")
    schema_registry: str | None = _setting("SCHEMA_REGISTRY_URL", _text, None, "registry; unset = the embedded one")
    database: str | None = _setting("DATABASE_URL", _text, None, "PostgreSQL; unset = the embedded one", True)
    redis: str | None = _setting("REDIS_URL", _text, None, "Redis; unset = the embedded one", True)
    redis_cache: str | None = _setting(
        "REDIS_CACHE_URL",
        _text,
        None,
        "a second Redis for evictable keys (allkeys-lru); unset = REDIS_URL for both",
        True,
    )
    llm_url: str | None = _setting("LLM_BASE_URL", _text, None, "OpenAI-compatible service; unset = extractive")
    llm_key: str | None = _setting("LLM_API_KEY", _text, None, "its key", True)
    llm_model: str = _setting("LLM_MODEL", _text, "gpt-4o-mini", "its model")
    llm_strong_model: str = _setting("LLM_STRONG_MODEL", _text, "gpt-4o", "its model for answers to queries (R1.24)")
    llm_timeout_seconds: float = _setting(
        "HIGHWATER_LLM_TIMEOUT_SECONDS", _positive_float, 30.0, "time limit of a call in a query (R1.24)"
    )
    llm_prices: str = _setting(
        "HIGHWATER_LLM_PRICES",
        _text,
        "gpt-4o-mini=0.15/0.60,gpt-4o=2.50/10.00",
        "model=input/output in USD per million tokens, comma-separated (R1.41)",
    )
    query_lease_seconds: float = _setting(
        "HIGHWATER_QUERY_LEASE_SECONDS", _positive_float, 120.0, "a stage not ended by then is begun again (R1.7)"
    )
    query_concurrency: int = _setting(
        "HIGHWATER_QUERY_CONCURRENCY", _positive_int, 64, "queries that one process works on at once"
    )
    job_lease_seconds: float = _setting(
        "HIGHWATER_JOB_LEASE_SECONDS",
        _positive_float,
        600.0,
        "a step of a job not ended by then is begun again (R2.15)",
    )
    job_concurrency: int = _setting(
        "HIGHWATER_JOB_CONCURRENCY", _positive_int, 16, "jobs of a kind that one process works on at once (R2.39)"
    )
    alert_smtp_url: str | None = _setting(
        "HIGHWATER_ALERT_SMTP_URL",
        _text,
        None,
        "smtp://, smtp+starttls:// or smtps:// [user:password@]host[:port] (R1.35)",
        True,
    )
    alert_email_from: str | None = _setting("HIGHWATER_ALERT_EMAIL_FROM", _text, None, "sender of alerts")
    alert_email_to: tuple[str, ...] = _setting("HIGHWATER_ALERT_EMAIL_TO", _names, (), "who is told, comma-separated")
    alert_webhook_url: str | None = _setting(
        "HIGHWATER_ALERT_WEBHOOK_URL", _text, None, "is sent each alert as JSON by POST", True
    )
    embeddings_url: str | None = _setting("EMBEDDINGS_BASE_URL", _text, None, "the same; unset = hashed text")
    embeddings_key: str | None = _setting("EMBEDDINGS_API_KEY", _text, None, "its key", True)
    embeddings_model: str = _setting("EMBEDDINGS_MODEL", _text, "text-embedding-3-small", "its model")
    github_token: str | None = _setting(
        "GITHUB_TOKEN", _text, None, "what `highwater import github` is authorized by; unset = as anybody", True
    )
    data_dir: Path = _setting("HIGHWATER_DATA_DIR", _path, Path(".highwater"), "what the embedded parts write")
    host: str = _setting("HIGHWATER_HOST", _text, "127.0.0.1", "address of the API")
    port: int = _setting("HIGHWATER_PORT", _port, 8080, "port of the API")
    health_port: int = _setting(
        "HIGHWATER_HEALTH_PORT", _port, 0, "port of a role's /healthz, /readyz, /metrics; 0 = none"
    )
    tick_seconds: float = _setting("HIGHWATER_TICK_SECONDS", _positive_float, 30.0, "length of a tick (R0.28)")
    dirty_channels_max: int = _setting(
        "HIGHWATER_MAX_DIRTY_CHANNELS_PER_TICK", _positive_int, 500, "channels taken per tick (R0.29)"
    )
    window_days: float = _setting("HIGHWATER_WINDOW_DAYS", _positive_float, 30.0, "window of a rebuild (R0.35)")
    policy_file: Path | None = _setting("HIGHWATER_POLICY", _path, None, "TOML file, one table a plan (R0.10)")
    plans_file: Path | None = _setting(
        "HIGHWATER_PLANS", _path, None, "TOML file, one table a plan: limits of organizations (R2.32)"
    )
    namespaces_file: Path | None = _setting(
        "HIGHWATER_NAMESPACES", _path, None, "TOML file, one table a namespace: how its chunks age (R3.16)"
    )
    api_keys: str | None = _setting(
        "HIGHWATER_API_KEYS", _text, None, "role:key[:user[:organization]], comma-separated", True
    )
    clock_file: Path | None = _setting("HIGHWATER_CLOCK_FILE", _path, None, "a file with an offset in seconds")
    rebuild_insights_max: int = _setting(
        "HIGHWATER_REBUILD_INSIGHTS_MAX", _positive_int, 20_000, "bound of a rebuild (R0.35)"
    )
    rebuild_seconds_max: float = _setting(
        "HIGHWATER_REBUILD_SECONDS_MAX", _positive_float, 240.0, "time limit of a rebuild; lock and lease outlive it"
    )
    rebuild_processes: int = _setting("HIGHWATER_REBUILD_PROCESSES", _positive_int, 1, "processes that cluster")
    embed_wait_seconds: float = _setting(
        "HIGHWATER_EMBED_WAIT_SECONDS", _positive_float, 300.0, "how long a missing embedding holds its channel (R0.14)"
    )
    embedding_dimensions: int = _setting("HIGHWATER_EMBEDDING_DIMENSIONS", _positive_int, 384, "length of a vector")
    feed_ttl_seconds: float = _setting("HIGHWATER_FEED_TTL_SECONDS", _positive_float, 3600.0, "age of a feed (R0.21)")
    cluster_versions_kept: int = _setting(
        "HIGHWATER_CLUSTER_VERSIONS_KEPT", _positive_int, 10, "versions of a user's clusters kept (R0.20)"
    )
    cluster_history_versions: int = _setting(
        "HIGHWATER_CLUSTER_HISTORY_VERSIONS", _positive_int, 200, "versions whose changes of clusters are kept"
    )
    prewarm_token: str | None = _setting(
        "CACHE_PREWARM_TOKEN", _text, None, "x-prewarm-token of POST /api/cache/prewarm; unset = refused (R4.32)", True
    )
    match_lookahead_days: float = _setting(
        "MATCH_WINDOW_LOOKAHEAD_DAYS",
        _positive_float,
        7.0,
        "how far ahead match windows are looked for (R4.10)",
        lenient=True,
    )
    match_prewarm_minutes: float = _setting(
        "MATCH_WINDOW_PREWARM_MINUTES",
        _positive_float,
        45.0,
        "a match window begins so long before kickoff (R4.10)",
        lenient=True,
    )
    match_grace_minutes: float = _setting(
        "MATCH_WINDOW_POST_GRACE_MINUTES",
        _positive_float,
        30.0,
        "and ends so long after the match (R4.10)",
        lenient=True,
    )
    match_duration_minutes: float = _setting(
        "MATCH_WINDOW_DURATION_MINUTES", _positive_float, 120.0, "length of a match not finalized (R4.10)", lenient=True
    )
    vote_window_seconds: float = _setting(
        "HIGHWATER_VOTE_WINDOW_SECONDS", _vote_window, 5.0, "votes are stored and told once in so long (R4.33)"
    )
    view_window_seconds: float = _setting(
        "HIGHWATER_VIEW_WINDOW_SECONDS", _positive_float, 60.0, "views of decks are stored once in so long (R2.43)"
    )
    live_requests_max: int = _setting(
        "HIGHWATER_LIVE_REQUESTS_MAX", _positive_int, 15, "requests of one address to live pages in 10 s (R4.36)"
    )
    trusted_proxies: tuple[str, ...] = _setting(
        "HIGHWATER_TRUSTED_PROXIES", _names, (), "addresses or networks whose X-Forwarded-For is believed (R4.36)"
    )
    log_level: str = _setting("HIGHWATER_LOG_LEVEL", _text, "info", "debug, info, warning or error")
    log_format: str = _setting("HIGHWATER_LOG_FORMAT", _text, "json", "json or console")
    replication_factor: int = _setting("HIGHWATER_REPLICATION_FACTOR", _positive_int, 1, "replicas of each topic")

    def kafka_client(self) -> dict[str, str]:
        """The connection settings of a librdkafka client.

        Raises:
            ConfigurationError: no broker is known.
        """
        if self.kafka is None:
            raise ConfigurationError("KAFKA_BOOTSTRAP_SERVERS is not set; `highwater up` sets it for its own processes")
        given = {
            "bootstrap.servers": self.kafka,
            "security.protocol": self.kafka_security_protocol,
            "sasl.mechanism": self.kafka_sasl_mechanism,
            "sasl.username": self.kafka_sasl_username,
            "sasl.password": self.kafka_sasl_password,
            "ssl.ca.location": self.kafka_ssl_ca_location,
            "ssl.certificate.location": self.kafka_ssl_certificate_location,
            "ssl.key.location": self.kafka_ssl_key_location,
        }
        # Nagle's algorithm holds a small request back until the one before is acknowledged, which takes Linux up to 40 ms.
        return {key: value for key, value in given.items() if value is not None} | {"socket.nagle.disable": "true"}


# Name in the environment -> what it is for. The documentation and docker-compose are checked against it.
SETTINGS: Mapping[str, str] = {f.metadata["name"]: f.metadata["about"] for f in fields(Settings)}


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings in an environment.

    Raises:
        ConfigurationError: an unknown `HIGHWATER_*` name, or a value that cannot be read; a lenient one is left at its default.
    """
    for name in environment:
        if name.startswith(PREFIX) and name not in SETTINGS:
            raise ConfigurationError(f"{name} is not a setting; see `highwater doctor --settings` for those there are")
    values: dict[str, Any] = {}
    for f in fields(Settings):
        raw = environment.get(f.metadata["name"], "").strip()
        if not raw:
            continue
        try:
            values[f.name] = f.metadata["parse"](raw)
        except ValueError as error:
            if f.metadata["lenient"]:
                _log.warning("%s=%r cannot be read (%s); %s is taken", f.metadata["name"], raw, error, f.default)
                continue
            shown = "(secret)" if f.metadata["secret"] else repr(raw)
            raise ConfigurationError(f"{f.metadata['name']}={shown} cannot be read: {error}") from error
    return Settings(**values)


def environment_with_file(path: Path = Path(".env")) -> dict[str, str]:
    """The process environment over the names in a `.env` file (`NAME=value` lines; `#` starts a comment line).

    Raises:
        ConfigurationError: a line has another form.
    """
    names: dict[str, str] = {}
    if path.is_file():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            text = line.strip().removeprefix("export ").strip()
            if not text or text.startswith("#"):
                continue
            name, separator, value = text.partition("=")
            if not separator:
                raise ConfigurationError(f"{path}:{number} is not NAME=value")
            names[name.strip()] = value.strip().strip("'\"")
    return {**names, **os.environ}
