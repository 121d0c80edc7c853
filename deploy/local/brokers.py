"""The number of brokers of a data folder, and their common data.

Owns <data_dir>/kafka/cluster.json. Invariant: a folder keeps the number of brokers that it was created with. The
brokers elect a leader, so two empty ones beside one with data could elect themselves and forget the topics.
"""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path

from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.private import make_folder, replace_file

# One, or the fewest that survive the loss of one: of two neither can continue alone.
CHOICES = (1, 3)


def replicas_of(brokers: int) -> int:
    """Return the replication factor for this number of brokers."""
    return min(brokers, 3)


def replicas_needed(brokers: int) -> int:
    """Return how many replicas acknowledge a write: with three brokers two, so that the loss of one neither loses it
    nor stops writes.
    """
    return 2 if brokers > 1 else 1


def folder_names(brokers: int) -> tuple[str, ...]:
    """Return the folder of each broker, which is also its name in status."""
    return ("kafka", *(f"kafka_{node}" for node in range(2, brokers + 1)))


def brokers_of(data_dir: Path) -> int | None:
    """Return the number of brokers that the data folder was created with; None while none has data."""
    if not any((data_dir / name / "data" / "meta.properties").exists() for name in folder_names(max(CHOICES))):
        return None
    return int(str(_read(data_dir).get("brokers", 1)))


def check_brokers(data_dir: Path, brokers: int) -> None:
    """Refuse another number of brokers than the folder was created with.

    Raises:
        LocalStackError: it was created with another.
    """
    made_with = brokers_of(data_dir)
    if made_with not in (None, brokers):
        raise LocalStackError(
            f"{data_dir} was made with {made_with} broker{'' if made_with == 1 else 's'}, which cannot become {brokers}: leave"
            " out --brokers, or set HIGHWATER_DATA_DIR to a new folder"
        )


def settle_brokers(data_dir: Path, brokers: int) -> None:
    """Store the number of brokers of a folder, and the cluster's id, before the first of them is created.

    Raises:
        LocalStackError: the folder was created with another number.
    """
    check_brokers(data_dir, brokers)
    if brokers == 1 or _read(data_dir).get("brokers") == brokers:
        return  # a single one creates its own id
    make_folder(data_dir / "kafka")
    replace_file(_path(data_dir), json.dumps({"brokers": brokers, "cluster_id": new_cluster_id()}))


def cluster_id_of(data_dir: Path) -> str:
    """Return the id with which every broker of a folder is created; a new one for a single broker."""
    found = _read(data_dir).get("cluster_id")
    return str(found) if found else new_cluster_id()


def new_cluster_id() -> str:
    """Return a new id; one that begins with a dash would be read as an option."""
    return "h" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def _path(data_dir: Path) -> Path:
    return data_dir / "kafka" / "cluster.json"


def _read(data_dir: Path) -> dict[str, object]:
    try:
        found = json.loads(_path(data_dir).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LocalStackError(f"{_path(data_dir)} is not readable: {error}; restore it from a backup") from error
    if not isinstance(found, dict):
        raise LocalStackError(f"{_path(data_dir)} was not written by a stack; restore it from a backup")
    return found
