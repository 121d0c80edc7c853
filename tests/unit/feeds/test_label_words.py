"""The words that labels add are in the language of their texts, and are found again in labels of any language."""
# ruff: noqa: RUF001 - Russian

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.feeds.label_words import (
    is_mixed,
    language_of_label,
    mixed,
    with_examples,
    with_more,
    without_examples,
    without_more,
    words_of_mixed,
)
from highwater.streams.feeds.redaction import label_without, parts_of
from highwater.streams.messages import catalogue
from tests.unit.feeds.test_naming import FRUIT, labels_of

LANGUAGES = catalogue().languages
# Two subjects of a third each, in sentences that show their language.
MIXED = (
    "кэш потерян, но это не беда",
    "кэш переполнен, и это видно",
    "кэш медленный, так как он старый",
    "тесты зависли, и их уже нет",
    "тесты упали, но это не всё",
    "тесты прошли, и это хорошо",
    "здесь то, что было сломано",
    "одна слива, и это всё",
)
BROKERS = [f"kafka broker {name}" for name in FRUIT]
WORDS = st.lists(st.text("aбc1", min_size=1, max_size=4), min_size=1, max_size=3).map(", ".join)


@given(st.sampled_from(LANGUAGES), WORDS, WORDS, st.integers(1, 99), st.sampled_from(["", " (2)"]))
def test_added_words_are_found_again(language: str, subject: str, examples: str, number: int, mark: str) -> None:
    """In each language, and each of them alone."""
    messages = catalogue().messages(language)
    assert words_of_mixed(mixed(subject, messages)) == subject
    assert words_of_mixed(mixed("", messages)) == ""
    assert without_examples(with_examples(subject, examples, messages)) == (subject, examples)
    assert without_more(f"{with_more(subject, number, messages)}{mark}") == f"{subject}{mark}"
    plain = f"{subject}{mark}"
    assert (words_of_mixed(plain), without_examples(plain), without_more(plain)) == (None, (plain, ""), plain)
    assert language_of_label(plain) is None
    for label in (
        mixed(subject, messages),
        with_examples(subject, examples, messages),
        with_more(subject, 2, messages),
    ):
        assert language_of_label(f"{label}{mark}") == language
        assert parts_of(label)[: subject.count(",") + 1] == subject.split(", ")


def test_english_words() -> None:
    """As stored labels have them."""
    english = catalogue().messages("en")
    assert mixed("cache, tests", english) == "Mixed: cache, tests"
    assert mixed("", english) == "Mixed"
    assert with_examples("Bump", "ruff, mypy", english) == "Bump, e.g. ruff, mypy"
    assert with_more("Search, auth", 3, english) == "Search, auth and 3 more"
    assert not is_mixed("Mixed feelings")


def test_a_mixed_cluster_of_russian_texts() -> None:
    """Its label is Russian beside an English one in the same window."""
    english = [
        "cache lost",
        "cache full",
        "cache slow",
        "tests hang",
        "tests fail",
        "tests pass",
        "broken fig",
        "one plum",
    ]
    assert labels_of(MIXED, english, BROKERS)[:2] == ["Разное: кэш, тесты", "Mixed: cache, tests"]


def test_examples_of_russian_texts() -> None:
    """What less than half of the members say follows in Russian."""
    names = ("ruff", "ruff", "mypy", "mypy", "pip", "uv")
    updates = [f"это обновление {name} {place}, и оно у нас было" for place, name in enumerate(names)]
    assert labels_of(updates, BROKERS)[0] == "Обновление, напр. mypy, ruff"


def test_titles_without_function_words() -> None:
    """Their script shows their language."""
    titles = ["кэш потерян", "кэш полон", "кэш медленный", "тесты зависли", "тесты упали", "тесты прошли", "слива"]
    assert labels_of(titles, BROKERS)[0] == "Разное: кэш, тесты"


def test_a_few_texts_do_not_decide() -> None:
    """The language is that of more than half of the members."""
    english = ["this cache was lost", "the tests are slow and they hang", "these were the tests"]
    for texts in (
        [*MIXED[:3], "cache lost", "cache full", "tests hang", "tests fail"],
        [*MIXED[:4], *english, "plum", "fig"],
    ):
        assert labels_of(texts, BROKERS)[0].startswith("Mixed")


def test_a_former_label_keeps_its_words_in_the_language_of_the_texts() -> None:
    """A label of an older release, in English, becomes Russian without another word."""
    ids = [f"id{place:03}" for place in range(len(MIXED))]
    for former in ("Mixed: тесты, кэш", "Разное: тесты, кэш"):
        assert labels_of(MIXED, BROKERS, former={former: ids})[0] == "Разное: тесты, кэш"


@pytest.mark.parametrize(
    ("label", "gone", "left"),
    [
        ("Разное: кэш, тесты", {"тесты"}, "Разное: кэш"),
        ("Разное: кэш, тесты", {"кэш", "тесты"}, "(отозвано)"),
        ("Кэш, напр. ключи, тесты", {"ключи"}, "Кэш, напр. тесты"),
        ("Кэш, напр. ключи, тесты", {"Кэш"}, "Разное: ключи, тесты"),
        ("Кэш, тесты и ещё 3", {"Кэш"}, "тесты"),
        ("Cache, e.g. keys", {"Cache"}, "Mixed: keys"),
        ("Cache", {"Cache"}, "(retracted)"),
    ],
)
def test_what_is_left_of_a_label(label: str, gone: set[str], left: str) -> None:
    """After a retraction the other words stay, with what was added to them in their language."""
    assert label_without(label, gone) == left
