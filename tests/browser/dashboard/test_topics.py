"""Topics, groups and schemas in a real browser over the real product: those of the catalogue, and those of others."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from highwater.connectors.kafka.registry_http import ask
from highwater.schemas.security import ACTION_RECORDED
from highwater.streams.access import RegistryAccess
from tests.integration.broker.making import foreign_topic

INSIGHTS = "feeds.insight-ingested"


@pytest.fixture(scope="module")
def foreign(product: Any) -> Iterator[str]:
    """A topic of another application with five records, and a group of the same name that has read two of them."""
    with foreign_topic(product.environment["KAFKA_BOOTSTRAP_SERVERS"], f"orders-{uuid.uuid4().hex[:8]}") as name:
        yield name


def outcomes(product: Any, named: str) -> set[str]:
    """The recorded outcomes of actions on something."""
    codec = product.codec()
    actions = [codec.decode(ACTION_RECORDED, one.value()) for one in product.records(ACTION_RECORDED)]
    return {one["outcome"] for one in actions if named in (one["resource"] or "")}


def test_topics_are_grouped_folded_and_described(browser: Any, foreign: str):
    """From the list to a topic's page: settings that are its own, partitions with copies and bytes, readers and schema."""
    page = browser.page("/topics")
    subsystems = ["Cache", "Chunks", "Feeds", "Jobs", "League", "Queries", "Security", "Streams"]
    expect(page.locator(".hw-topics h2")).to_have_text(subsystems)
    expect(page.get_by_role("heading", name="Not in the catalogue")).to_be_visible()
    assert not page.get_by_role("link", name=f"{INSIGHTS}.dlq").is_visible()
    page.get_by_label("Find a topic").fill("insight-ingested")
    expect(page.locator(".hw-topics h2:visible")).to_have_text(["Feeds"])
    expect(page.get_by_role("link", name=f"{INSIGHTS}.dlq")).to_be_visible()
    page.get_by_role("link", name=INSIGHTS, exact=True).click()
    page.wait_for_url(f"**/topics/{INSIGHTS}")
    partitions = page.get_by_role("region", name="Partitions").locator("tbody tr")
    expect(partitions).to_have_count(8)
    expect(partitions.first.locator("td").last).to_have_text(re.compile(r"\d B|KiB|MiB"))
    expect(page.get_by_role("region", name="Configuration")).to_contain_text("message.timestamp.type")
    expect(page.get_by_role("region", name="Configuration")).not_to_contain_text("flush.ms")
    groups = page.get_by_role("region", name="Consumer groups")  # of all tests
    expect(groups.get_by_role("link", name="insights", exact=True)).to_have_attribute("href", "/groups/insights")
    expect(page.locator(".hw-facts").first).to_contain_text("FULL_TRANSITIVE")
    page.goto(f"/topics/{foreign}")
    expect(page.get_by_text("This topic is not in the catalogue.")).to_be_visible()
    expect(page.get_by_role("region", name="Consumer groups")).to_contain_text(foreign)
    page.goto("/topics/no-such-topic")
    expect(page.get_by_role("link", name="See all topics")).to_be_visible()
    page.close()


