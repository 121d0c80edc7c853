"""The catalogue of Redis keys: those the design names, and none in the code beside it."""

from __future__ import annotations

import re

import pytest
from redis.crc import key_slot

from highwater.connectors.redis import keys as redis_keys
from tests import ROOT

TEMPLATES = {
    name: value
    for name, value in vars(redis_keys).items()
    if name.isupper() and isinstance(value, str) and not name.startswith("_")
}
# As the requirements name them (R0.22 to R0.26, R2.4 to R2.35) and the architecture does.
NAMED = {
    "ch:{channel_id}",
    "hwm:{user_id}:{channel_id}",
    "us:{user_id}",
    "dirty:channels",
    "lock:user:{user_id}",
    "__v:{key}",
    "session:{session_id}",
    "user_sessions:{user_id}",
    "ratelimit:{api_key_id}:{minute}",
    "ratelimit:user:{user_id}:{minute}",
    "plan_limits:{organization_id}",
    "presentation_view_count:{presentation_id}",
    "semantic_cache:{hash}",
}


@pytest.mark.requirement("R0.22", "R0.23", "R0.24", "R0.25")
def test_the_named_keys_are_there():
    """Every key that the design names is in the catalogue, letter by letter."""
    assert set(TEMPLATES.values()) >= NAMED


def test_no_two_names_stand_for_one_key():
    """A template is there once, and no kind of key can be taken for another: their prefixes differ."""
    prefixes = [value.split("{")[0] for value in TEMPLATES.values()]
    assert sorted(set(prefixes)) == sorted(prefixes)


def test_a_key_is_its_template_with_the_ids_as_they_are():
    """Ids are put in unchanged, braces and colons too."""
    assert redis_keys.key(redis_keys.HIGH_WATER_MARK, user_id="a:{b}", channel_id="c") == "hwm:a:{b}:c"


@pytest.mark.requirement("R2.1")
@pytest.mark.parametrize(
    "resource",
    ["league:table:2025-26", "feed:ada", "ns:a{b}c", "feed:a}b", "feed:{}", "feed:{", "feed:}{x}", "lb:{}{z}"],
)
def test_keys_of_one_script_are_on_one_node(resource: str):
    """R2.1: a resource's version and its payload, also under its own key, have one slot, for any name."""
    templates = (redis_keys.RESOURCE_VERSION, redis_keys.RESOURCE_PAYLOAD, redis_keys.DOCUMENT)
    names = [redis_keys.resource_key(template, resource, is_cluster=True) for template in templates]
    assert len({key_slot(name.encode()) for name in names}) == 1


def test_two_resources_have_two_keys():
    """Resources with different names never share a key."""
    names = ["a{b", "a%7Bb", "a%257Bb", "a}b", "a%7Db"]
    assert len({redis_keys.resource_key(redis_keys.DOCUMENT, name, is_cluster=True) for name in names}) == len(names)


def test_a_single_server_has_the_names_of_the_release_before():
    """Both releases, side by side during an upgrade, have one version of a resource; a cluster the release before cannot use."""
    templates = (redis_keys.RESOURCE_VERSION, redis_keys.RESOURCE_PAYLOAD, redis_keys.DOCUMENT)
    names = [redis_keys.resource_key(template, "ns:a{b}%c", is_cluster=False) for template in templates]
    assert names == ["__v:ns:a{b}%c", "payload:ns:a{b}%c", "ns:a{b}%c"]


def test_no_code_spells_a_key_itself():
    """A prefix of the catalogue appears as a literal in no other module."""
    # A document's key is that of streams/league/resources.py as it is: it has no prefix to be spelled.
    literals = [re.escape(prefix) for value in TEMPLATES.values() if (prefix := value.split("{")[0])]
    spelled = re.compile(rf"f?[\"'](?:{'|'.join(literals)})(?:\{{|[\"'])")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for folder in ("api", "connectors", "streams")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != ROOT / "connectors" / "redis" / "keys.py"
        for match in spelled.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
