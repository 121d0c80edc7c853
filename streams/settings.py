"""The catalogue of settings. Everything configurable is declared here, read once, and typed.

An unknown `HIGHWATER_*` name or an invalid value stops the program with one line that names it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from highwater.schemas.errors import ConfigurationError
from highwater.schemas.topics import PARTITIONS, PARTITIONS_MAX
from highwater.streams.access import KafkaAccess, RegistryAccess

# The standard library's, which `telemetry.configure_logging` takes over: `--help` reads settings and must stay quick.
_log = logging.getLogger("highwater.settings")
PREFIX = "HIGHWATER_"
# The embedders (`connectors/models/opening.py`).
EMBEDDERS = ("builtin", "local", "service")
# The rerankers of hybrid searches (`connectors/models/opening.py`).
RERANKERS = ("local", "service")
LOG_LEVELS, LOG_FORMATS = ("debug", "info", "warn", "warning", "error", "critical"), ("json", "console")


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


def _partitions(raw: str) -> int:
    value = int(raw)
    if not 1 <= value <= PARTITIONS_MAX:
        raise ValueError(f"must be 1 to {PARTITIONS_MAX}")
    return value


def _port(raw: str) -> int:
    value = int(raw)
    if not 0 <= value <= 65535:
        raise ValueError("must be a port")
    return value


def _names(raw: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in raw.split(",") if name.strip())


def _words(raw: str) -> tuple[str, ...]:
    return tuple(raw.split())


def _within(low: float, high: float, more: str = "") -> Callable[[str], float]:
    """Return a parser of numbers from `low` to `high`; `more` ends the error message."""

    def parse(raw: str) -> float:
        value = float(raw)
        if not low <= value <= high:
            raise ValueError(f"must be {low:g} to {high:g}{more}")
        return value

    return parse


def _one_of(*words: str) -> Callable[[str], str]:
    """Return a parser of one of these words, in any case."""

    def parse(raw: str) -> str:
        if raw.lower() not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return raw.lower()

    return parse


def _http_address(raw: str) -> str:
    if not raw.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return raw


def _trace_page(raw: str) -> str:
    if "{trace_id}" not in raw:
        raise ValueError("must have {trace_id} in it")
    return _http_address(raw)


# A field of the catalogue; ruff's RUF009 is about defaults shared between instances, which is fine for these immutable
# ones.
def _setting(
    name: str, parse: Callable[[str], Any], default: Any, about: str, secret: bool = False, lenient: bool = False
) -> Any:
    """Declare one setting; an invalid `lenient` one keeps its default, with a warning (R4.10)."""
    told = {"name": name, "parse": parse, "about": about, "secret": secret, "lenient": lenient}
    return field(default=default, metadata=told, repr=not secret)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its value; the name in the environment is beside each."""

    kafka: str | None = _setting("KAFKA_BOOTSTRAP_SERVERS", _text, None, "brokers; unset = the embedded one")
    kafka_security_protocol: str | None = _setting("KAFKA_SECURITY_PROTOCOL", _text, None, "as in the Kafka clients")
    kafka_sasl_mechanism: str | None = _setting("KAFKA_SASL_MECHANISM", _text, None, "as in the Kafka clients")
    kafka_sasl_username: str | None = _setting("KAFKA_SASL_USERNAME", _text, None, "as in the Kafka clients")
    kafka_sasl_password: str | None = _setting("KAFKA_SASL_PASSWORD", _text, None, "as in the Kafka clients", True)
    kafka_sasl_password_file: Path | None = _setting(
        "KAFKA_SASL_PASSWORD_FILE", _path, None, "a file that holds KAFKA_SASL_PASSWORD"
    )
    kafka_ssl_ca_location: str | None = _setting("KAFKA_SSL_CA_LOCATION", _text, None, "as in the Kafka clients")
    kafka_ssl_certificate_location: str | None = _setting(
        "KAFKA_SSL_CERTIFICATE_LOCATION", _text, None, "as in the Kafka clients"
    )
    kafka_ssl_key_location: str | None = _setting("KAFKA_SSL_KEY_LOCATION", _text, None, "as in the Kafka clients")
    kafka_ssl_key_password: str | None = _setting(
        "KAFKA_SSL_KEY_PASSWORD", _text, None, "as in the Kafka clients", True
    )
    kafka_principals: str | None = _setting(
        "HIGHWATER_KAFKA_PRINCIPALS",
        _text,
        None,
        "users of Kafka that `highwater init` sets up, as in `worker:password,api:password`",
        True,
    )
    schema_registry: str | None = _setting("SCHEMA_REGISTRY_URL", _text, None, "registry; unset = the embedded one")
    schema_registry_username: str | None = _setting(
        "SCHEMA_REGISTRY_USERNAME", _text, None, "user of the registry (basic authentication)"
    )
    schema_registry_password: str | None = _setting("SCHEMA_REGISTRY_PASSWORD", _text, None, "its password", True)
    schema_registry_password_file: Path | None = _setting(
        "SCHEMA_REGISTRY_PASSWORD_FILE", _path, None, "a file that holds SCHEMA_REGISTRY_PASSWORD"
    )
    schema_registry_ssl_ca_location: str | None = _setting(
        "SCHEMA_REGISTRY_SSL_CA_LOCATION", _text, None, "PEM file of the authorities that may certify the registry"
    )
    schema_registry_ssl_certificate_location: str | None = _setting(
        "SCHEMA_REGISTRY_SSL_CERTIFICATE_LOCATION", _text, None, "PEM file of the client's certificate"
    )
    schema_registry_ssl_key_location: str | None = _setting(
        "SCHEMA_REGISTRY_SSL_KEY_LOCATION", _text, None, "PEM file of its key"
    )
    database: str | None = _setting("DATABASE_URL", _text, None, "PostgreSQL; unset = the embedded one", True)
    # With a check each second a read waits for 5 s: most clients and balancers give up after 10 to 60.
    database_silence_seconds: float = _setting(
        "HIGHWATER_DATABASE_SILENCE_SECONDS",
        _positive_float,
        4.0,
        "PostgreSQL counts as unavailable to the API after this time without an answer: reads are 503 or served as stale",
    )
    redis: str | None = _setting("REDIS_URL", _text, None, "Redis; unset = the embedded one", True)
    redis_cache: str | None = _setting(
        "REDIS_CACHE_URL",
        _text,
        None,
        "a second Redis for evictable keys (allkeys-lru); unset = REDIS_URL for both",
        True,
    )
    redis_connections: int = _setting(
        "HIGHWATER_REDIS_CONNECTIONS", _positive_int, 8, "maximum connections of one process to each Redis"
    )
    redis_payload_bytes_max: int = _setting(
        "HIGHWATER_REDIS_PAYLOAD_BYTES_MAX",
        _positive_int,
        16_384,
        "longer payloads go to HIGHWATER_OBJECT_STORE, if set, with a pointer in Redis",
    )
    object_store: str | None = _setting(
        "HIGHWATER_OBJECT_STORE", _text, None, "s3://bucket/folder for large payloads; unset = all of them in Redis"
    )
    object_store_endpoint: str | None = _setting(
        "AWS_ENDPOINT_URL", _text, None, "address of an S3-compatible service; unset = Amazon's"
    )
    object_store_region: str = _setting("AWS_REGION", _text, "us-east-1", "its region")
    object_store_key: str | None = _setting("AWS_ACCESS_KEY_ID", _text, None, "its access key", True)
    object_store_secret: str | None = _setting("AWS_SECRET_ACCESS_KEY", _text, None, "its secret key", True)
    llm_url: str | None = _setting("LLM_BASE_URL", _text, None, "OpenAI-compatible service; unset = extractive")
    llm_key: str | None = _setting("LLM_API_KEY", _text, None, "its key", True)
    llm_model: str = _setting("LLM_MODEL", _text, "gpt-4o-mini", "its model")
    llm_strong_model: str = _setting("LLM_STRONG_MODEL", _text, "gpt-4o", "its model for answers to queries")
    llm_timeout_seconds: float = _setting(
        "HIGHWATER_LLM_TIMEOUT_SECONDS", _positive_float, 30.0, "time limit of a model call in a query"
    )
    llm_context_tokens: str = _setting(
        "HIGHWATER_LLM_CONTEXT_TOKENS",
        _text,
        "",
        "model=tokens that a model reads and writes at most, comma-separated; without it, they are learnt from a refusal",
    )
    llm_prices: str = _setting(
        "HIGHWATER_LLM_PRICES",
        _text,
        "gpt-4o-mini=0.15/0.60,gpt-4o=2.50/10.00",
        "model=input/output in USD per million tokens, comma-separated",
    )
    query_lease_seconds: float = _setting(
        "HIGHWATER_QUERY_LEASE_SECONDS", _positive_float, 120.0, "a stage of a query that takes longer is started again"
    )
    query_concurrency: int = _setting(
        "HIGHWATER_QUERY_CONCURRENCY", _positive_int, 64, "maximum queries that one process works on at once"
    )
    # Three quarters of the slots of one process, as for jobs.
    query_concurrency_per_organization: int = _setting(
        "HIGHWATER_QUERY_CONCURRENCY_PER_ORGANIZATION",
        _positive_int,
        48,
        "maximum queries of one organization in progress, in all processes; queries without an organization are not limited",
    )
    job_lease_seconds: float = _setting(
        "HIGHWATER_JOB_LEASE_SECONDS",
        _positive_float,
        600.0,
        "a step of a job that takes longer is started again",
    )
    job_concurrency: int = _setting(
        "HIGHWATER_JOB_CONCURRENCY", _positive_int, 16, "maximum jobs of a kind that one process works on at once"
    )
    # Three quarters of the slots of one process: the last quarter is free for others, even with a single worker.
    job_concurrency_per_organization: int = _setting(
        "HIGHWATER_JOB_CONCURRENCY_PER_ORGANIZATION",
        _positive_int,
        12,
        "maximum jobs of a kind of one organization in progress, in all processes",
    )
    google_credentials_file: Path | None = _setting(
        "HIGHWATER_GOOGLE_CREDENTIALS_FILE",
        _path,
        None,
        "a service account or an authorized user, as Google's JSON, for exports to Google Slides; unset = none",
    )
    google_access_token: str | None = _setting(
        "HIGHWATER_GOOGLE_ACCESS_TOKEN",
        _text,
        None,
        "OAuth token of Google instead, with the scope drive.file",
        True,
    )
    google_folder_id: str | None = _setting(
        "HIGHWATER_GOOGLE_FOLDER_ID", _text, None, "folder in Google Drive for exports"
    )
    google_api_url: str = _setting(
        "HIGHWATER_GOOGLE_API_URL", _text, "https://www.googleapis.com", "the address of Google's API"
    )
    alert_smtp_url: str | None = _setting(
        "HIGHWATER_ALERT_SMTP_URL",
        _text,
        None,
        "smtp://, smtp+starttls:// or smtps:// [user:password@]host[:port]",
        True,
    )
    alert_email_from: str | None = _setting("HIGHWATER_ALERT_EMAIL_FROM", _text, None, "sender of alerts")
    alert_email_to: tuple[str, ...] = _setting(
        "HIGHWATER_ALERT_EMAIL_TO", _names, (), "recipients of alerts, comma-separated"
    )
    alert_webhook_url: str | None = _setting(
        "HIGHWATER_ALERT_WEBHOOK_URL", _text, None, "address that receives each alert as JSON by POST", True
    )
    alert_urls: tuple[str, ...] = _setting(
        "HIGHWATER_ALERT_URLS",
        _words,
        (),
        "addresses of services as apprise writes them, separated by spaces; each receives every alert",
        True,
    )
    digests_file: Path | None = _setting(
        "HIGHWATER_DIGESTS", _path, None, "TOML file of digests that are sent once a day, one table [[digest]] each"
    )
    embeddings_url: str | None = _setting(
        "EMBEDDINGS_BASE_URL", _text, None, "OpenAI-compatible service of embeddings; unset = see HIGHWATER_EMBEDDER"
    )
    embeddings_key: str | None = _setting("EMBEDDINGS_API_KEY", _text, None, "its key", True)
    embeddings_model: str = _setting("EMBEDDINGS_MODEL", _text, "text-embedding-3-small", "its model")
    reranker: str | None = _setting(
        "HIGHWATER_RERANKER",
        _one_of(*RERANKERS),
        None,
        "reranker of hybrid searches: local or service; unset = service if configured, else none",
    )
    rerank_url: str | None = _setting(
        "HIGHWATER_RERANK_BASE_URL",
        _text,
        None,
        "reranking service for searches, with /rerank like text-embeddings-inference, Cohere or Jina; unset = none",
    )
    rerank_key: str | None = _setting("HIGHWATER_RERANK_API_KEY", _text, None, "its key", True)
    rerank_model: str | None = _setting(
        "HIGHWATER_RERANK_MODEL",
        _text,
        None,
        "its model; unset = the service has only one, like text-embeddings-inference",
    )
    embedder: str | None = _setting(
        "HIGHWATER_EMBEDDER",
        _one_of(*EMBEDDERS),
        None,
        "embedder: builtin, local or service; unset = service if configured, else local if installed",
    )
    # The second core is for ingest, rebuilds and readers.
    embed_threads: int = _setting("HIGHWATER_EMBED_THREADS", _positive_int, 1, "threads of the local model per process")
    model_dir: Path = _setting(
        "HIGHWATER_MODEL_DIR",
        _path,
        Path(sys.prefix) / "share" / "highwater" / "models",
        "folder of the local model; unset = where `make install` puts it",
    )
    github_token: str | None = _setting(
        "GITHUB_TOKEN", _text, None, "token of `highwater import github`; unset = anonymous", True
    )
    data_dir: Path = _setting("HIGHWATER_DATA_DIR", _path, Path(".highwater"), "folder of the embedded services' data")
    host: str = _setting("HIGHWATER_HOST", _text, "127.0.0.1", "address of the API, and of a role's health port")
    port: int = _setting("HIGHWATER_PORT", _port, 8080, "port of the API")
    health_port: int = _setting(
        "HIGHWATER_HEALTH_PORT", _port, 0, "port of a role's /healthz, /readyz, /metrics; 0 = none"
    )
    up_timeout_seconds: float = _setting(
        "HIGHWATER_UP_TIMEOUT_SECONDS",
        _positive_float,
        480.0,
        "how long `highwater up` waits for a service before it gives up; services that are ready stay",
    )
    tick_seconds: float = _setting("HIGHWATER_TICK_SECONDS", _positive_float, 30.0, "time between two ticks")
    dirty_channels_max: int = _setting(
        "HIGHWATER_MAX_DIRTY_CHANNELS_PER_TICK", _positive_int, 500, "maximum channels processed per tick"
    )
    window_days: float = _setting(
        "HIGHWATER_WINDOW_DAYS", _positive_float, 30.0, "window of a rebuild: insights up to this age"
    )
    policy_file: Path | None = _setting(
        "HIGHWATER_POLICY", _path, None, "TOML file with the rebuild policy, one table per plan"
    )
    plans_file: Path | None = _setting(
        "HIGHWATER_PLANS", _path, None, "TOML file with the limits of organizations, one table per plan"
    )
    namespaces_file: Path | None = _setting(
        "HIGHWATER_NAMESPACES",
        _path,
        None,
        "TOML file with the settings of namespaces of chunks, one table per namespace",
    )
    api_keys: str | None = _setting(
        "HIGHWATER_API_KEYS", _text, None, "role:key[:user[:organization]], comma-separated", True
    )
    api_keys_file: Path | None = _setting(
        "HIGHWATER_API_KEYS_FILE", _path, None, "file of hashed keys, made by `highwater keys`; re-read when it changes"
    )
    api_key: str | None = _setting(
        "HIGHWATER_API_KEY", _text, None, "the key that commands and the Python client send to the API", True
    )
    oidc_issuer: str | None = _setting(
        "HIGHWATER_OIDC_ISSUER", _text, None, "address of the OpenID provider whose tokens are accepted; unset = none"
    )
    oidc_client_id: str | None = _setting("HIGHWATER_OIDC_CLIENT_ID", _text, None, "the dashboard's client there")
    oidc_client_secret: str | None = _setting(
        "HIGHWATER_OIDC_CLIENT_SECRET", _text, None, "its secret; unset = a public client", True
    )
    oidc_client_secret_file: Path | None = _setting(
        "HIGHWATER_OIDC_CLIENT_SECRET_FILE", _path, None, "a file that holds the secret instead"
    )
    oidc_audience: tuple[str, ...] = _setting(
        "HIGHWATER_OIDC_AUDIENCE", _names, (), "audiences accepted in tokens beside the client, comma-separated"
    )
    oidc_algorithms: tuple[str, ...] = _setting(
        "HIGHWATER_OIDC_ALGORITHMS",
        _names,
        ("RS256", "PS256", "ES256", "EdDSA", "Ed25519"),
        "signature algorithms accepted in tokens, comma-separated",
    )
    oidc_scopes: tuple[str, ...] = _setting(
        "HIGHWATER_OIDC_SCOPES", _names, ("openid", "profile", "email"), "scopes that the dashboard's sign-in requests"
    )
    oidc_user_claim: str = _setting("HIGHWATER_OIDC_USER_CLAIM", _text, "sub", "claim that holds the user's id")
    oidc_organization_claim: str | None = _setting(
        "HIGHWATER_OIDC_ORGANIZATION_CLAIM", _text, None, "claim that holds the organization's id; unset = none"
    )
    oidc_role_claim: str = _setting(
        "HIGHWATER_OIDC_ROLE_CLAIM", _text, "roles", "claim that holds the roles; a dot descends into an object"
    )
    oidc_roles: str = _setting(
        "HIGHWATER_OIDC_ROLES",
        _text,
        "viewer=viewer,editor=editor,admin=admin",
        "value=viewer|editor|admin, comma-separated: the role that each value of the claim gives",
    )
    oidc_redirect_url: str | None = _setting(
        "HIGHWATER_OIDC_REDIRECT_URL",
        _text,
        None,
        "address of /login/openid/callback; unset = derived from the request",
    )
    clock_file: Path | None = _setting("HIGHWATER_CLOCK_FILE", _path, None, "file with seconds to add to the clock")
    rebuild_insights_max: int = _setting(
        "HIGHWATER_REBUILD_INSIGHTS_MAX", _positive_int, 20_000, "maximum insights of a rebuild"
    )
    rebuild_seconds_max: float = _setting(
        "HIGHWATER_REBUILD_SECONDS_MAX", _positive_float, 240.0, "processor time of a rebuild"
    )
    rebuild_processes: int | None = _setting(
        "HIGHWATER_REBUILD_PROCESSES",
        _positive_int,
        None,
        "processes for clustering; unset = one per core if `connect rebuild` runs alone, else 1",
    )
    embed_wait_seconds: float = _setting(
        "HIGHWATER_EMBED_WAIT_SECONDS", _positive_float, 300.0, "how long a channel waits for a missing embedding"
    )
    embedding_dimensions: int = _setting("HIGHWATER_EMBEDDING_DIMENSIONS", _positive_int, 384, "length of a vector")
    feed_ttl_seconds: float = _setting("HIGHWATER_FEED_TTL_SECONDS", _positive_float, 3600.0, "TTL of a feed")
    cluster_versions_kept: int = _setting(
        "HIGHWATER_CLUSTER_VERSIONS_KEPT", _positive_int, 10, "versions of a user's clusters that are kept"
    )
    cluster_history_versions: int = _setting(
        "HIGHWATER_CLUSTER_HISTORY_VERSIONS", _positive_int, 200, "versions whose cluster changes are kept"
    )
    prewarm_token: str | None = _setting(
        "CACHE_PREWARM_TOKEN",
        _text,
        None,
        "x-prewarm-token of POST /api/cache/prewarm; unset = always refused",
        True,
    )
    match_lookahead_days: float = _setting(
        "MATCH_WINDOW_LOOKAHEAD_DAYS",
        _positive_float,
        7.0,
        "how many days ahead match windows are computed",
        lenient=True,
    )
    match_prewarm_minutes: float = _setting(
        "MATCH_WINDOW_PREWARM_MINUTES",
        _positive_float,
        45.0,
        "minutes before kickoff at which a match window begins",
        lenient=True,
    )
    match_grace_minutes: float = _setting(
        "MATCH_WINDOW_POST_GRACE_MINUTES",
        _positive_float,
        30.0,
        "minutes after the match at which its window ends",
        lenient=True,
    )
    match_duration_minutes: float = _setting(
        "MATCH_WINDOW_DURATION_MINUTES",
        _positive_float,
        120.0,
        "assumed length of a match without a final result",
        lenient=True,
    )
    vote_window_seconds: float = _setting(
        "HIGHWATER_VOTE_WINDOW_SECONDS",
        _within(5, 10, " (R4.33)"),
        5.0,
        "votes are collected for this time and then stored together",
    )
    lease_seconds: float = _setting(
        "HIGHWATER_LEASE_SECONDS",
        _within(2, 600, ": a shorter time takes a busy machine for a dead one"),
        10.0,
        "time after which another worker takes over from one that hangs or is lost",
    )
    view_window_seconds: float = _setting(
        "HIGHWATER_VIEW_WINDOW_SECONDS",
        _positive_float,
        60.0,
        "views of presentations are stored once per this time",
    )
    caller_requests_per_minute: int = _setting(
        "HIGHWATER_CALLER_REQUESTS_PER_MINUTE",
        _positive_int,
        1_200,  # twenty a second: four commands of one user that poll as `highwater ask` does
        "maximum calls of a user per minute to cheap operations that the plan does not limit",
    )
    public_league: str = _setting(
        "HIGHWATER_PUBLIC_LEAGUE",
        _one_of("on", "off"),
        "off",
        "on: pages of leagues, and the documents that they show, need no API key",
    )
    live_requests_max: int = _setting(
        "HIGHWATER_LIVE_REQUESTS_MAX", _positive_int, 15, "maximum requests of one IP address to live pages in 10 s"
    )
    trusted_proxies: tuple[str, ...] = _setting(
        "HIGHWATER_TRUSTED_PROXIES",
        _names,
        (),
        "addresses or networks of proxies whose X-Forwarded-For, -Proto and -Host headers are trusted",
    )
    allowed_origins: tuple[str, ...] = _setting(
        "HIGHWATER_ALLOWED_ORIGINS", _names, (), "origins of other sites whose pages may use the API, comma-separated"
    )
    connections_max: int = _setting(
        "HIGHWATER_CONNECTIONS_MAX", _positive_int, 10_000, "maximum connections to the API"
    )
    connections_per_address_max: int = _setting(
        "HIGHWATER_CONNECTIONS_PER_ADDRESS_MAX",
        _positive_int,
        1_000,
        "maximum connections of one address; trusted proxies have no limit",
    )
    tls_cert_file: Path | None = _setting(
        "HIGHWATER_TLS_CERT_FILE", _path, None, "PEM certificate chain of the API; unset = http"
    )
    tls_key_file: Path | None = _setting("HIGHWATER_TLS_KEY_FILE", _path, None, "PEM private key of that certificate")
    ca_file: Path | None = _setting(
        "HIGHWATER_CA_FILE",
        _path,
        None,
        "PEM certificates that commands and the client trust for the API; unset = the system's",
    )
    api_url: str | None = _setting(
        "HIGHWATER_API_URL",
        _text,
        None,
        "where commands and the client find the API; unset = on HIGHWATER_HOST and _PORT",
    )
    log_level: str = _setting("HIGHWATER_LOG_LEVEL", _one_of(*LOG_LEVELS), "info", "debug, info, warning or error")
    log_format: str = _setting("HIGHWATER_LOG_FORMAT", _one_of(*LOG_FORMATS), "json", "json or console")
    # A relay publishes some thousand rows a second: half a minute of them, or no relay runs.
    shed_outbox_rows: int = _setting(
        "HIGHWATER_SHED_OUTBOX_ROWS",
        _positive_int,
        50_000,
        "events in the outbox above which writes are rejected (429)",
    )
    # A relay whose host is lost is replaced within HIGHWATER_LEASE_SECONDS, during which no write may be refused.
    shed_outbox_seconds: float = _setting(
        "HIGHWATER_SHED_OUTBOX_SECONDS",
        _positive_float,
        120.0,
        "age of the oldest event in the outbox above which writes are rejected (429)",
    )
    # Minutes of the insights sink on two cores: events behind it are served late, but within an acceptable wait.
    shed_lag_events: int = _setting(
        "HIGHWATER_SHED_LAG_EVENTS",
        _positive_int,
        1_000_000,
        "number of unprocessed events of a sink above which writes to it are rejected (429)",
    )
    otlp_endpoint: str | None = _setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT", _http_address, None, "collector of traces (OTLP over HTTP); unset = no spans"
    )
    otlp_headers: str | None = _setting(
        "OTEL_EXPORTER_OTLP_HEADERS", _text, None, "headers for it, name=value separated by commas", True
    )
    # A trace costs a span per hop; callers that send a sampled `traceparent` are traced in any case.
    trace_ratio: float = _setting(
        "OTEL_TRACES_SAMPLER_ARG", _within(0, 1), 0.01, "share of writes without a traceparent that begin a trace"
    )
    trace_url: str | None = _setting(
        "HIGHWATER_TRACE_URL",
        _trace_page,
        None,
        "page of a trace, with {trace_id} in its address; `explain` and the dashboard link to it",
    )
    replication_factor: int = _setting("HIGHWATER_REPLICATION_FACTOR", _positive_int, 1, "replicas of each topic")
    partitions: int = _setting(
        "HIGHWATER_PARTITIONS",
        _partitions,
        PARTITIONS,
        "partitions of each topic with a key, chosen before the first `init`; the same for every process",
    )

    def kafka_access(self) -> KafkaAccess:
        """Return the access to the brokers.

        Raises:
            ConfigurationError: no broker is known, or a setting of its security cannot be used.
        """
        if self.kafka is None:
            raise ConfigurationError("KAFKA_BOOTSTRAP_SERVERS is not set; `highwater up` sets it for its own processes")
        return KafkaAccess(
            brokers=self.kafka,
            protocol=self.kafka_security_protocol,
            mechanism=self.kafka_sasl_mechanism,
            username=self.kafka_sasl_username,
            password=_secret("KAFKA_SASL_PASSWORD", self.kafka_sasl_password, self.kafka_sasl_password_file),
            ca=self.kafka_ssl_ca_location,
            certificate=self.kafka_ssl_certificate_location,
            key=self.kafka_ssl_key_location,
            key_password=self.kafka_ssl_key_password,
        ).checked()

    def kafka_client(self) -> dict[str, str]:
        """Return the connection settings of a librdkafka client.

        Raises:
            ConfigurationError: no broker is known, or a setting of its security cannot be used.
        """
        # Nagle's algorithm delays a small request until the previous one is acknowledged, which takes Linux up to 40
        # ms.
        return self.kafka_access().librdkafka() | {"socket.nagle.disable": "true"}

    def check_job_lease(self) -> None:
        """Refuse a lease of jobs that ends before a call of the model does.

        Raises:
            ConfigurationError: it does.
        """
        if self.job_lease_seconds <= self.llm_timeout_seconds:
            raise ConfigurationError("HIGHWATER_JOB_LEASE_SECONDS must be above HIGHWATER_LLM_TIMEOUT_SECONDS")

    def registry_access(self) -> RegistryAccess | None:
        """Return the access to the registry; None if no address is known.

        Raises:
            ConfigurationError: a setting of its security cannot be used.
        """
        if self.schema_registry is None:
            return None
        password = _secret(
            "SCHEMA_REGISTRY_PASSWORD", self.schema_registry_password, self.schema_registry_password_file
        )
        return RegistryAccess.of(
            self.schema_registry,
            username=self.schema_registry_username,
            password=password,
            ca=self.schema_registry_ssl_ca_location,
            certificate=self.schema_registry_ssl_certificate_location,
            key=self.schema_registry_ssl_key_location,
        ).checked()


