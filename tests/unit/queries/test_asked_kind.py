"""The kind of thing that a question asks for, and the sources that name one."""

from __future__ import annotations

import pytest

from highwater.streams.queries.asked_kind import asked_kind, asked_value


@pytest.mark.parametrize(
    ("query", "text", "named"),
    [
        ("Which KIP introduced share groups?", "[KIP-932] - Add share groups (KAFKA-17633)", ["KIP-932"]),
        ("Which KIPs changed the protocol since KIP-848?", "KIP-848 and KIP-932, KIP 1071", ["KIP-932", "KIP 1071"]),
        ("What PEP describes type hints?", "Follow PEP 484", ["PEP 484"]),
        ("Which vulnerability made Kafka upgrade?", "Upgrade Jetty for CVE-2024-8184", ["CVE-2024-8184"]),
        ("Which Jetty vulnerabilities were fixed?", "GHSA-ab12-cd34-ef56", ["GHSA-ab12-cd34-ef56"]),
        ("Which issue asked for it?", "Fix the leak (#1085), see KAFKA-19", ["#1085", "KAFKA-19"]),
        ("Which version of Python did starlette stop supporting?", "Drop Python 3.8 (#2823)", ["Python 3.8"]),
        (
            "Which Spring Boot version came in March?",
            "Spring Boot to 3.5 and Spring Boot 3.5.12",
            ["Spring Boot 3.5.12"],
        ),
        ("Which release fixed the leak?", "Version 0.42.0 (2024)", ["0.42.0"]),
        ("Which release fixed the leak?", "in 2024, 3 times", []),
        ("Which environment variables does httpx document?", "SSL_CERT_FILE and NO", ["SSL_CERT_FILE"]),
        ("Which method tells it?", "add pool.is_closing() and is_open", ["pool.is_closing()", "is_open"]),
        ("Which alert fires?", "OutboxStuck \u00b7 page", ["OutboxStuck"]),
    ],
)
def test_what_a_text_names_of_the_kind(query: str, text: str, named: list[str]):
    """Identifiers, versions, settings, methods and classes are recognized by their form; names in the question itself do not
    count.
    """
    kind = asked_kind(query)
    assert kind is not None
    assert kind.named_in(text) == named


@pytest.mark.parametrize(
    "query",
    [
        *("Which library replaced zstandard?", "What happens when a CVE is found?", "Which company bought IBM?"),
        *("Who made it?", "Which?", "what is a KIP"),
    ],
)
def test_no_kind(query: str):
    """A kind without a known form, and a question about something else, prefers nothing."""
    assert asked_kind(query) is None


@pytest.mark.parametrize(
    ("query", "text", "named"),
    [
        ("When was 2.11.0 released?", "man-db 2.11.0 (15 October 2022)", ["15 October 2022"]),
        (
            "In which year did it begin?",
            "In 1993 it began, on March 2nd, 1993; 2019-01-30",
            ["In 1993", "March 2nd, 1993", "2019-01-30"],
        ),
        ("How long may it rest?", "It ends after an hour, of 3 at most.", ["an hour", "3"]),
        ("Who wrote it?", "Julian Seward, jseward@acm.org wrote it", ["Julian Seward"]),
        ("How many have 8 parts?", "8 parts, 12 in all", ["12"]),
    ],
)
def test_the_values_that_a_text_has(query: str, text: str, named: list[str]):
    """Dates, amounts, also in words, and persons; a value of the question itself is not an answer."""
    value = asked_value(query)
    assert value is not None
    assert value.named_in(text) == named


@pytest.mark.parametrize("query", ["Which one made it?", "How does it end?", "Which day?"])
def test_no_value(query: str):
    """This holds for a question about something else."""
    assert asked_value(query) is None