def test_records_of_another_application_are_browsed(browser: Any, foreign: str):
    """From its page to a search by a field that no schema declares, and a record whole; its history is recorded from now on."""
    page = browser.page(f"/topics/{foreign}")
    expect(page.get_by_text("Of another application: recorded since this page was opened first")).to_be_visible()
    page.get_by_role("link", name="Browse its records").click()
    page.wait_for_url("**/browse?topic=*")
    expect(page.locator(".hw-records tbody tr")).to_have_count(5)
    page.get_by_label("Where (CEL)").fill("value.n > 3")
    page.get_by_role("button", name="Search").click()
    rows = page.locator(".hw-records tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text('{"n":4}')
    rows.get_by_role("link").first.click()
    expect(page.get_by_role("dialog")).to_contain_text(f"{foreign}/0/4")
    page.goto(f"/groups/{foreign}")
    expect(page.get_by_role("heading", name="Lag by partition")).to_be_visible()
    page.close()


def test_a_group_is_reset_after_a_dry_run(browser: Any, product: Any, foreign: str):
    """The plan is shown and changes nothing; confirmed, it is applied and recorded. One that runs is refused."""
    page = browser.page("/groups")
    page.get_by_label("Find a group").fill(foreign)
    page.get_by_role("link", name=foreign).click()
    standing = page.get_by_role("region", name="Partitions").locator("tbody tr td")
    expect(standing).to_have_text([foreign, "0", "2", "5", "3", "-"])
    page.get_by_role("button", name="Show what would change").click()
    plan = page.get_by_role("region", name="What would change").locator("tbody tr td")
    expect(plan).to_have_text([foreign, "0", "2", "0", "2 events read again"])
    expect(standing).to_have_text([foreign, "0", "2", "5", "3", "-"])
    page.get_by_role("button", name="Reset the group").click()
    expect(page.get_by_role("dialog")).to_contain_text("reads 2 events again")
    page.get_by_role("dialog").get_by_role("button", name="Reset", exact=True).click()
    expect(page.get_by_text("continues from there")).to_be_visible()
    expect(standing).to_have_text([foreign, "0", "0", "5", "5", "-"])
    product.until(lambda: outcomes(product, foreign) == {"permitted", "done"}, "the reset is not recorded")
    insight = {"insight_id": foreign, "channel_id": foreign, "ts": 1_700_000_000_000, "text": "read by a group of ours"}
    assert product.http.post(f"/api/events/{INSIGHTS}", json=insight).status_code == 202
    path = "/api/groups/insights"
    product.until(lambda: any(one["next"] for one in product.get(path).json()["partitions"]), "the event is not read")
    page.goto("/groups/insights")
    expect(page.get_by_role("heading", name="Lag in events")).to_be_visible()
    expect(page.get_by_role("heading", name="Lag by partition")).to_be_visible()
    expect(page.get_by_role("region", name="Members").locator("tbody tr").first).to_contain_text("127.0.0.1")
    page.get_by_role("button", name="Show what would change").click()
    expect(page.get_by_role("alert")).to_contain_text(re.compile(r"running with \d+ member"))
    expect(page.get_by_role("button", name="Reset the group")).to_have_count(0)
    page.close()


@pytest.fixture(scope="module")
def subject(product: Any) -> str:
    """A subject of another application: its second version has one more field."""
    name = f"orders-{uuid.uuid4().hex[:8]}-value"
    access = RegistryAccess.required(product.environment["SCHEMA_REGISTRY_URL"])
    ask(access, "PUT", f"config/{name}", {"compatibility": "BACKWARD"})
    text = {"name": "text", "type": "string"}
    for fields in ([text], [text, {"name": "count", "type": "int", "default": 0}]):
        schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
        ask(access, "POST", f"subjects/{name}/versions", {"schema": schema})
    return name


def test_versions_of_a_schema_are_compared_and_a_next_one_is_checked(browser: Any, subject: str):
    """From the list: the field that was added, the changed lines, and what the registry says of a text."""
    page = browser.page("/schemas")
    expect(page.get_by_role("region", name="Schemas of the catalogue")).to_contain_text(f"{INSIGHTS}-value")
    page.get_by_label("Find a schema").fill(subject)
    page.get_by_role("link", name=subject).click()
    changed = page.get_by_role("region", name="Changed fields").locator("tbody tr td")
    expect(changed).to_have_text(["added", "count", "-", "int, default 0"])
    expect(page.get_by_role("region", name="Changed lines")).to_contain_text('+      "name": "count",')
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_text("The registry would accept this schema")).to_be_visible()
    editor = page.get_by_role("textbox", name="Schema", exact=True)
    editor.fill(editor.input_value().replace('"count"', '"size"').replace('"default": 0', '"doc": ""'))
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_text("is not compatible with the versions before it (BACKWARD)")).to_be_visible()
    expect(page.get_by_text("field size: the reader has it without a default")).to_be_visible()
    page.close()


def test_an_event_is_published_by_a_form_of_its_schema(browser: Any, product: Any):
    """An invalid event is refused with the API's message; a valid one is confirmed, published, and linked to its record."""
    page = browser.page(f"/topics/{INSIGHTS}")
    page.get_by_text("Publish an event").click()
    insight_id = f"form-{uuid.uuid4().hex[:8]}"
    page.get_by_label("insight_id *").fill(insight_id)
    page.get_by_label("text", exact=True).fill("by a form")
    publish, confirm = (page.get_by_role("button", name=name, exact=True) for name in ("Publish the event", "Publish"))
    publish.click()
    confirm.click()
    expect(page.get_by_text("field 'channel_id' is missing")).to_be_visible()
    page.get_by_label("channel_id *").fill("forms")
    publish.click()
    expect(page.get_by_role("dialog")).to_contain_text("insights will read it.")
    confirm.click()
    expect(page.get_by_text(f"Published to {INSIGHTS}.")).to_be_visible()
    page.locator(".hw-banner").get_by_role("link").click()
    expect(page.get_by_text(insight_id).first).to_be_visible()
    page.close()
