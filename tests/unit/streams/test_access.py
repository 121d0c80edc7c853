"""Access to Kafka and the registry: the options of each client library, and which settings are refused before a connection."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from highwater.schemas.errors import ConfigurationError
from highwater.streams.access import KafkaAccess, RegistryAccess, tls_refusal
from highwater.streams.settings import read_settings

BROKER = {"KAFKA_BOOTSTRAP_SERVERS": "broker:9093"}
SCRAM = {
    **BROKER,
    "KAFKA_SECURITY_PROTOCOL": "sasl_plaintext",
    "KAFKA_SASL_MECHANISM": "scram-sha-512",
    "KAFKA_SASL_USERNAME": "highwater",
    "KAFKA_SASL_PASSWORD": "p:w",
}


def test_every_client_library_is_given_the_same_credentials():
    """Lower case is taken too; librdkafka and aiokafka get the same protocol, mechanism, name and password."""
    access = read_settings(SCRAM).kafka_access()
    expected = ("SASL_PLAINTEXT", "SCRAM-SHA-512", "highwater", "p:w")
    rdkafka, aio = access.librdkafka(), access.aiokafka()
    names = ("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password")
    assert expected == tuple(rdkafka[name] for name in names)
    names = ("security_protocol", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password")
    assert expected == tuple(aio[name] for name in names)
    assert access == KafkaAccess.of_client(rdkafka)


def test_a_password_may_be_in_a_file(tmp_path: Path):
    """Its first line counts, so that an editor's newline does no harm; both at once are refused."""
    (tmp_path / "password").write_text("p:w\n", encoding="utf-8")
    more = {"KAFKA_SASL_PASSWORD_FILE": str(tmp_path / "password")}
    without = {name: value for name, value in SCRAM.items() if name != "KAFKA_SASL_PASSWORD"}
    assert read_settings(SCRAM).kafka_client() == read_settings({**without, **more}).kafka_client()
    with pytest.raises(ConfigurationError, match=r"^KAFKA_SASL_PASSWORD and KAFKA_SASL_PASSWORD_FILE are both set"):
        read_settings({**SCRAM, **more}).kafka_client()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"KAFKA_SECURITY_PROTOCOL": "TLS"}, "KAFKA_SECURITY_PROTOCOL=TLS is not one of PLAINTEXT, SSL,"),
        ({"KAFKA_SASL_MECHANISM": "GSSAPI"}, "KAFKA_SASL_MECHANISM=GSSAPI is not one of PLAIN, SCRAM-SHA-256,"),
        ({"KAFKA_SASL_PASSWORD": ""}, "KAFKA_SECURITY_PROTOCOL=SASL_PLAINTEXT needs KAFKA_SASL_PASSWORD$"),
        ({"KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "KAFKA_SSL_CA_LOCATION": "/no/ca"}, "KAFKA_SSL_CA_LOCATION=/no/ca: "),
        (
            {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_SSL_CERTIFICATE_LOCATION": __file__},
            rf"KAFKA_SSL_CERTIFICATE_LOCATION={__file__}: certificate and key cannot be used: ",
        ),
        ({"KAFKA_SASL_PASSWORD": "", "KAFKA_SASL_PASSWORD_FILE": "/no/password"}, "KAFKA_SASL_PASSWORD_FILE=/no/"),
    ],
)
def test_what_cannot_be_used_is_named(more: dict[str, str], said: str):
    """One line with the setting's name, before any broker is dialled."""
    with pytest.raises(ConfigurationError, match=f"^{said}[^\n]*"):
        read_settings({**SCRAM, **more}).kafka_client()


def test_the_registry_has_its_credentials_from_the_settings_or_the_address():
    """The settings go before the address, whose percent signs are undone; the address that is shown holds neither."""
    url = {"SCHEMA_REGISTRY_URL": "https://analyst:p%40ss@registry:8081/apis/ccompat/v7/"}
    access = read_settings(url).registry_access()
    assert access is not None
    assert (access.url, access.credentials) == ("https://registry:8081/apis/ccompat/v7", ("analyst", "p@ss"))
    named = {"SCHEMA_REGISTRY_USERNAME": "other", "SCHEMA_REGISTRY_PASSWORD": "word"}
    access = read_settings({**url, **named}).registry_access()
    assert access is not None
    assert access.credentials == ("other", "word")
    assert "word" not in repr(access)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"SCHEMA_REGISTRY_URL": "registry:8081"}, "SCHEMA_REGISTRY_URL=registry:8081 is not an http or https address"),
        (
            {"SCHEMA_REGISTRY_URL": "http://registry:80810"},
            "SCHEMA_REGISTRY_URL=http://registry:80810: Port out of range",
        ),
        (
            {"SCHEMA_REGISTRY_URL": "http://registry", "SCHEMA_REGISTRY_SSL_CA_LOCATION": "/ca"},
            "SCHEMA_REGISTRY_SSL_CA_LOCATION is set, and SCHEMA_REGISTRY_URL is not https",
        ),
        (
            {"SCHEMA_REGISTRY_URL": "https://registry", "SCHEMA_REGISTRY_SSL_CA_LOCATION": __file__},
            "SCHEMA_REGISTRY_SSL_CA_LOCATION=",
        ),
    ],
)
def test_what_cannot_be_used_for_the_registry_is_named(settings: dict[str, str], said: str):
    """One line with the setting's name."""
    with pytest.raises(ConfigurationError, match=f"^{said}[^\n]*"):
        read_settings(settings).registry_access()


def test_without_an_address_there_is_no_access():
    """The error names the setting of the registry."""
    assert read_settings({}).registry_access() is None
    with pytest.raises(ConfigurationError, match="SCHEMA_REGISTRY_URL"):
        RegistryAccess.required(None)


def test_tls_is_found_among_the_causes():
    """An HTTP client wraps what its sockets raise; an error of another kind is none of TLS."""
    inner = ssl.SSLCertVerificationError("x")
    inner.verify_message = "self-signed certificate"
    outer = OSError("connection failed")
    outer.__cause__ = inner
    assert tls_refusal(outer) == "self-signed certificate"
    assert tls_refusal(OSError("connection refused")) is None
