"""Redis addresses: a server, a cluster, and invalid ones."""

from __future__ import annotations

import pytest

from highwater.connectors.redis.client import Address, read_address
from highwater.connectors.redis.link import RedisLink
from highwater.deploy.local.probes import _first_node
from highwater.schemas.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis://h:1/3", Address("redis://h:1/3")),
        ("rediss://u:p@h/0?ssl_ca_certs=f", Address("rediss://u:p@h/0?ssl_ca_certs=f")),
        ("redis+cluster://h", Address("redis://h:6379/0", is_cluster=True, others=[])),
        (
            "redis+cluster://u:p%40@a:1,b:2,[::1]:3/0",
            Address("redis://u:p%40@a:1/0", is_cluster=True, others=[("b", 2), ("::1", 3)]),
        ),
        (
            "rediss+cluster://[::1]:3?ssl_ca_certs=f",
            Address("rediss://[::1]:3/0?ssl_ca_certs=f", is_cluster=True, others=[]),
        ),
    ],
)
def test_what_an_address_names(url: str, found: Address):
    """A server as the client library reads it; of a cluster the first node, and the others."""
    assert read_address(url) == found


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://",
        "redis+cluster://a:1,",
        "redis+cluster://a:x",
        "redis+cluster://a?colour=red",
        "http://a",
        "a:1",
    ],
)
def test_what_is_no_address_is_named(url: str):
    """One line with the setting, before anything is dialled."""
    with pytest.raises(ConfigurationError, match=r"^REDIS_CACHE_URL is not a Redis address: "):
        RedisLink(url, "REDIS_CACHE_URL")


def test_the_first_node_is_probed():
    """The local stack asks one node whether it answers."""
    assert _first_node("u:p@a:1,b:2/0?x=1") == "u:p@a:1?x=1"
    assert _first_node("a:1") == "a:1"
