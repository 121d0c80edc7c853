"""The schemas of a topic from a registry: by plain reads, with its name and password, and its refusals in one line."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from highwater.connectors.replay.subject import Subject
from highwater.schemas.avro_files import schema_text
from highwater.schemas.errors import ConfigurationError, UnavailableError
from highwater.schemas.topics import TOPICS

TOPIC = TOPICS["feeds.insight-retracted"]
VERSIONS = f"/subjects/{TOPIC.subject}/versions"
SECRET = base64.b64encode(b"analyst:p@ss").decode()


class _Answers(BaseHTTPRequestHandler):
    """The scripted answer of a path, for callers with the password."""

    scripted: dict[str, tuple[int, bytes]]

    def do_GET(self) -> None:
        is_known = self.headers["Authorization"] == f"Basic {SECRET}"
        status, body = self.scripted.get(self.path, (404, b"{}")) if is_known else (401, b"{}")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Nothing is printed."""


@pytest.fixture
def scripted() -> Iterator[tuple[str, dict[str, tuple[int, bytes]]]]:
    """The address behind a path of a server on loopback, and what it answers."""
    answers: dict[str, tuple[int, bytes]] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"scripted": answers}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", answers
    server.shutdown()
    server.server_close()
    thread.join()


def test_versions_are_read_with_name_and_password(scripted):
    """Percent signs in them are undone; a path of the address stays; a field of another version is read too."""
    host, answers = scripted
    own = json.loads(schema_text(TOPIC.schema))
    other = {**own, "fields": [*own["fields"], {"name": "more", "type": "int", "default": 0}]}
    answers[f"/api/v7{VERSIONS}"] = 200, b"[1, 3]"
    for number, schema in ((1, own), (3, other)):
        one = {"subject": TOPIC.subject, "version": number, "id": number + 10, "schema": json.dumps(schema)}
        answers[f"/api/v7{VERSIONS}/{number}"] = 200, json.dumps(one).encode()
    subject = Subject.fetch(TOPIC, f"http://analyst:p%40ss@{host}/api/v7/")
    assert list(subject.versions) == [11, 13]
    assert [field["name"] for field in subject.schema["fields"]][-1] == "more"


@pytest.mark.parametrize(
    ("user", "answer", "said"),
    [
        ("analyst:p%40ss@", (500, b"{}"), "the schema registry refuses: 500 Internal Server Error"),
        ("", (200, b"[]"), "the schema registry refuses: 401 Unauthorized"),
        ("analyst:p%40ss@", (200, b"<html>"), "the schema registry does not answer: Expecting value"),
        ("analyst:p%40ss@", (200, b"7"), "the schema registry does not answer: 'int' object is not iterable"),
    ],
)
def test_what_is_refused_is_said(scripted, user: str, answer: tuple[int, bytes], said: str):
    """There is one clear error for each refusal."""
    host, answers = scripted
    answers[VERSIONS] = answer
    with pytest.raises(UnavailableError, match=said):
        Subject.fetch(TOPIC, f"http://{user}{host}")


def test_an_unknown_subject_has_no_versions(scripted):
    """Only the catalogue's own schema remains."""
    assert Subject.fetch(TOPIC, f"http://analyst:p%40ss@{scripted[0]}").versions == {}


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:port"])
def test_a_registry_that_is_not_there(address: str):
    """Nothing listens on the port, or the address is invalid."""
    with pytest.raises(UnavailableError, match="the schema registry does not answer"):
        Subject.fetch(TOPIC, f"http://{address}")


def test_without_an_address():
    """The setting is named."""
    with pytest.raises(ConfigurationError, match="SCHEMA_REGISTRY_URL"):
        Subject.fetch(TOPIC, None)
