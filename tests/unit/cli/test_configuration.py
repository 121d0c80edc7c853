"""Settings that a role refuses when it starts: `up` refuses them first, and `doctor` names them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from highwater.api.cli.checks import BAD, OK, check_configuration
from highwater.api.cli.configuration import configuration_faults, refuse_faults
from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import read_settings

ABSENT = "/nowhere/absent"
BROKEN = "[somewhere\n"
# A setting, the content of the file that it names or None for a plain value, that value, and a part of the one line.
FILES = [
    ("HIGHWATER_POLICY", BROKEN, "not TOML"),
    ("HIGHWATER_POLICY", "[plans.pro]\nnovelty = 1\n", "novelty is not a key"),
    ("HIGHWATER_PLANS", "[plans.gold]\n", "gold is not a plan"),
    ("HIGHWATER_NAMESPACES", "[docs]\nalpha = 1\n", "docs is neither [default] nor a table"),
    ("HIGHWATER_DIGESTS", "[[digest]]\nuser = 1\n", "digest 1: user is not the id of a user"),
    (
        "HIGHWATER_DIGESTS",
        '[[digest]]\nuser = "ada"\nat = "07:30"\nmail = "a@example.com"\n',
        "HIGHWATER_ALERT_SMTP_URL",
    ),
    ("HIGHWATER_API_KEYS_FILE", "{}", "HIGHWATER_API_KEYS_FILE"),
    ("HIGHWATER_GOOGLE_CREDENTIALS_FILE", "{}", "neither a service account nor an authorized user"),
]
VALUES = [
    ({"HIGHWATER_POLICY": ABSENT}, "the policy cannot be read"),
    ({"HIGHWATER_DIGESTS": ABSENT}, "the digests cannot be read"),
    ({"HIGHWATER_PLANS": ABSENT}, "cannot be read"),
    ({"HIGHWATER_NAMESPACES": ABSENT}, "cannot be read"),
    ({"HIGHWATER_API_KEYS_FILE": ABSENT}, "is missing"),
    ({"HIGHWATER_GOOGLE_CREDENTIALS_FILE": ABSENT}, "cannot be read"),
    ({"HIGHWATER_GOOGLE_ACCESS_TOKEN": "t", "HIGHWATER_GOOGLE_API_URL": "google"}, "HIGHWATER_GOOGLE_API_URL"),
    ({"HIGHWATER_CLOCK_FILE": "/"}, "HIGHWATER_CLOCK_FILE"),
    ({"HIGHWATER_TLS_CERT_FILE": ABSENT}, "must be set together"),
    ({"HIGHWATER_TLS_CERT_FILE": ABSENT, "HIGHWATER_TLS_KEY_FILE": ABSENT}, "HIGHWATER_TLS_CERT_FILE"),
    ({"HIGHWATER_API_KEYS": "viewer"}, "HIGHWATER_API_KEYS"),
    ({"HIGHWATER_HOST": "0.0.0.0"}, "not a loopback address"),
    ({"HIGHWATER_OIDC_CLIENT_ID": "c"}, "HIGHWATER_OIDC_ISSUER"),
    ({"HIGHWATER_TRUSTED_PROXIES": "here"}, "HIGHWATER_TRUSTED_PROXIES"),
    ({"HIGHWATER_ALLOWED_ORIGINS": "here"}, "HIGHWATER_ALLOWED_ORIGINS"),
    ({"KAFKA_BOOTSTRAP_SERVERS": "k:1", "KAFKA_SECURITY_PROTOCOL": "TLS"}, "KAFKA_SECURITY_PROTOCOL"),
    ({"SCHEMA_REGISTRY_URL": "http://r", "SCHEMA_REGISTRY_PASSWORD_FILE": ABSENT}, "SCHEMA_REGISTRY_PASSWORD_FILE"),
    ({"REDIS_URL": "http://r"}, "REDIS_URL is not a Redis address"),
    ({"REDIS_CACHE_URL": "http://r"}, "REDIS_CACHE_URL is not a Redis address"),
    ({"HIGHWATER_OBJECT_STORE": "ftp://bucket"}, "HIGHWATER_OBJECT_STORE"),
    ({"HIGHWATER_LLM_PRICES": "gpt"}, "HIGHWATER_LLM_PRICES"),
    ({"HIGHWATER_JOB_LEASE_SECONDS": "20"}, "HIGHWATER_JOB_LEASE_SECONDS"),
    ({"LLM_BASE_URL": "model"}, "LLM_BASE_URL"),
    ({"EMBEDDINGS_BASE_URL": "model"}, "EMBEDDINGS_BASE_URL"),
    ({"HIGHWATER_EMBEDDER": "service"}, "EMBEDDINGS_BASE_URL"),
    ({"HIGHWATER_RERANKER": "service"}, "HIGHWATER_RERANK_BASE_URL"),
    ({"HIGHWATER_RERANK_BASE_URL": "model"}, "HIGHWATER_RERANK_BASE_URL"),
    ({"HIGHWATER_ALERT_WEBHOOK_URL": "ftp://hook"}, "HIGHWATER_ALERT_WEBHOOK_URL"),
    ({"HIGHWATER_ALERT_EMAIL_FROM": "a@example.com"}, "belong together"),
    ({"OTEL_EXPORTER_OTLP_HEADERS": "token"}, "OTEL_EXPORTER_OTLP_HEADERS"),
]


@pytest.mark.parametrize(("environment", "words"), VALUES)
def test_a_value_that_a_role_refuses_is_one_line(environment: dict[str, str], words: str) -> None:
    """Exactly one line names the setting, and its remedy is named beside it."""
    settings = read_settings(environment)
    (fault,) = configuration_faults(settings)
    assert words in fault
    assert "\n" not in fault
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        refuse_faults(settings)
    (check,) = asyncio.run(check_configuration(settings))
    assert (check.state, check.detail, bool(check.remedy)) == (BAD, fault, True)


@pytest.mark.parametrize(("name", "content", "words"), FILES)
def test_a_broken_file_is_one_line(tmp_path: Path, name: str, content: str, words: str) -> None:
    """The line names the file and its fault."""
    path = tmp_path / "broken"
    path.write_text(content)
    path.chmod(0o600)
    (fault,) = configuration_faults(read_settings({name: str(path)}))
    assert words in fault
    assert str(path) in fault


def test_every_fault_is_named_once() -> None:
    """One refusal names both of two wrong settings; correct settings are accepted."""
    settings = read_settings({"HIGHWATER_POLICY": ABSENT, "HIGHWATER_LLM_PRICES": "gpt"})
    assert len(configuration_faults(settings)) == 2
    with pytest.raises(ConfigurationError, match=r"policy.*; .*HIGHWATER_LLM_PRICES"):
        refuse_faults(settings)
    (check,) = asyncio.run(check_configuration(read_settings({})))
    assert check.state == OK


@pytest.mark.parametrize(("name", "value"), [("HIGHWATER_LOG_LEVEL", "loud"), ("HIGHWATER_LOG_FORMAT", "xml")])
def test_a_log_setting_outside_its_words_is_refused(name: str, value: str) -> None:
    """It stops the program with one line instead of a role that cannot start, or a format that is not the requested one."""
    with pytest.raises(ConfigurationError, match=f"{name}='{value}' cannot be read: must be one of"):
        read_settings({name: value})
    assert read_settings({"HIGHWATER_LOG_LEVEL": "WARNING"}).log_level == "warning"
