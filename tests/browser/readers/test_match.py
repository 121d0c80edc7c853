"""A match as its readers see it in a real browser, and what they say of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect


def says(page: Any, user: str) -> None:
    """Fill in who acts in every form; the API of these tests asks for no keys."""
    for field in page.get_by_label("User").all():
        field.fill(user)


@pytest.mark.parametrize("has_script", [True, False])
def test_a_reader_votes_predicts_and_comments(browser: Any, season: Any, *, has_script: bool) -> None:
    """Each form leads back to the match, which shows the new vote or comment; it works without a script too."""
    user = "ann" if has_script else "bob"
    context = browser.context(java_script_enabled=has_script)
    page = browser.tab(season.match(4), context)
    page.goto(season.match(4))
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("Third Rovers . Home United"))
    says(page, user)
    page.get_by_role("button", name="Away win" if has_script else "Draw").click()
    expect(page.get_by_text("Your vote was saved.")).to_be_visible()
    says(page, user)
    page.get_by_label("Home goals").fill("2")
    page.get_by_label("Away goals").fill("1")
    page.get_by_role("button", name="Predict").click()
    expect(page.get_by_text("Your prediction was saved.")).to_be_visible()
    says(page, user)
    page.get_by_label("Your comment").fill(f"<b>{user}</b> says:\nwell played")
    page.get_by_role("button", name="Comment").click()
    expect(page.get_by_text("Your comment was published.")).to_be_visible()
    comment = page.get_by_role("listitem").filter(has_text=f"<b>{user}</b> says:")
    late = page.get_by_role("link", name="Load the page again")
    expect(comment.or_(late)).to_be_visible()
    while not has_script and late.is_visible():  # a busy machine: the page says that the comment is still to come
        late.click()
    expect(comment).to_contain_text("well played")
    expect(page).to_have_url(re.compile(f"done=comment.*user={user}"))
    choice = "away" if has_script else "draw"
    path = f"/api/matches/{season.name}-4"
    season.product.until(lambda: season.get(path).json()["live"]["votes"][choice] == 1, "the vote is counted")
    page.reload()
    expect(page.get_by_text(re.compile("Away win 1" if has_script else "Draw 1"))).to_be_visible()
    context.close()


def test_a_refused_word_says_why_on_the_page(browser: Any, season: Any) -> None:
    """Goals that no match has: the API's words, beside the match and its forms."""
    context = browser.context()
    page = browser.tab(season.match(4), context)
    page.goto(season.match(4))
    says(page, "ann")
    page.get_by_label("Home goals").fill("2")
    page.get_by_label("Away goals").evaluate("one => { one.type = 'text'; one.value = 'many'; }")
    page.get_by_role("button", name="Predict").click()
    expect(page.get_by_role("alert")).to_contain_text("away_goals")
    expect(page.get_by_role("button", name="Predict")).to_be_visible()
    browser.problems.clear()  # the browser's line about the refusal
    context.close()


def test_a_comment_of_another_reader_appears(tab: Any, season: Any) -> None:
    """Without a reload, while the page is open."""
    seen = tab(season.match(3))
    expect(seen.page.get_by_text("No comment yet.")).to_be_visible()
    answer = season.product.http.post(
        f"{season.url}/api/matches/{season.name}-3/comments", json={"user_id": "eve", "text": "a fine match"}
    )
    assert answer.status_code == 202, answer.text
    position = ",".join(answer.json()["positions"])
    assert season.get(f"/api/matches/{season.name}-3/comments", X_Min_Position=position).status_code == 200
    seen.page.evaluate("look('visible')")
    expect(seen.page.get_by_text("a fine match")).to_be_visible()


def test_a_match_that_is_over_takes_no_votes(tab: Any, season: Any) -> None:
    """It shows its result, and comments are still taken."""
    seen = tab(season.match(1)).page
    expect(seen.get_by_text("Final result")).to_be_visible()
    expect(seen.get_by_role("button", name="Predict")).to_have_count(0)
    expect(seen.get_by_role("button", name="Comment")).to_be_visible()
