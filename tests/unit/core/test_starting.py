"""The API when it cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest

from highwater.api.app import serve
from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import read_settings


def test_a_setting_that_only_the_start_reads_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server ends by a status of its own; the error that the command prints, and its status, are those of the setting."""
    path = tmp_path / "namespaces.toml"
    path.write_text("[docs]\n")
    environment = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "HIGHWATER_NAMESPACES": str(path)}
    with pytest.raises(ConfigurationError, match="docs is neither"):
        serve(read_settings(environment))
    assert "Traceback" not in caplog.text
