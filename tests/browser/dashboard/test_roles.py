"""Access and actions by role in the browser: no more than HTTP permits for the same key, with any controls shown."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer
from playwright.sync_api import expect

from tests.browser.conftest import settled

TOPIC = "jobs.role-changed"
LETTERS = f"/dead-letters?topic={TOPIC}"
ROWS = ".hw-records tbody tr"


@pytest.fixture
def letter(product) -> str:
    """A dead letter; its key."""
    return put_letter(product, uuid.uuid4().hex, "not_avro")


def put_letter(product: Any, key: str, reason: str) -> str:
    """A dead letter for a reason; its key."""
    producer = Producer(product.producer_config())
    headers = [("dlq_reason", reason.encode()), ("dlq_detail", b"a test"), ("dlq_origin", f"{TOPIC}/5/0".encode())]
    producer.produce(f"{TOPIC}.dlq", b"\x01bytes", key.encode(), headers=headers)
    assert producer.flush(30) == 0
    return key


def times_sent(product: Any, key: str) -> int:
    """How often the letter of a key was sent again: records of the topic it came from."""
    return sum(record.key() == key.encode() for record in product.records(TOPIC))


def select_last(page: Any) -> None:
    """Mark the newest dead letter."""
    page.locator(ROWS).first.get_by_role("checkbox").click()


def test_an_admin_sends_a_dead_letter_again(guarded, product, letter):
    """Opened, selected, confirmed, sent; the trace names the admin, and the list shows it."""
    page = guarded.browser.page(f"{LETTERS}&state=all", guarded.signed_in("admin"))
    row = page.locator(ROWS).first
    expect(row).to_contain_text("waits")
    row.get_by_role("link").click()
    expect(page.get_by_role("dialog")).to_contain_text(letter)
    expect(page.get_by_role("dialog")).to_contain_text("01 62 79 74 65 73")  # its bytes
    page.keyboard.press("Escape")
    select_last(page)
    page.get_by_role("button", name="Send the selected again").click()
    page.get_by_role("button", name="Back").click()
    assert times_sent(product, letter) == 0
    page.get_by_role("button", name="Send the selected again").click()
    page.get_by_role("button", name="Redrive", exact=True).click()
    page.get_by_role("button", name="Do it now").click()
    expect(page.get_by_text("sent again: 1")).to_be_visible()
    assert times_sent(product, letter) == 1
    expect(page.locator(ROWS, has_text="redriven by").first).to_be_visible()
    page.context.close()


def test_a_letter_is_edited_and_sent(guarded, product, letter):
    """An event that its topic would refuse is refused with a message; the new event is confirmed by field, and sent with its
    position.
    """
    page = guarded.browser.page(LETTERS, guarded.signed_in("admin"))
    page.locator(ROWS).first.get_by_role("link").click()
    page.get_by_text("Edit and redrive").click()
    editor = page.get_by_label("Event")
    for words, said in (("[]", "an event is a JSON object"), ('{"user_id": "ann"}', "role")):
        editor.fill(words)
        page.get_by_role("button", name="Send the edited event").click()
        expect(page.get_by_role("alert")).to_contain_text(said)
    editor.fill(json.dumps({"user_id": letter, "role": "viewer", "ts": "2026-01-01T00:00:00Z"}))
    page.get_by_role("button", name="Send the edited event").click()
    confirmation = page.get_by_role("dialog").last
    expect(confirmation).to_contain_text(f'user_id: null → "{letter}"')
    confirmation.get_by_role("button", name="Send the edited event").click()
    expect(page.get_by_text("Sent as")).to_contain_text(f"{TOPIC}/")
    assert times_sent(product, letter) == 1
    page.context.close()


def test_a_reason_is_redriven_in_bulk(guarded, product):
    """The letters of the filter are counted first; stopped in the undo window none was sent; then all of them are, and no
    others.
    """
    why, keys = f"why_{uuid.uuid4().hex[:8]}", [uuid.uuid4().hex for _ in range(3)]
    for key in keys:
        put_letter(product, key, why)
    other = put_letter(product, uuid.uuid4().hex, "another")
    page = guarded.browser.page(LETTERS, guarded.signed_in("admin"))
    page.get_by_role("region", name="Dead letters by reason").get_by_role("link", name=why.replace("_", " ")).click()
    expect(page.locator(ROWS)).to_have_count(3)
    for button, told in (("Stop", "nothing was done"), ("Do it now", "sent again: 3")):
        page.get_by_role("button", name="Redrive all found").click()
        expect(page.get_by_role("dialog")).to_contain_text("3 dead letters of jobs.role-changed are sent")
        page.get_by_role("button", name="Redrive", exact=True).click()
        assert [times_sent(product, key) for key in keys] == [0, 0, 0]
        page.get_by_role("button", name=button).click()
        expect(page.get_by_text(told)).to_be_visible()
    assert [times_sent(product, key) for key in (*keys, other)] == [1, 1, 1, 0]
    expect(page.get_by_text("The filter finds no dead letter")).to_be_visible()
    page.context.close()


def test_a_drop_takes_the_typed_topic(guarded, product):
    """Other affected letters are listed first; the button works once the topic was typed, and the letters are deleted."""
    for reason in (why := [f"why_{uuid.uuid4().hex[:8]}" for _ in range(2)]):
        put_letter(product, uuid.uuid4().hex, reason)
    page = guarded.browser.page(f"{LETTERS}&reason={why[1]}", guarded.signed_in("admin"))
    expect(page.locator(ROWS)).to_have_count(1)
    page.get_by_role("button", name="Drop all found").click()
    expect(page.get_by_role("dialog")).to_contain_text(
        "that you did not select and that were not sent again would be deleted"
    )
    delete = page.get_by_role("button", name="Delete", exact=True)
    expect(delete).to_be_disabled()
    page.get_by_label(f"Type {TOPIC} to confirm").fill(TOPIC)
    delete.click()
    page.get_by_role("button", name="Do it now").click()
    expect(page.get_by_text(re.compile("^deleted: "))).to_be_visible()
    expect(page.get_by_text("The filter finds no dead letter")).to_be_visible()
    page.context.close()


@pytest.mark.parametrize("who", ["viewer", "editor"])
def test_nobody_else_is_offered_the_actions(guarded, letter, who):
    """They read dead letters, as they read topics; they neither send nor drop, and run no backtest."""
    context = guarded.signed_in(who)
    page = guarded.browser.page(LETTERS, context)
    expect(page.locator(ROWS).first).to_be_visible()
    expect(page.get_by_text("requires the role admin")).to_be_visible()
    expect(page.get_by_role("checkbox")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("again|Drop|Redrive"))).to_have_count(0)
    policies = guarded.browser.page("/policies", context)
    expect(policies.get_by_role("button", name="Run")).to_have_count(0)
    context.close()


def failed_jobs(product: Any, count: int) -> tuple[str, list[str]]:
    """An organization that was suspended while its jobs were submitted, which therefore failed; it is active again."""
    owner, ids = f"org-{uuid.uuid4().hex[:8]}", [str(uuid.uuid4()) for _ in range(count)]
    plan = {"plan": "pro", "subscription_status": "suspended"}
    assert product.http.put(f"/api/organizations/{owner}/plan", json=plan).status_code == 202
    limits = f"/api/organizations/{owner}/limits"
    product.until(lambda: "suspended" in product.get(limits).text, "the organization is not suspended")
    submitted = {
        "kind": "generation",
        "organization_id": owner,
        "user_id": "ann",
        "args": json.dumps({"query": "why?"}),
    }
    product.publish(
        "jobs.job-submitted", [{**submitted, "job_id": job_id, "ts": 1, "expires_at": None} for job_id in ids]
    )
    product.until(lambda: {standing(product, one) for one in ids} == {"failed"}, "the jobs did not fail")
    assert product.http.put(limits.replace("limits", "plan"), json={**plan, "subscription_status": "active"}).is_success
    product.until(lambda: "suspended" not in product.get(limits).text, "the organization is still suspended")
    return owner, ids


def test_a_failed_job_is_restarted_by_whoever_may(guarded, product):
    """The job of a suspended organization failed; a viewer sees the required role, an editor restarts it."""
    owner, (job_id,) = failed_jobs(product, 1)
    for who in ("viewer", "editor"):
        page = guarded.browser.page(f"/jobs/{job_id}", guarded.signed_in(who))
        button = page.get_by_role("button", name="Restart from the last step")
        if who == "viewer":
            expect(page.get_by_text("requires the role editor")).to_be_visible()
            expect(button).to_have_count(0)
        else:
            button.click()
            expect(page.get_by_role("dialog")).to_contain_text(f"{owner} is charged for the rest")
            page.get_by_role("button", name="Restart the job").click()
            told = page.get_by_text("The job continues")
            expect(told.get_by_role("link")).to_have_attribute("href", re.compile("topic=jobs.control&.*record="))
            expect(page.locator(".hw-card").first).to_contain_text("completed")
            expect(page.locator(".hw-slide").first).to_be_visible()
            expect(page.get_by_role("region", name="Stages and their calls")).to_contain_text("outline")
            expect(button).to_be_hidden()
        page.context.close()


def test_failed_jobs_are_restarted_together_by_admins(guarded, product):
    """Counted first with their reasons, stopped within ten seconds, or restarted; an editor sees the required role."""
    owner, ids = failed_jobs(product, 2)
    page = guarded.browser.page("/jobs", guarded.signed_in("editor"))
    expect(page.get_by_text("To restart failed jobs together needs the role admin.")).to_be_visible()
    page.context.close()
    page = guarded.browser.page("/jobs", guarded.signed_in("admin"))
    page.get_by_label("Organization").fill(owner)
    show = page.get_by_role("button", name="Show what would be restarted")
    page.get_by_label("Error contains").fill("no such reason")
    show.click()
    expect(page.get_by_text("The filter finds no failed job")).to_be_visible()
    page.get_by_label("Error contains").fill("")
    show.click()
    expect(page.get_by_role("region", name="Jobs to restart").locator("tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Restart them").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"{owner} is charged for the rest")
    page.get_by_role("dialog").get_by_role("button", name="Restart 2 jobs").click()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_text("Stopped: nothing was done.")).to_be_visible()
    assert {standing(product, one) for one in ids} == {"failed"}
    show.click()
    page.get_by_role("button", name="Restart them").click()
    page.get_by_role("dialog").get_by_role("button", name="Restart 2 jobs").click()
    page.get_by_role("button", name="Do it now").click()
    expect(page.get_by_text("restarted: 2")).to_be_visible()
    product.until(lambda: {standing(product, one) for one in ids} == {"completed"}, "the jobs were not restarted")
    page.goto("/queries")  # the same card for queries
    page.get_by_label("Organization").fill(owner)
    page.get_by_role("button", name="Show what would be restarted").click()
    expect(page.get_by_text("The filter finds no failed query")).to_be_visible()
    page.context.close()


def test_an_outline_is_edited_and_approved_by_whoever_may(guarded, product):
    """It waits with its deadline; a viewer reads it, an editor renames a slide, removes another, and the deck is made of that."""
    args = {"query": "How does Kafka work?", "slides": 2, "await_approval": True}
    asked = {"kind": "generation", "organization_id": f"org-{uuid.uuid4().hex[:8]}", "user_id": "ann"}
    job_id = product.http.post("/api/jobs", json={**asked, "args": args}).json()["job_id"]

    def waiting() -> Any:
        answer = product.get(f"/api/jobs/{job_id}")
        return answer.json()["waiting_for"] if answer.status_code == 200 else None

    product.until(waiting, "the outline does not wait")
    slides = len(waiting()["outline"]["slides"])
    for who in ("viewer", "editor"):
        page = guarded.browser.page(f"/jobs/{job_id}", guarded.signed_in(who))
        button = page.get_by_role("button", name="Approve and make the slides")
        expect(page.locator(".hw-card").first).to_contain_text("approval of its outline, until")
        if who == "viewer":
            expect(page.locator("section.hw-slide")).to_have_count(slides)
            expect(button).to_have_count(0)
        else:
            expect(page.get_by_label("Slide", exact=True)).to_have_count(slides)
            page.get_by_label("Slide", exact=True).first.fill("Renamed by hand")
            for _ in range(slides - 1):
                page.get_by_role("button", name="Remove the slide").last.click()
            expect(page.get_by_label("Slide", exact=True)).to_have_count(1)
            button.click()
            expect(page.get_by_role("dialog")).to_contain_text("The job makes 1 slide, each")
            expect(page.get_by_role("dialog")).to_contain_text("Your changes replace the outline.")
            page.get_by_role("button", name="Approve", exact=True).click()
            told = page.get_by_text("The slides are being made")
            expect(told.get_by_role("link")).to_have_attribute("href", re.compile("topic=jobs.control&.*record="))
            expect(page.locator(".hw-card").first).to_contain_text("completed")
            expect(page.locator("section.hw-slide")).to_have_count(1)
            expect(button).to_be_hidden()
        page.context.close()
    assert len(product.get(f"/api/presentations/{job_id}").json()["slides"]) == 1


def standing(product: Any, job_id: str) -> str | None:
    """The status of a job; None before it is stored."""
    answer = product.get(f"/api/jobs/{job_id}")
    return answer.json()["status"] if answer.status_code == 200 else None


@pytest.mark.parametrize(("who", "resets", "publishes"), [("admin", 1, 1), ("editor", 0, 1), ("viewer", 0, 0)])
def test_groups_and_topics_offer_what_a_role_may(guarded, who, resets, publishes):
    """An admin resets a group; an editor publishes to a topic that takes events; a viewer reads."""
    page = guarded.browser.page("/groups/insights", guarded.signed_in(who))
    expect(page.get_by_role("region", name="Partitions")).to_be_visible()
    expect(page.get_by_role("button", name="Show what would change")).to_have_count(resets)
    page.goto("/topics/feeds.insight-ingested")
    expect(page.get_by_role("region", name="Partitions")).to_be_visible()
    expect(page.get_by_text("Publish an event")).to_have_count(publishes)
    page.goto("/topics/feeds.user-erased")
    expect(page.get_by_role("region", name="Partitions")).to_be_visible()
    expect(page.get_by_text("Publish an event")).to_have_count(1 if who == "admin" else 0)
    page.context.close()


def test_who_signed_out_does_nothing_more(guarded, product, letter):
    """The page was an admin's when it was opened; the action checks again."""
    context = guarded.signed_in("admin")
    page = guarded.browser.page(LETTERS, context)
    expect(page.locator(ROWS).first).to_contain_text("waits")
    select_last(page)
    page.get_by_role("button", name="Send the selected again").click()
    context.request.get("/logout")
    page.get_by_role("button", name="Redrive", exact=True).click()
    page.get_by_role("button", name="Do it now").click()
    expect(page.get_by_text("signed out")).to_be_visible()
    assert times_sent(product, letter) == 0
    context.close()


