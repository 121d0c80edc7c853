"""Access to Kafka and the registry: the options by which each client library authenticates and checks the other side.

Invariant: every client of the two is created from these values, so a setting applies to all clients; invalid values are
refused before any connection, by the name of their setting.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from highwater.schemas.errors import ConfigurationError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# What all client libraries in use support; a mechanism that only some know would stop the others later.
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

# Field of `KafkaAccess` -> librdkafka's name.
_LIBRDKAFKA: Mapping[str, str] = {
    "brokers": "bootstrap.servers",
    "protocol": "security.protocol",
    "mechanism": "sasl.mechanism",
    "username": "sasl.username",
    "password": "sasl.password",
    "ca": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "key": "ssl.key.location",
    "key_password": "ssl.key.password",
}


# A registry's statuses for refused credentials (RFC 9110), and the remedy.
REGISTRY_REFUSED = (401, 403)
REGISTRY_CREDENTIALS = "correct SCHEMA_REGISTRY_USERNAME and SCHEMA_REGISTRY_PASSWORD"


def registry_untrusted(refusal: str) -> str:
    """Return the message about a registry that TLS refuses."""
    return f"the schema registry at SCHEMA_REGISTRY_URL is not trusted (SCHEMA_REGISTRY_SSL_CA_LOCATION): {refusal}"


@functools.cache
def trusts_nobody() -> ssl.SSLContext:
    """Return the context for a plain HTTP client: it meets no certificate, and httpx2 would load the public authorities
    (25 ms).
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def trust_for(address: str) -> ssl.SSLContext | bool:
    """Return `verify` of an httpx2 client that follows no redirects from this address: the public authorities if it uses TLS."""
    return trusts_nobody() if address.startswith("http://") else True


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """The access to the brokers. Certificates and keys are paths of PEM files."""

    brokers: str
    protocol: str | None = None
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)

    @classmethod
    def of_client(cls, client: Mapping[str, str]) -> KafkaAccess:
        """Return the access behind librdkafka's options."""
        return cls(**{name: client[option] for name, option in _LIBRDKAFKA.items() if option in client})

    @property
    def is_encrypted(self) -> bool:
        """Return whether the connection is TLS."""
        return (self.protocol or "PLAINTEXT").endswith("SSL")

    @property
    def is_authenticated(self) -> bool:
        """Return whether a name and a password are sent."""
        return (self.protocol or "PLAINTEXT").startswith("SASL")

    def checked(self) -> KafkaAccess:
        """Return this access, the protocol and the mechanism in capitals.

        Raises:
            ConfigurationError: a protocol or mechanism is unknown, a credential is missing, or a file cannot be used.
        """
        protocol = None if self.protocol is None else self.protocol.upper()
        mechanism = None if self.mechanism is None else self.mechanism.upper()
        if protocol is not None and protocol not in PROTOCOLS:
            raise ConfigurationError(f"KAFKA_SECURITY_PROTOCOL={protocol} is not one of {', '.join(PROTOCOLS)}")
        if mechanism is not None and mechanism not in MECHANISMS:
            raise ConfigurationError(f"KAFKA_SASL_MECHANISM={mechanism} is not one of {', '.join(MECHANISMS)}")
        if protocol is not None and protocol.startswith("SASL"):
            needed = {
                "KAFKA_SASL_MECHANISM": mechanism,
                "KAFKA_SASL_USERNAME": self.username,
                "KAFKA_SASL_PASSWORD": self.password,
            }
            missing = [name for name, value in needed.items() if value is None]
            if missing:
                raise ConfigurationError(f"KAFKA_SECURITY_PROTOCOL={protocol} needs {' and '.join(missing)}")
        values = {name: getattr(self, name) for name in _LIBRDKAFKA}
        access = KafkaAccess(**{**values, "protocol": protocol, "mechanism": mechanism})
        access.context()
        return access

    def librdkafka(self) -> dict[str, str]:
        """Return the connection options of confluent-kafka's clients."""
        values = {option: getattr(self, name) for name, option in _LIBRDKAFKA.items()}
        return {option: value for option, value in values.items() if value is not None}

    def aiokafka(self) -> dict[str, Any]:
        """Return the connection options of aiokafka's clients."""
        return {
            "bootstrap_servers": self.brokers,
            "security_protocol": self.protocol or "PLAINTEXT",
            "ssl_context": self.context(),
            "sasl_mechanism": self.mechanism or "PLAIN",
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
        }

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the brokers; None without TLS.

        Raises:
            ConfigurationError: a certificate or key cannot be loaded.
        """
        if not self.is_encrypted:
            return None
        context = _verifying("KAFKA_SSL_CA_LOCATION", self.ca)
        if self.certificate is not None:
            _identify(context, "KAFKA_SSL_", self.certificate, self.key, self.key_password)
        return context


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """The access to the schema registry; `url` holds no credentials."""

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, address: str, **more: str | None) -> RegistryAccess:
        """Return the access of an address, whose name and password are used if `more` has none."""
        parts = urlsplit(address)
        known = {name: value for name, value in more.items() if value is not None}
        if parts.username is not None:
            own = {"username": unquote(parts.username), "password": unquote(parts.password or "")}
            known = {**own, **known}
        bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        return cls(bare.rstrip("/"), **known)

    @classmethod
    def required(cls, address: RegistryAccess | str | None) -> RegistryAccess:
        """Return the access; a plain address becomes one.

        Raises:
            ConfigurationError: no address is known.
        """
        if address is None:
            raise ConfigurationError("SCHEMA_REGISTRY_URL is not set; `highwater up` sets it for its own processes")
        return cls.of(address) if isinstance(address, str) else address

    def checked(self) -> RegistryAccess:
        """Return this access after checks.

        Raises:
            ConfigurationError: a file cannot be used, or is given for an address without TLS.
        """
        if not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"SCHEMA_REGISTRY_URL={self.url} is not an http or https address")
        try:
            urlsplit(self.url).port  # noqa: B018 - it is read, and checked, here
        except ValueError as error:
            raise ConfigurationError(f"SCHEMA_REGISTRY_URL={self.url}: {error}") from error
        if self.ca is not None and not self.url.startswith("https://"):
            raise ConfigurationError("SCHEMA_REGISTRY_SSL_CA_LOCATION is set, and SCHEMA_REGISTRY_URL is not https")
        self.context()
        return self

    @property
    def address(self) -> str:
        """Return the address including the credentials, for tools that accept nothing else."""
        if self.credentials is None:
            return self.url
        user = ":".join(quote(part, safe="") for part in self.credentials)
        return self.url.replace("://", f"://{user}@", 1)

    @property
    def credentials(self) -> tuple[str, str] | None:
        """Return name and password for basic authentication (RFC 7617)."""
        return None if self.username is None else (self.username, self.password or "")

    def http_client(self) -> dict[str, Any]:
        """Return the options of an httpx2 client (its arguments)."""
        context = self.context()
        return {"auth": self.credentials, "verify": context or trusts_nobody(), "trust_env": False}

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the registry; None without TLS.

        Raises:
            ConfigurationError: a certificate or key cannot be loaded.
        """
        if not self.url.startswith("https://"):
            return None
        context = _verifying("SCHEMA_REGISTRY_SSL_CA_LOCATION", self.ca)
        if self.certificate is not None:
            _identify(context, "SCHEMA_REGISTRY_SSL_", self.certificate, self.key, None)
        return context