def _secret(name: str, value: str | None, path: Path | None) -> str | None:
    """Return a configured secret, or the first line of its file.

    Raises:
        ConfigurationError: both are set, or the file cannot be read.
    """
    if path is None:
        return value
    if value is not None:
        raise ConfigurationError(f"{name} and {name}_FILE are both set; set one of them")
    try:
        return path.read_text(encoding="utf-8").split("\n", 1)[0].strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name}_FILE={path} cannot be read: {error}") from error


# Name in the environment -> description. The documentation and docker-compose are checked against it.
SETTINGS: Mapping[str, str] = {f.metadata["name"]: f.metadata["about"] for f in fields(Settings)}


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings in an environment.

    Raises:
        ConfigurationError: an unknown `HIGHWATER_*` name, or an invalid value; a lenient one keeps its default.
    """
    for name in environment:
        if name.startswith(PREFIX) and name not in SETTINGS:
            raise ConfigurationError(f"{name} is not a setting; see `highwater doctor --settings` lists the known ones")
    values: dict[str, Any] = {}
    for f in fields(Settings):
        raw = environment.get(f.metadata["name"], "").strip()
        if not raw:
            continue
        try:
            values[f.name] = f.metadata["parse"](raw)
        except ValueError as error:
            if f.metadata["lenient"]:
                _log.warning("%s=%r cannot be read (%s); using %s", f.metadata["name"], raw, error, f.default)
                continue
            shown = "(secret)" if f.metadata["secret"] else repr(raw)
            raise ConfigurationError(f"{f.metadata['name']}={shown} cannot be read: {error}") from error
    return Settings(**values)


def environment_with_file(path: Path = Path(".env")) -> dict[str, str]:
    """Return the process environment, with the names in a `.env` file as defaults (`NAME=value` lines; `#` starts a
    comment line).

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