def test_a_key_that_is_bound_sees_its_user_only(guarded, product):
    """Neither another user's page nor pages with all events; a forbidden page has a message and is not blank."""
    other = f"bob-{uuid.uuid4().hex[:8]}"
    product.subscribe(other, ["a-channel-of-bob"])
    context = guarded.signed_in("bound")
    for path, said in {
        **dict.fromkeys(("/topics", "/topics/feeds.user-active", "/groups", "/groups/insights"), "bound to one user"),
        **dict.fromkeys(("/schemas", "/schemas/feeds.user-active-value"), "bound to one user"),
        "/browse": "bound to one user",
        "/dead-letters": "bound to one user",
        f"/user?id={other}": "bound to another user",
        "/queries": "No query yet",
    }.items():
        page = guarded.browser.page(path, context)
        expect(page.locator(".nicegui-content")).to_contain_text(said)
        assert "a-channel-of-bob" not in page.content()
        page.close()
    users = guarded.browser.page("/user", context)
    expect(users.get_by_text("Find a user")).to_be_visible()
    expect(users.get_by_text(other)).to_have_count(0)
    context.close()


def test_what_a_page_was_sent_does_not_work_from_another_browser(guarded):
    """A viewer who knows every word that an admin's page sends cannot say it for that page."""
    admin, viewer = guarded.signed_in("admin"), guarded.signed_in("viewer")
    sent: list[str] = []
    page = admin.new_page()
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(str(frame))))
    page.goto("/browse")
    settled(page)
    hold, go_on = page.get_by_role("button", name="Hold"), page.get_by_role("button", name="Continue")
    hold.click()
    expect(go_on).to_be_visible()
    (click,) = [frame for frame in sent if frame.startswith('42["event"')][-1:]
    own = guarded.browser.page("/browse", viewer)
    own.evaluate("message => window.socket.emit('event', message)", json.loads(click[2:])[1])
    own.get_by_role("button", name="Hold").click()  # by the same socket: the forged one was processed before
    expect(own.get_by_role("button", name="Continue")).to_be_visible()
    go_on.click(timeout=5_000)  # it would be called "Hold" again, had the forged one counted
    expect(hold).to_be_visible()
    viewer.close()
    admin.close()