def tls_refusal(error: BaseException) -> str | None:
    """Return what TLS found wrong with the other side, in one line; None for another kind of error.

    Causes are searched too: an HTTP client wraps the errors of its sockets.
    """
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        if isinstance(found, ssl.SSLCertVerificationError):
            return found.verify_message or found.reason or "its certificate is not trusted"
        if isinstance(found, ssl.SSLError):
            if found.reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"):
                return "it does not answer in TLS"
            if "CERTIFICATE_REQUIRED" in (found.reason or ""):
                return "it requires a client certificate"
            return (found.reason or str(found)).lower().replace("_", " ")
        seen.append(found)
        found = found.__cause__ or found.__context__
    return None


def _verifying(setting: str, ca: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)  # checks the chain and the host name
    except OSError as error:
        raise ConfigurationError(f"{setting}={ca}: no certificates can be read there: {_told(error)}") from error


def _identify(context: ssl.SSLContext, prefix: str, certificate: str, key: str | None, password: str | None) -> None:
    try:
        # A function: without one OpenSSL asks the terminal for the password of an encrypted key.
        context.load_cert_chain(certificate, key, lambda: password or "")
    except (OSError, ValueError) as error:
        where = f"{prefix}CERTIFICATE_LOCATION={certificate}" + (f", {prefix}KEY_LOCATION={key}" if key else "")
        raise ConfigurationError(f"{where}: certificate and key cannot be used: {_told(error)}") from error


def _told(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
