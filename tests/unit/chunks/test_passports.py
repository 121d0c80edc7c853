"""Passports: their numbers, whose a namespace's are, and files that cannot be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from highwater.schemas.errors import ConfigurationError
from highwater.streams.chunks.passports import (
    DAYS_MAX,
    PASSPORT_KEYS,
    Given,
    Passport,
    Removal,
    TtlMode,
    load_passports,
)
from tests import ROOT

DEFAULT = Passport(
    half_life_days=30,
    ttl_days=365,
    ttl_mode=TtlMode.FILTER,
    alpha=0.8,
    beta=0.2,
    hot_days=14,
    hot_queries_per_day=100,
    removal=Removal.SOFT,
    grace_days=7,
    archives_cold=False,
    is_open=False,
    text_share=0.3,
)


def written(tmp_path: Path, text: str) -> Path:
    """A file with this text."""
    path = tmp_path / "namespaces.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.requirement("R3.16")
def test_the_default_is_that_of_the_specification():
    """R3.16 to R3.23: every number that is chosen there."""
    assert load_passports().default == DEFAULT


def test_only_docs_come_open():
    """Texts of other namespaces are quoted only after they were opened explicitly."""
    passports = load_passports()
    assert [ns for ns, passport in passports.named.items() if passport.is_open] == ["docs"]
    assert passports.of("docs") == replace(DEFAULT, is_open=True)


@pytest.mark.requirement("R3.16")
def test_a_namespace_that_nobody_named_has_the_default():
    """Under any name."""
    assert load_passports().of("Wörter, die niemand kennt") == DEFAULT


def test_documents_have_no_life_of_their_own(tmp_path: Path):
    """A namespace of documents has no maximum age, unless its own table in the file sets a TTL."""
    path = written(
        tmp_path, "[default]\nttl_days = 90\n[namespaces.news]\nttl_days = 10\n[namespaces.open]\nis_open = true"
    )
    passports = load_passports(path)
    lives = {ns: passports.of(ns, Given(is_lasting=True)).ttl_days for ns in ("news", "open", "docs", "unknown")}
    assert lives == {"news": 10, "open": DAYS_MAX, "docs": DAYS_MAX, "unknown": DAYS_MAX}
    assert passports.of("unknown").ttl_days == 90


def test_an_opened_namespace_is_open_unless_its_own_table_says_otherwise(tmp_path: Path):
    """The default table does not close it."""
    path = written(
        tmp_path, "[default]\nis_open = false\n[namespaces.shut]\nis_open = false\n[namespaces.news]\nttl_days = 10"
    )
    passports, opened = load_passports(path), Given(is_opened=True)
    assert {ns: passports.of(ns, opened).is_open for ns in ("shut", "news", "docs", "unknown")} == {
        "shut": False, "news": True, "docs": True, "unknown": True,
    }  # fmt: skip
    assert not passports.of("unknown").is_open


def test_a_file_overrides_single_keys(tmp_path: Path):
    """Missing keys have the default of that file, also for a namespace that comes with the product."""
    path = written(
        tmp_path,
        '[default]\nttl_days = 90\n[namespaces.news]\nhalf_life_days = 0.5\nremoval = "hard"\n'
        '[namespaces."a b.c"]\nis_open = true\nttl_mode = "zero_weight"\narchives_cold = true',
    )
    passports = load_passports(path)
    ninety = replace(DEFAULT, ttl_days=90)
    assert passports.of("other") == ninety
    assert passports.of("news") == replace(ninety, half_life_days=0.5, removal=Removal.HARD)
    assert passports.of("a b.c") == replace(ninety, is_open=True, ttl_mode=TtlMode.ZERO_WEIGHT, archives_cold=True)
    assert passports.of("docs") == replace(ninety, is_open=True)


def test_docs_can_be_closed(tmp_path: Path):
    """A key of the file wins over the same one that comes with the product."""
    passports = load_passports(written(tmp_path, "[namespaces.docs]\nis_open = false"))
    assert passports.of("docs") == DEFAULT


def test_an_empty_file_changes_nothing(tmp_path: Path):
    """An empty file is valid."""
    assert load_passports(written(tmp_path, "")) == load_passports()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[default]\nspeed = 1", "default.speed is not a key"),
        ("[namespaces.news]\nspeed = 1", "namespaces.news.speed is not a key"),
        ("[default]\nhalf_life_days = 0", "default.half_life_days = 0 is not above 0"),
        ("[default]\nhalf_life_days = inf", "default.half_life_days = inf is not a number"),
        ("[default]\nhalf_life_days = nan", "default.half_life_days = nan is not a number"),
        ("[namespaces.news]\nttl_days = 0", "namespaces.news.ttl_days = 0 is not above 0"),
        ("[namespaces.news]\nttl_days = 36601", "namespaces.news.ttl_days = 36601 is not between 0 and 36600"),
        ("[namespaces.news]\ngrace_days = -1", "namespaces.news.grace_days = -1 is not between"),
        ("[namespaces.news]\ngrace_days = true", "namespaces.news.grace_days = True is not a number"),
        ('[namespaces.news]\nhot_days = "14"', "namespaces.news.hot_days = '14' is not a number"),
        ("[namespaces.news]\nalpha = 1.5", "namespaces.news.alpha = 1.5 is not between 0 and 1"),
        ("[namespaces.news]\nalpha = 0\nbeta = 0", "namespaces.news has alpha and beta of 0"),
        ("[default]\nalpha = 0\nbeta = 0", "default has alpha and beta of 0"),
        ('[namespaces.news]\nremoval = "burnt"', "namespaces.news.removal = 'burnt' is not one of soft, hard"),
        ("[namespaces.news]\nttl_mode = 3", "namespaces.news.ttl_mode = 3 is not one of filter, zero_weight"),
        ('[namespaces.news]\nis_open = "yes"', "namespaces.news.is_open = 'yes' is neither true nor false"),
        ("[namespaces.news]\narchives_cold = 1", "namespaces.news.archives_cold = 1 is neither true nor false"),
        ('[namespaces."a|b"]\n', "namespaces.'a|b'"),
        ('[namespaces.""]\n', "namespaces.''"),
        ("[namespaces]\nnews = 3", "namespaces.news is not a table"),
        ("namespaces = 3", "namespaces is not a table"),
        ("default = 3", "default is not a table"),
        ("[offers]\n", "offers is neither"),
        ("[default", "not TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_the_name_of_what_is_wrong(tmp_path: Path, text: str, named: str):
    """The program does not start with an invalid configuration; the message also names the file."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as refused:
        load_passports(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert named in str(refused.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path):
    """Its name stands in the message."""
    with pytest.raises(ConfigurationError, match=r"nothing\.toml: the namespaces cannot be read"):
        load_passports(tmp_path / "nothing.toml")


def test_the_keys_are_columns():
    """In the order in which the table has them, so that a row can be made of a passport."""
    table = (ROOT / "connectors/postgres/migrations/0010_chunks.sql").read_text(encoding="utf-8")
    columns = table.split("CREATE TABLE chunk_namespaces (", 1)[1].split(");", 1)[0].splitlines()
    names = [line.split()[0] for line in columns if line.strip()]
    assert [*names[1:12], "text_share"] == list(PASSPORT_KEYS)  # the last was added later
