"""Copies in memory: verification, eviction, and bodies."""

from __future__ import annotations

import gzip

import brotli
import pytest

from highwater.connectors.pages.copies import BROTLI, GZIP, IDENTITY, Copies, compress, decompress
from highwater.connectors.redis.resource_cache import Head


def head(version: int, **more: int) -> Head:
    """A head of a version."""
    return Head(version, f"t-{version}", "", checked_ms=0, **more)


def test_a_copy_is_verified_only_by_the_version_it_has() -> None:
    """The current version verifies, a newer one drops, and an answer older than the copy leaves it unverified."""
    copies = Copies()
    for key, version in (("same", 3), ("old", 2), ("ahead", 5), ("gone", 1)):
        copies.put(key, head(version), b"x")
    copies.verify(["same", "old", "ahead", "gone"], {"same": 3, "old": 3, "ahead": 4})
    assert sorted(copies.keys()) == ["ahead", "same"]
    same, ahead = copies.get("same"), copies.get("ahead")
    assert same is not None
    assert ahead is not None
    assert (same.is_verified, ahead.is_verified) == (True, False)


def test_another_version_is_not_verified_by_the_one_before() -> None:
    """A version put over a verified one must be asked about; the same version put again stays verified."""
    copies = Copies()
    copies.put("k", head(1), b"one")
    copies.verify(["k"], {"k": 1})
    copies.put("k", head(1, built_ms=9))
    again = copies.get("k")
    assert again is not None
    assert (again.is_verified, again.head.built_ms) == (True, 9)
    copies.put("k", head(2), b"two")
    newer = copies.get("k")
    assert newer is not None
    assert not newer.is_verified


def test_an_older_version_never_replaces_a_newer_one() -> None:
    """A slow reader cannot bring an old body back."""
    copies = Copies()
    copies.put("k", head(2), b"two")
    copies.put("k", head(1), b"one")
    assert copies.body("k", 2, IDENTITY) == b"two"
    assert copies.body("k", 1, IDENTITY) is None


def test_a_key_not_asked_about_stays_unverified() -> None:
    """A copy that was stored during the query waits for the next one."""
    copies = Copies()
    copies.put("late", head(1), b"x")
    copies.verify(["other"], {"late": 1})
    late = copies.get("late")
    assert late is not None
    assert not late.is_verified


@pytest.mark.requirement("R4.5")
def test_bodies_are_the_same_bytes_in_every_encoding() -> None:
    """Each encoding decodes to the identity, and is the same each time it is made."""
    payload = b'{"season":"x"}' * 100
    made = []
    for _ in range(2):
        copies = Copies()
        copies.put("k", head(1), payload)
        made.append([copies.body("k", 1, encoding) for encoding in (IDENTITY, GZIP, BROTLI)])
    assert made[0] == made[1]
    identity, gzipped, brotlied = made[0]
    assert gzipped is not None
    assert brotlied is not None
    assert [identity, gzip.decompress(gzipped), brotli.decompress(brotlied)] == [payload] * 3
    assert decompress(compress(payload)) == payload
    assert decompress(b"not brotli") is None


def test_memory_is_bounded_by_number_and_by_bytes() -> None:
    """The least recently used goes first; the counted bytes are the stored ones."""
    copies = Copies(copies_max=3, bytes_max=1_000)
    for name in "abc":
        copies.put(name, head(1), b"x" * 100)
    copies.get("a")
    copies.put("d", head(1), b"x" * 100)
    assert copies.keys() == ["c", "a", "d"]
    copies.put("e", head(1), b"x" * 900)
    assert (copies.keys(), copies.size) == (["d", "e"], 1_000)
    copies.drop("e")
    assert copies.size == 100
