"""Refused requests: the first of each address are recorded, the others are counted, and a minute stays small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.identity.refusals import (
    ADDRESS_MAX,
    ADDRESSES_MAX,
    EACH_MAX,
    MINUTE_MS,
    SUMMARIES_MAX,
    Refusals,
    Suppressed,
    client_of,
)


def test_the_first_of_an_address_are_recorded_and_the_rest_are_counted():
    """One that tries a thousand keys leaves twenty records and one with a count; another is not affected."""
    refusals = Refusals()
    admitted = [refusals.admit("192.0.2.1", 5) for _ in range(1_000)]
    assert (sum(admitted), all(admitted[:ADDRESS_MAX])) == (ADDRESS_MAX, True)
    assert refusals.admit("192.0.2.2", 5)
    assert refusals.close() == [Suppressed("192.0.2.1", 1_000 - ADDRESS_MAX)]


def test_a_minute_that_is_closed_begins_anew():
    """After its end the same address is recorded again, and there is nothing to summarize."""
    refusals = Refusals()
    for _ in range(ADDRESS_MAX + 1):
        refusals.admit("192.0.2.1", 5)
    assert (refusals.is_over(MINUTE_MS - 1), refusals.is_over(MINUTE_MS)) == (False, True)
    refusals.close()
    assert (refusals.admit("192.0.2.1", MINUTE_MS), refusals.close()) == (True, [])


def test_addresses_of_one_network_are_one_client():
    """The addresses of an IPv6 /64 count as one; any other text counts unchanged."""
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff:2") == "2001:db8::/64"
    assert (client_of("2001:db8:0:1::1"), client_of("testclient")) == ("2001:db8:0:1::/64", "testclient")


def test_any_number_of_addresses_leaves_a_bounded_minute():
    """A flood from more addresses than are counted leaves at most N records, and each refusal is in one of them."""
    refusals = Refusals()
    sent = 3 * ADDRESSES_MAX
    recorded = sum(refusals.admit(f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}", 5) for n in range(sent))
    told = refusals.close()
    assert (recorded, len(told)) == (EACH_MAX, SUMMARIES_MAX + 1)
    assert recorded + sum(one.count for one in told) == sent


@given(st.lists(st.sampled_from([f"192.0.2.{n}" for n in range(80)]), max_size=2_000))
def test_no_refusal_goes_uncounted(addresses: list[str]):
    """In any order, the recorded and the counted refusals add up to the actual number."""
    refusals = Refusals()
    recorded = sum(refusals.admit(address, 5) for address in addresses)
    told = refusals.close()
    assert recorded + sum(one.count for one in told) == len(addresses)
    assert (recorded <= EACH_MAX, len(told) <= SUMMARIES_MAX + 1) == (True, True)
