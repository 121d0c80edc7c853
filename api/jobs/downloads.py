"""Saves files of jobs on the machine that runs the command.

Invariant: a file is complete or does not exist: it is written under a temporary name, its digest is checked, and only
then it is renamed. An existing file is replaced only if the caller requests it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from hashlib import sha256 as digest_of
from pathlib import Path
from typing import BinaryIO

import httpx2

from highwater.api.command.client import check
from highwater.api.command.command import CommandFailedError
from highwater.api.command.terminal import output_file
from highwater.schemas.errors import InvalidEventError
from highwater.streams.jobs.file_names import check_file_name, name_in, name_of_digest

STANDARD_OUTPUT = Path("-")


def save(
    client: httpx2.Client, sha256: str, parameters: Mapping[str, str], output: Path | None, *, is_replaced: bool
) -> Path | None:
    """Save a blob; return its path, None for standard output.

    Args:
        client: of the API.
        sha256: the blob.
        parameters: of the request.
        output: the path; None: in the working folder, under the name in the response.
        is_replaced: whether an existing file is replaced.

    Raises:
        click.UsageError: that is not a blob's id.
        CommandFailedError: the blob does not exist, the transfer was interrupted, or the file exists.
    """
    with client.stream("GET", f"/api/blobs/{sha256}", params=dict(parameters)) as answer:
        if not answer.is_success:
            answer.read()
            check(answer)
        if output == STANDARD_OUTPUT:
            _copied(answer, output_file(), sha256)
            sys.stdout.buffer.flush()
            return None
        place = output or Path(_name_of(answer, sha256))
        if place.exists() and not is_replaced:
            raise CommandFailedError(f"{place} exists already; `--force` replaces it")
        handle, written = tempfile.mkstemp(prefix=".highwater-", dir=place.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                _copied(answer, file, sha256)
            Path(written).chmod(0o644)
            Path(written).replace(place)
        except BaseException:
            Path(written).unlink(missing_ok=True)
            raise
        return place


def _copied(answer: httpx2.Response, file: BinaryIO, sha256: str) -> None:
    digest = digest_of()
    try:
        for part in answer.iter_raw():
            digest.update(part)
            file.write(part)
    except httpx2.TransportError as error:
        raise CommandFailedError(f"the download was interrupted ({str(error) or type(error).__name__})") from error
    if digest.hexdigest() != sha256.lower():
        raise CommandFailedError(f"the received bytes are not {sha256}; try again")


def _name_of(answer: httpx2.Response, sha256: str) -> str:
    """Return the name in the response, if it is one path component; else one derived from the digest."""
    name = name_in(answer.headers.get("content-disposition", "")) or ""
    try:
        check_file_name("filename", name)
    except InvalidEventError:
        return name_of_digest(sha256.lower(), answer.headers.get("content-type", ""))
    return name
