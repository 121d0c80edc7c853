"""The settings that are promised, and that each one that is declared is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import SETTINGS, Settings, read_settings
from tests import ROOT

# Name -> default, as the contract gives it; None where it gives none.
PROMISED: dict[str, object] = {
    "KAFKA_BOOTSTRAP_SERVERS": None,
    "SCHEMA_REGISTRY_URL": None,
    "DATABASE_URL": None,
    "REDIS_URL": None,
    "KAFKA_SECURITY_PROTOCOL": None,
    "KAFKA_SASL_MECHANISM": None,
    "KAFKA_SASL_USERNAME": None,
    "KAFKA_SASL_PASSWORD": None,
    "KAFKA_SSL_CA_LOCATION": None,
    "LLM_BASE_URL": None,
    "LLM_API_KEY": None,
    "HIGHWATER_LLM_TIMEOUT_SECONDS": 30.0,
    "EMBEDDINGS_BASE_URL": None,
    "EMBEDDINGS_API_KEY": None,
    "HIGHWATER_DATA_DIR": Path(".highwater"),
    "HIGHWATER_HOST": "127.0.0.1",
    "HIGHWATER_PORT": 8080,
    "HIGHWATER_TICK_SECONDS": 30.0,
    "HIGHWATER_MAX_DIRTY_CHANNELS_PER_TICK": 500,
    "HIGHWATER_WINDOW_DAYS": 30.0,
    "HIGHWATER_POLICY": None,
    "HIGHWATER_API_KEYS": None,
    "HIGHWATER_REBUILD_INSIGHTS_MAX": 20_000,
    "HIGHWATER_EMBED_WAIT_SECONDS": 300.0,
    "HIGHWATER_CLOCK_FILE": None,
    "CACHE_PREWARM_TOKEN": None,
    "MATCH_WINDOW_LOOKAHEAD_DAYS": 7.0,
    "MATCH_WINDOW_PREWARM_MINUTES": 45.0,
    "MATCH_WINDOW_POST_GRACE_MINUTES": 30.0,
    "MATCH_WINDOW_DURATION_MINUTES": 120.0,
    "REDIS_CACHE_URL": None,
    "HIGHWATER_REDIS_CONNECTIONS": 8,
    "HIGHWATER_OBJECT_STORE": None,
}
FIELDS = {field.metadata["name"]: field for field in Settings.__dataclass_fields__.values()}


@pytest.mark.requirement("R0.28", "R1.24")
@pytest.mark.parametrize("name", sorted(PROMISED))
def test_a_promised_setting_is_there(name: str):
    """Its name is in the catalogue, with the promised default."""
    assert name in SETTINGS
    assert FIELDS[name].default == PROMISED[name]


def test_every_setting_is_used():
    """Every declared setting is read."""
    texts = [
        path.read_text(encoding="utf-8")
        for folder in ("api", "connectors", "streams")
        for path in (ROOT / folder).rglob("*.py")
        if path != ROOT / "streams" / "settings.py"
    ]
    own = (ROOT / "streams" / "settings.py").read_text(encoding="utf-8")
    unused = [
        field.name
        for field in FIELDS.values()
        if not any(re.search(rf"\.{field.name}\b", text) for text in texts) and f"self.{field.name}" not in own
    ]
    assert unused == []


def test_an_unknown_name_of_ours_is_named():
    """A mistyped `HIGHWATER_*` name stops the program with one line that names it."""
    with pytest.raises(ConfigurationError, match=r"^HIGHWATER_TICKS is not a setting[^\n]*$"):
        read_settings({"HIGHWATER_TICKS": "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HIGHWATER_PORT", "70000"),
        ("HIGHWATER_PORT", "http"),
        ("HIGHWATER_TICK_SECONDS", "0"),
        ("HIGHWATER_TICK_SECONDS", "nan"),
        ("HIGHWATER_WINDOW_DAYS", "inf"),
        ("HIGHWATER_REBUILD_INSIGHTS_MAX", "-1"),
        ("HIGHWATER_MAX_DIRTY_CHANNELS_PER_TICK", "1.5"),
    ],
)
def test_an_unreadable_value_is_named(name: str, value: str):
    """A value that cannot be read stops the program with one line that names the setting."""
    with pytest.raises(ConfigurationError, match=rf"^{name}='{value}' cannot be read: [^\n]*$"):
        read_settings({name: value})


@pytest.mark.requirement("R4.10")
@pytest.mark.parametrize("value", ["soon", "-45", "nan"])
def test_a_malformed_match_window_is_taken_as_its_default(value: str, caplog: pytest.LogCaptureFixture):
    """R4.10: a warning that names it, and the default."""
    settings = read_settings({"MATCH_WINDOW_PREWARM_MINUTES": value})
    assert (settings.match_prewarm_minutes, len(caplog.records)) == (45.0, 1)
    assert caplog.records[0].getMessage().startswith(f"MATCH_WINDOW_PREWARM_MINUTES={value!r} cannot be read")


def test_names_of_others_and_empty_values_are_left_alone():
    """Variables without `HIGHWATER_` are ignored, and an empty value is an unset one."""
    assert Settings() == read_settings({"PATH": "/bin", "HIGHWATER_PORT": "", "KAFKA_HEAP_OPTS": "-Xmx1g"})


def test_kafka_settings_are_librdkafkas():
    """The connection settings reach the clients under librdkafka's names."""
    settings = read_settings({"KAFKA_BOOTSTRAP_SERVERS": "b:1", "KAFKA_SASL_USERNAME": "u"})
    client = settings.kafka_client()
    assert client.pop("socket.nagle.disable") == "true"
    assert client == {"bootstrap.servers": "b:1", "sasl.username": "u"}
