"""Readers' pages in Russian in a real browser: the whole page, what a script adds to it, and the choice of a language."""
# ruff: noqa: RUF001 - Russian

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.readers.reading import snapshots, unreadable


@pytest.fixture
def russian(browser: Any) -> Iterator[Any]:
    """A window of a browser that prefers Russian."""
    context = browser.context(width=360, height=740, locale="ru-RU")
    yield context
    context.close()


def goals(page: Any) -> Any:
    """Goals for of the team that was at home in the first match."""
    return page.locator("tr", has_text="Home United").locator("td").nth(5)


def test_a_page_stays_in_its_language(tab: Any, russian: Any, season: Any) -> None:
    """A tab that is opened, and a version that comes while the page is open, are in Russian, with Russian numbers."""
    season.ends(1, 0)
    seen = tab(season.page, russian)
    page = seen.page
    expect(page.locator("html")).to_have_attribute("lang", "ru")
    expect(page.get_by_role("link", name="Таблица")).to_have_attribute("aria-current", "page")
    expect(page.get_by_role("table", name="Положение команд")).to_be_visible()
    expect(page).to_have_title(re.compile("^Таблица · "))
    season.ends(2, 0)
    page.evaluate("look('visible')")
    expect(goals(page)).to_have_text("2")
    expect(page.get_by_role("table", name="Положение команд")).to_be_visible()
    page.get_by_role("link", name="Статистика").click()
    expect(page.get_by_text("Матчи без пропущенных мячей")).to_be_visible()
    expect(page.locator("#tab")).to_contain_text("2 (в среднем 2,00 за матч)")
    expect(page).to_have_title(re.compile("^Статистика · "))
    assert all(path.endswith("lang=ru") for path in snapshots(page))
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert unreadable(page) == []


def test_another_language_is_chosen(tab: Any, russian: Any, season: Any) -> None:
    """By a link on the page; the choice is remembered, and a page that is still open in the former language stays in it."""
    still = tab(f"{season.page}/results", russian)
    expect(still.page.get_by_role("link", name="Результаты")).to_be_visible()
    seen = tab(season.page, russian)
    seen.page.get_by_role("link", name="English").click()
    expect(seen.page.get_by_role("link", name="Table")).to_have_attribute("aria-current", "page")
    expect(seen.page.locator("html")).to_have_attribute("lang", "en")
    seen.page.get_by_role("link", name="Leagues").click()
    expect(seen.page.get_by_role("heading", level=1, name="Leagues")).to_be_visible()
    season.ends(5, 5)
    still.page.evaluate("look('visible')")
    expect(still.page.locator("#tab")).to_contain_text("5:5")
    expect(still.page.locator("#tab time").first).to_contain_text(
        re.compile(r"^(пн|вт|ср|чт|пт|сб|вс), \d+ [а-я]+ 20\d\d")
    )
    seen.page.get_by_role("link", name="Русский").click()
    expect(seen.page.get_by_role("heading", level=1, name="Лиги")).to_be_visible()
