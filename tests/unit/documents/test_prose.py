"""Reading of texts: sentences in every script, without marks, and tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.clock import monotonic_seconds
from highwater.streams.documents.prose import Table, sentences_of, tables_of, unmarked


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four…", ["One.", "Two!", "Three?", "Four…"]),
        ("He said “stop.” Then he went.", ["He said “stop.”", "Then he went."]),
        ("Use e.g. Kafka 4.1. It is new.", ["Use e.g. Kafka 4.1.", "It is new."]),
        ("See J. Doe et al. in Fig. 3 of it.", ["See J. Doe et al. in Fig. 3 of it."]),
        ("A line\ngoes on here.\n\nAnother", ["A line goes on here.", "Another"]),
        ("今日は良い天気です。明日も！", ["今日は良い天気です。", "明日も！"]),  # noqa: RUF001
        ("यह एक वाक्य है। दूसरा वाक्य॥", ["यह एक वाक्य है।", "दूसरा वाक्य॥"]),
        ("هل هذا سؤال؟ نعم.", ["هل هذا سؤال؟", "نعم."]),
        ("ሰላም። ደህና ነህ?", ["ሰላም።", "ደህና ነህ?"]),
        ("یہ پہلا ہے۔ یہ دوسرا ہے۔", ["یہ پہلا ہے۔", "یہ دوسرا ہے۔"]),  # noqa: RUF001
        ("ប្រយោគមួយ។ប្រយោគពីរ។", ["ប្រយោគមួយ។", "ប្រយោគពីរ។"]),
        ("မြန်မာ။ ဒုတိယ။", ["မြန်မာ။", "ဒုတိယ။"]),
        ("Առաջինը։ Երկրորդը։", ["Առաջինը։", "Երկրորդը։"]),  # noqa: RUF001
        ("བོད་ཡིག། གཉིས།", ["བོད་ཡིག།", "གཉིས།"]),
        ("这是一。这是二！", ["这是一。", "这是二！"]),  # noqa: RUF001
        ("「そうです。」と言った。「はい。」", ["「そうです。」と言った。", "「はい。」"]),
        ("첫째입니다. 둘째입니다.", ["첫째입니다.", "둘째입니다."]),
        ("ระบบ " * 20 + "จบ", [("ระบบ " * 17).strip(), ("ระบบ " * 3) + "จบ"]),
        ("if a > 0 and b>0 then", ["if a > 0 and b>0 then"]),
        ("Что это? Это лог.", ["Что это?", "Это лог."]),
    ],
)
def test_sentences_end_in_every_script(text: str, sentences: list[str]) -> None:
    """By the marks of the script; not behind an abbreviation, an initial or a number."""
    assert sentences_of(text) == sentences


def test_what_is_no_prose_is_no_sentence() -> None:
    """Headings, code, rows of tables and breaks are left out; each item of a list is one."""
    text = (
        "# Title\n\n- first\n- [x] second. It has two.\n2. third\n\n```\ncode. Here.\n```\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n---\n> quoted"
    )
    assert sentences_of(text) == ["first", "second.", "It has two.", "third", "quoted"]


def test_marks_are_taken_off() -> None:
    """Emphasis, code, links, images and tags; names with underscores stay."""
    text = "**bold** _and_ `code` [text](http://a.b/c) ![pic](x.png) <b>tag</b> __init__ snake_case 2*3*4"
    assert unmarked(text) == "bold and code text pic tag init snake_case 2*3*4"
    assert unmarked("has _**both**_ and **_both_**") == "has both and both"
    assert unmarked("a__init__ and my__var, 2 * 3 * 4") == "a__init__ and my__var, 2 * 3 * 4"


def test_code_stays_as_it_is_written():
    """A mark outside code has no meaning inside it; code in hidden parts is left out with them."""
    text = "from `<inttypes.h>`, <!-- `no` -->**use `**options` [`a_b_c`](x)**"
    assert unmarked(text) == "from <inttypes.h>, use **options a_b_c"
    assert unmarked("man\\_db \\*is\\* `a\\_b` *new* \\o/") == "man_db *is* a\\_b new \\o/"


def test_a_dash_goes_on_after_an_abbreviation():
    """In brackets."""
    assert sentences_of("Moscow (as said (inf.)) \u2014 a city (2021 est.), large. It grew.") == [
        "Moscow (as said (inf.)) \u2014 a city (2021 est.), large.",
        "It grew.",
    ]


@given(st.text(st.sampled_from("ab. \n!?。।")))
def test_no_letter_of_prose_is_lost(text: str) -> None:
    """The sentences together are the text."""
    assert "".join("".join(sentences_of(text)).split()) == "".join(text.split())


def test_tables_are_read() -> None:
    """They are read as in GFM; short rows are filled; without a rule below the header a text is not a table."""
    text = "| A | **B** |\n|---|:-:|\n| x\\|y | 1 |\n| z |\n\n| no | rule |\n| 1 | 2 |\n| 3 | 4 |"
    assert tables_of(text) == [Table(("A", "B"), (("x|y", "1"), ("z", "")), 2)]
    assert tables_of("```\n| A | B |\n|---|---|\n| 1 | 2 |\n```") == []


def test_a_heading_in_bold_stands_with_its_sentence():
    """It does not become a sentence of its own; merely emphasised text is unchanged."""
    assert sentences_of("- **Latency.** Batches linger for a while.\n- **Search** is quick.") == [
        "Latency: Batches linger for a while.",
        "Search is quick.",
    ]


def test_time_grows_with_a_text_and_not_with_its_square():
    """A paragraph of 100,000 letters is cut in a fraction of a second; a scan of the whole text per sentence would take a
    minute.
    """
    began = monotonic_seconds()
    assert len(sentences_of("The quick brown fox jumps. " * 4_000)) == 4_000
    assert monotonic_seconds() - began < 10


def test_an_address_in_brackets_is_no_tag():
    """This holds for the address of a person or a page; a tag is still one."""
    assert (
        unmarked("<b>Write</b> to <a.b@c.org> or see <https://c.org/d>") == "Write to a.b@c.org or see https://c.org/d"
    )


def test_three_dots_apart_end_no_sentence():
    """They leave something out."""
    assert sentences_of("Of 1 KB, 2 KB, . . . , 16 KB. It grew.") == ["Of 1 KB, 2 KB, . . . , 16 KB.", "It grew."]


def test_a_mark_in_code_ends_no_sentence():
    """It belongs to the name."""
    assert sentences_of("Rust has `asm!` \u5b8f\u3002 Use `x.` Then `y`.") == [
        "Rust has asm! \u5b8f\u3002",
        "Use x. Then y.",
    ]


def test_the_end_of_a_line_is_no_space_in_japanese():
    """Which has none between words; beside Latin letters it is one. A hyphen of a printer divides a word."""
    text = "この場合、\n機能が\u3000\nやや制限され\nGnuPG\nを使う。"
    assert sentences_of(text) == ["この場合、機能が やや制限され GnuPG を使う。"]
    assert sentences_of("Die kleinste Ein\u2010\n      heit wird in der Aus\u2010\ngabe gezeigt.") == [
        "Die kleinste Einheit wird in der Ausgabe gezeigt."
    ]


def test_a_remark_in_brackets_is_no_sentence():
    """It belongs to the sentence behind it; brackets at the end of a sentence end it."""
    assert sentences_of("**dyndep:** (Since 1.10.) Used on builds. It is new (since 1.11.) Others are not.") == [
        "dyndep: (Since 1.10.) Used on builds.",
        "It is new (since 1.11.)",
        "Others are not.",
    ]


def test_a_link_to_another_place_is_no_sentence():
    """A list item that is only a link to the same site is left out; a link to another site stays."""
    assert sentences_of("See:\n\n* [A guide](./guide.md#a)\n* [Kafka](https://a.b/c)\n* [One](b.md) is first.") == [
        "See:",
        "Kafka",
        "One is first.",
    ]


def test_each_option_of_a_command_is_a_line():
    """Printed one below the other without a gap; a dash within a text begins none."""
    text = "-b, --benchmark perform a\n    benchmark\n-s, --strict use strict decoding\n--help show this"
    assert sentences_of(text) == [
        "-b, --benchmark perform a benchmark",
        "-s, --strict use strict decoding",
        "--help show this",
    ]
    assert sentences_of("It is read\n-- or so -- once.") == ["It is read -- or so -- once."]
