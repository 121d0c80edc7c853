"""What a data folder has, by folder of a service, as of its last complete start: <data_dir>/contents.json.

Invariant: no service begins with empty or foreign data beside others that have theirs. Kafka, the registry and PostgreSQL
only make sense together: records name the registry's schemas by number, and rows name positions of records. Redis is
filled again from PostgreSQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from highwater.deploy.local.brokers import CHOICES, folder_names
from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.private import replace_file

_CLUSTER_ID = re.compile(r"^cluster\.id=(.+)$", re.MULTILINE)
_SYSTEM_IDENTIFIER_BYTES = 8  # the first member of pg_control, which every version of PostgreSQL has there
BROKERS = folder_names(max(CHOICES))
POSTGRES, REGISTRY = "postgres", "registry"
# Without these an operator can restore from what is left: a backup has PostgreSQL's rows and the registry's schemas.
RESTORABLE = (POSTGRES, REGISTRY)


def found_in(data_dir: Path, folders: Collection[str]) -> dict[str, str]:
    """Return the identity of the data in each of these folders; a folder without complete data is left out."""
    found = {}
    for folder in folders:
        identity = _identity(data_dir / folder, folder)
        if identity is not None:
            found[folder] = identity
    return found


def _identity(path: Path, folder: str) -> str | None:
    try:
        if folder in BROKERS:
            match = _CLUSTER_ID.search((path / "data" / "meta.properties").read_text(encoding="iso-8859-1"))
            return None if match is None else match[1].strip()
        if folder == POSTGRES:
            with (path / "cluster" / "global" / "pg_control").open("rb") as control:
                return control.read(_SYSTEM_IDENTIFIER_BYTES).hex()
        return "there" if (path / "registry.mv.db").is_file() else None
    except FileNotFoundError:
        return None


def contents_refusal(recorded: Mapping[str, str], found: Mapping[str, str], *, is_restoring: bool) -> str | None:
    """Return why a stack must not start on these data; None if it may.

    Args:
        recorded: identities at the last complete start, of the services that this stack runs.
        found: identities now.
        is_restoring: only services are started, and PostgreSQL and the registry may begin empty, to be restored.
    """
    missing = [folder for folder in recorded if folder not in found]
    if is_restoring:
        missing = [folder for folder in missing if folder not in RESTORABLE]
    if missing:
        names = ", ".join(missing)
        lost = f"the data of {names} are missing or incomplete, and the other services would start without them: "
        if set(missing) <= set(RESTORABLE):
            return (
                f"{lost}restore the whole data folder from a copy, or start with `highwater up --detach --services-only` and"
                " run `highwater restore DIR` with a backup"
                + (" (or `highwater restore --from-log`)" if missing == [POSTGRES] else "")
            )
        return f"{lost}restore the whole data folder from a copy, or set HIGHWATER_DATA_DIR to a new folder"
    brokers = {identity for folder, identity in found.items() if folder in BROKERS}
    other = [folder for folder, identity in recorded.items() if folder in found and found[folder] != identity]
    if is_restoring:
        other = [folder for folder in other if folder not in RESTORABLE]
    if not other and len(brokers) <= 1:
        return None
    return (
        f"the folders of the services do not belong together: {', '.join(other) or 'the brokers'} came from another"
        " installation (its id differs from the one in contents.json): restore the whole data folder from one copy, or set"
        " HIGHWATER_DATA_DIR to a new folder"
    )


def check_contents(data_dir: Path, folders: Collection[str], *, is_restoring: bool) -> None:
    """Refuse to start on data of which a part is missing or of another installation.

    Args:
        data_dir: the data folder.
        folders: those of the services that are started; others are not this stack's.
        is_restoring: see `contents_refusal`.

    Raises:
        LocalStackError: the message says what to restore.
    """
    recorded = {folder: identity for folder, identity in _recorded(data_dir).items() if folder in folders}
    refusal = contents_refusal(recorded, found_in(data_dir, folders), is_restoring=is_restoring)
    if refusal is not None:
        raise LocalStackError(f"{data_dir}: {refusal}")


def record_contents(data_dir: Path, folders: Collection[str]) -> None:
    """Record the data of a complete stack."""
    recorded = _recorded(data_dir)
    now = {**recorded, **found_in(data_dir, folders)}
    if now != recorded:
        replace_file(_path(data_dir), json.dumps(now, indent=1))


def _path(data_dir: Path) -> Path:
    return data_dir / "contents.json"


def _recorded(data_dir: Path) -> dict[str, str]:
    try:
        found = json.loads(_path(data_dir).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LocalStackError(
            f"{_path(data_dir)} is not readable: {error}; restore the whole data folder from a copy"
        ) from error
    if not isinstance(found, dict):
        raise LocalStackError(
            f"{_path(data_dir)} was not written by a stack; restore the whole data folder from a copy"
        )
    return {str(folder): str(identity) for folder, identity in found.items()}
