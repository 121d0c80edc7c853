"""Settings in TOML files: read completely, with one clear error that names the file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from highwater.schemas.errors import ConfigurationError


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the document in a file; `what` names its contents, with its verb, for the error: `the plans are`.

    Raises:
        ConfigurationError: it cannot be read, or is not TOML.
    """
    noun = what.rsplit(" ", 1)[0]
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {noun} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {what} not TOML: {error}") from error


def read_plan_tables(path: Path, what: str) -> dict[str, Any]:
    """Return the tables `[plans.<name>]` of a file that contains nothing else.

    Raises:
        ConfigurationError: it cannot be read, is not TOML, or holds something else.
    """
    document = read_toml(path, what)
    unknown = sorted(set(document) - {"plans"})
    tables = document.get("plans", {})
    if unknown or not isinstance(tables, dict):
        raise ConfigurationError(f"{path}: {unknown[0] if unknown else 'plans'} is not a table [plans.<name>]")
    return tables
