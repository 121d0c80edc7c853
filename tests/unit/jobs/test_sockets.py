"""The counts of open sockets."""

from __future__ import annotations

from highwater.streams.jobs.sockets import USERS_MAX, count_sockets


def test_sockets_are_counted_by_process_and_user():
    """Each once, the most first; a user whose sockets have ended is not counted."""
    assert count_sockets({"ada": ["pod-1:a", "pod-1:b", "pod-2:c"], "bob": ["pod-2:d", "pod-2:d"], "eve": []}) == {
        "sockets": 4,
        "processes": [{"server_id": "pod-1", "sockets": 2}, {"server_id": "pod-2", "sockets": 2}],
        "users_total": 2,
        "users": [{"user_id": "ada", "sockets": 3}, {"user_id": "bob", "sockets": 1}],
    }


def test_the_users_with_the_most_sockets_are_named():
    """Of more than 100; the others are in the sums."""
    found = count_sockets({f"u{number}": [f"p:{n}" for n in range(1 + number % 2)] for number in range(USERS_MAX + 20)})
    assert (len(found["users"]), found["users_total"], found["sockets"]) == (USERS_MAX, USERS_MAX + 20, 180)
    assert {one["sockets"] for one in found["users"][:60]} == {2}
