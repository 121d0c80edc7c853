"""The args of a job: what each kind takes, and by which name everything else is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from highwater.schemas.errors import InvalidEventError
from highwater.streams.jobs.args import ExportArgs, GenerationArgs, IngestionArgs, is_sha256, parse_args
from highwater.streams.jobs.decks import Outline, Planned

ONE, TWO = "a1" * 32, "b2" * 32
DECK = "0b5e3f5e-6a40-4a2b-9d5a-0d3c0f6a1c11"
GENERATION = {"query": "What is a log?"}
INGESTION = {"document_ids": [ONE], "ns": "docs", "slot": "main"}
EXPORT = {"presentation_id": DECK, "format": "pdf"}


def _text(args: Any) -> str:
    return orjson.dumps(args).decode()


def test_a_deck_has_ten_slides_and_no_documents_unless_said() -> None:
    """The defaults of a generation."""
    assert parse_args("generation", _text(GENERATION)) == GenerationArgs("What is a log?", 10, ())


def test_what_is_said_is_kept_in_its_order_each_document_once() -> None:
    """A repeated document is read once."""
    args = {**GENERATION, "slides": 50, "source_document_ids": [TWO, ONE, TWO]}
    found = parse_args("generation", _text(args))
    assert found == GenerationArgs("What is a log?", 50, (TWO, ONE))
    assert found.documents == (TWO, ONE)


def test_an_ingestion_names_documents_and_a_place() -> None:
    """Its documents are those that it reads."""
    found = parse_args("ingestion", _text(INGESTION))
    assert found == IngestionArgs((ONE,), "docs", "main")
    assert found.documents == (ONE,)


def test_an_export_names_a_deck_and_a_format() -> None:
    """It reads no documents."""
    found = parse_args("export", _text(EXPORT))
    assert found == ExportArgs(DECK, "pdf")
    assert found.documents == ()


def test_an_outline_is_the_deck_that_is_made() -> None:
    """Its slides are counted; regenerated slides are named once, in order."""
    outline = {"title": "A", "slides": [{"title": "B", "points": ["c"]}, {"title": "D"}]}
    found = parse_args("generation", _text({**GENERATION, "outline": outline}))
    assert isinstance(found, GenerationArgs)
    assert (found.slides, found.outline, found.is_of_query) == (
        2, Outline("A", (Planned("B", ("c",)), Planned("D", ()))), False,
    )  # fmt: skip
    again = parse_args("generation", _text({**GENERATION, "presentation_id": DECK, "remake": [3, 1, 3]}))
    assert isinstance(again, GenerationArgs)
    assert (again.remake, again.is_of_query) == ((1, 3), False)


def test_equal_args_are_equal_however_they_are_written() -> None:
    """Order of fields, white space, escapes and a default that is written out do not make another job."""
    written = '{ "slides" : 10, "query" : "What is a \\u006cog?" }'
    assert parse_args("generation", written) == parse_args("generation", _text(GENERATION))


@pytest.mark.parametrize(
    ("kind", "text", "reason", "field"),
    [
        ("dream", "{}", "unknown_kind", "kind"),
        ("", "{}", "unknown_kind", "kind"),
        ("generation", "", "args_not_json", "args"),
        ("generation", "{", "args_not_json", "args"),
        ("generation", "[]", "args_not_json", "args"),
        ("generation", "null", "args_not_json", "args"),
        ("generation", '{"query": NaN}', "args_not_json", "args"),
        ("generation", '{"query": "\\ud800"}', "args_not_json", "args"),
        ("generation", '{"query": "\ud800"}', "args_not_json", "args"),
        ("generation", " " * 65_537, "too_long", "args"),
        ("generation", "{}", "missing_field", "args.query"),
        ("generation", _text({**GENERATION, "slide": 3}), "unknown_field", "args"),
        ("generation", _text({"query": 3}), "not_a_text", "args.query"),
        ("generation", _text({"query": " \n"}), "empty_text", "args.query"),
        ("generation", _text({"query": "a\0b"}), "control_character", "args.query"),
        ("generation", _text({"query": "x" * 16_385}), "too_long", "args.query"),
        *(
            ("generation", _text({**GENERATION, "slides": slides}), "bad_slides", "args.slides")
            for slides in (0, 51, -1, 7.0, "7", True, None, 10**30 // 1e20)
        ),
        *(
            ("generation", _text({**GENERATION, "source_document_ids": ids}), "bad_document", "args.source_document_ids")
            for ids in (ONE, [1], [ONE.upper()], [ONE[:-1]], ["x" * 64], None, {ONE: 1})
        ),
        (
            "generation",
            _text({**GENERATION, "source_document_ids": [f"{n:064x}" for n in range(21)]}),
            "too_many",
            "args.source_document_ids",
        ),
        ("ingestion", _text({**INGESTION, "document_ids": []}), "bad_document", "args.document_ids"),
        ("ingestion", _text({"document_ids": [ONE], "ns": "a"}), "missing_field", "args.slot"),
        ("ingestion", _text({**INGESTION, "ns": "a|b"}), "bad_character", "args.ns"),
        ("ingestion", _text({**INGESTION, "slot": ""}), "empty_id", "args.slot"),
        ("ingestion", _text({**INGESTION, "slot": "a\nb"}), "control_character", "args.slot"),
        ("ingestion", _text(GENERATION), "unknown_field", "args"),
        ("export", _text({**EXPORT, "presentation_id": "7"}), "bad_uuid", "args.presentation_id"),
        ("export", _text({**EXPORT, "presentation_id": DECK.upper()}), "bad_uuid", "args.presentation_id"),
        ("export", _text({**EXPORT, "format": "odp"}), "bad_format", "args.format"),
        *(
            ("export", _text({**EXPORT, "brand_kit": kit}), reason, f"args.{field}")
            for kit, reason, field in (
                ("blue", "bad_brand_kit", "brand_kit"),
                ({"font": "Arial"}, "bad_brand_kit", "brand_kit"),
                ({"primary": "blue"}, "bad_colour", "brand_kit.primary"),
                ({"accent": "#12345"}, "bad_colour", "brand_kit.accent"),
                ({"logo": "a.png"}, "bad_document", "brand_kit.logo"),
            )
        ),
        *(
            ("generation", _text({**GENERATION, **more}), reason, f"args{field}")
            for more, reason, field in (
                ({"outline_only": 1}, "not_a_boolean", ".outline_only"),
                ({"outline": []}, "bad_outline", ".outline"),
                ({"outline": {"title": "A", "slides": []}}, "bad_outline", ".outline"),
                ({"outline": {"title": "A", "slides": [{"points": []}]}}, "bad_outline", ".outline"),
                ({"outline": {"title": "A", "slides": [{"title": "B"}]}, "slides": 2}, "bad_slides", ".slides"),
                ({"outline": {"title": "A", "slides": [{"title": "B"}]}, "outline_only": True}, "contradiction", ""),
                ({"remake": [1]}, "missing_field", ".remake"),
                ({"presentation_id": DECK}, "missing_field", ".remake"),
                ({"presentation_id": DECK, "remake": []}, "bad_slides", ".remake"),
                ({"presentation_id": DECK, "remake": [0]}, "bad_slides", ".remake"),
                ({"presentation_id": DECK, "remake": ["1"]}, "bad_slides", ".remake"),
                ({"presentation_id": "x", "remake": [1]}, "bad_uuid", ".presentation_id"),
            )
        ),
    ],
)  # fmt: skip
def test_what_a_kind_does_not_take_is_refused_by_name(kind: str, text: str, reason: str, field: str) -> None:
    """Each fault has its reason and its field."""
    with pytest.raises(InvalidEventError) as caught:
        parse_args(kind, text)
    assert (reason, field) == (caught.value.reason, caught.value.field)


def test_a_document_has_one_name() -> None:
    """64 lower-case hexadecimal digits."""
    assert [is_sha256(text) for text in (ONE, ONE.upper(), ONE + "0", "", f"{ONE}\n")] == [True, *[False] * 4]
