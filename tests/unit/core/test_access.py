"""Decisions on access: how principals stand to owners, what declarations allow, and which keys a stream of changes shows."""

from __future__ import annotations

from typing import Any

import pytest

import highwater.api.app  # noqa: F401 - the routes know their converters once the application was put together
from highwater.api.core.access import (
    PUBLIC,
    Access,
    OwnedBy,
    Owner,
    Refusal,
    Relation,
    Scope,
    may_act_for,
    owner_refusal,
    refusal,
    relation,
)
from highwater.api.core.auth import Principal, Role
from highwater.api.core.errors import ForbiddenError, NotFoundError
from highwater.api.core.guard import Caller, UncheckedOwnerError
from highwater.api.core.resources import JOB, may_read_key
from highwater.api.jobs.routes import READ_JOB
from highwater.streams.chunks.passports import load_passports

ADA_OF_ACME = Owner("ada", "acme")
END = Access(Role.EDITOR, Scope.JOBS, OwnedBy.JOB, own=Role.VIEWER)
UUID = "11111111-1111-4111-8111-11111111111a"


@pytest.mark.parametrize(
    ("principal", "expected", "ends"),
    [
        (Principal(Role.VIEWER), Relation.ANY, Refusal.ROLE),
        (Principal(Role.EDITOR), Relation.ANY, None),
        (Principal(Role.ADMIN, "bob", organization_id="else"), Relation.ANY, None),
        (Principal(Role.VIEWER, "ada"), Relation.OWN, None),
        (Principal(Role.VIEWER, "ada", "s", organization_id="else"), Relation.OWN, None),
        (Principal(Role.VIEWER, "eve", organization_id="acme"), Relation.COLLEAGUE, Refusal.ROLE),
        (Principal(Role.EDITOR, "eve", "s", organization_id="acme"), Relation.COLLEAGUE, None),
        (Principal(Role.EDITOR, organization_id="acme"), Relation.COLLEAGUE, None),
        (Principal(Role.EDITOR, "bob", organization_id="else"), Relation.NONE, Refusal.OWNER),
        (Principal(Role.EDITOR, organization_id="else"), Relation.NONE, Refusal.OWNER),
        (Principal(Role.EDITOR, "bob"), Relation.NONE, Refusal.OWNER),
    ],
)
def test_how_a_principal_stands_to_an_owner(principal: Principal, expected: Relation, ends: Refusal | None) -> None:
    """Ada's job of Acme: keys and sessions alike; who may read it, and who may end it."""
    assert relation(principal, ADA_OF_ACME) is expected
    assert owner_refusal(END, principal, ADA_OF_ACME) is ends
    assert owner_refusal(READ_JOB, principal, ADA_OF_ACME) is (Refusal.OWNER if expected is Relation.NONE else None)


def test_roles_stand_above_each_other() -> None:
    """Each includes those below it, but an editor is not an assistant; a session that two roles limit has what both have."""
    viewer, assistant, editor, admin = Role
    included = {role: {other for other in Role if role.includes(other)} for role in Role}
    assert included == {
        viewer: {viewer}, assistant: {viewer, assistant}, editor: {viewer, editor}, admin: set(Role),
    }  # fmt: skip
    assert [editor.shared(assistant), assistant.shared(editor), assistant.shared(admin)] == [viewer, viewer, assistant]
    assert all(role.shared(role) is role for role in Role)


def test_a_further_role_is_let_in_everywhere() -> None:
    """Bound or not, for resources of every owner; its own subsystem and the record of its actions stay."""
    declaration = Access(Role.ADMIN, Scope.LEAGUE, OwnedBy.DEPLOYMENT, also=Role.ASSISTANT)
    bound = Principal(Role.ASSISTANT, "ada", organization_id="acme")
    assert (refusal(declaration, bound), owner_refusal(declaration, bound, Owner())) == (None, None)
    assert refusal(declaration, Principal(Role.EDITOR)) is Refusal.ROLE
    limited = Principal(Role.ASSISTANT, scopes=frozenset({"feeds"}))
    assert refusal(declaration, limited) is Refusal.SCOPE
    assert declaration.is_privileged
    assert refusal(Access(Role.EDITOR, Scope.LEAGUE), bound) is Refusal.ROLE


def test_in_whose_name_something_is_made() -> None:
    """A bound principal acts for its own user and organization alone; a key of an organization for each of its users."""
    own = Principal(Role.VIEWER, "ada", organization_id="acme")
    assert may_act_for(own, ADA_OF_ACME)
    assert may_act_for(own, Owner("ada"))
    for other in (Owner("bob", "acme"), Owner("ada", "else"), Owner(None, "acme"), Owner()):
        assert not may_act_for(own, other), other
    assert not may_act_for(Principal(Role.EDITOR, "ada"), ADA_OF_ACME)
    assert may_act_for(Principal(Role.EDITOR, organization_id="acme"), ADA_OF_ACME)
    assert not may_act_for(Principal(Role.EDITOR, organization_id="acme"), Owner("ada"))
    assert may_act_for(Principal(Role.ADMIN, "bob", organization_id="else"), ADA_OF_ACME)


def test_what_is_refused_before_the_body_is_read() -> None:
    """A role that no resource would make enough, a subsystem that the key is not for, a session where keys alone may."""
    assert refusal(END, Principal(Role.VIEWER)) is Refusal.ROLE
    assert refusal(END, Principal(Role.VIEWER, organization_id="acme")) is Refusal.ROLE
    assert refusal(END, Principal(Role.VIEWER, "ada")) is None
    assert refusal(PUBLIC, Principal(Role.VIEWER, scopes=frozenset())) is None
    limited = Principal(Role.ADMIN, scopes=frozenset({"feeds"}))
    assert refusal(END, limited) is Refusal.SCOPE
    assert refusal(Access(Role.VIEWER, Scope.FEEDS), limited) is None
    assert refusal(Access(Role.VIEWER, Scope.ADMIN, keys_only=True), Principal(Role.ADMIN, "a", "s")) is Refusal.SESSION


def test_a_uuid_is_one_user_in_both_cases_and_a_name_is_not() -> None:
    """The settings may write a UUID in capitals; any other id is taken as it is."""
    assert Principal(Role.VIEWER, UUID.upper()).is_user(UUID)
    assert not Principal(Role.VIEWER, "Ada").is_user("ada")
    assert not Principal(Role.VIEWER).is_user("ada")


async def test_what_belongs_to_others_is_answered_as_what_does_not_exist() -> None:
    """The answer has the same text for any id."""
    services: Any = None
    found: Any = type("Job", (), {"user_id": "ada", "organization_id": "acme"})()
    said = []
    for value in (found, None):
        with pytest.raises(NotFoundError) as caught:
            Caller(services, READ_JOB, Principal(Role.VIEWER, "bob")).shown(JOB, value, UUID)
        said.append(str(caught.value))
    assert said == [f"there is no job {UUID}"] * 2
    with pytest.raises(ForbiddenError):
        Caller(services, END, Principal(Role.VIEWER, "eve", organization_id="acme")).shown(JOB, found, UUID)


def test_nothing_is_answered_before_its_owner_was_checked() -> None:
    """An operation that omits the check fails, and one without owned resources needs none."""
    services: Any = None
    asker = Caller(services, READ_JOB, Principal(Role.ADMIN))
    with pytest.raises(UncheckedOwnerError):
        asker.require_checked()
    asker.owner(ADA_OF_ACME)
    asker.require_checked()
    Caller(services, Access(Role.VIEWER, Scope.LEAGUE), Principal(Role.VIEWER)).require_checked()


@pytest.mark.parametrize(
    ("key", "viewer", "ada", "acme"),
    [
        ("feed:ada", True, True, False),
        ("clusters:bob", True, False, False),
        ("league:table:2026", True, True, True),
        ("predictions:user:ada", True, True, False),
        ("predictions:user:bob", True, False, False),
        ("achievements:bob", True, False, False),
        ("admin:stats", False, False, False),
        ("ns:docs", True, True, True),
        ("ns:closed", True, False, False),
        ("unheard:of", True, False, False),
    ],
)
def test_keys_that_a_stream_of_changes_shows(key: str, viewer: bool, ada: bool, acme: bool) -> None:
    """Each caller sees what it may read; an admin sees all, and a limited key its subsystems."""
    passports = load_passports()
    principals = (Principal(Role.VIEWER), Principal(Role.EDITOR, "ada"), Principal(Role.EDITOR, organization_id="acme"))
    assert [may_read_key(one, key, passports) for one in principals] == [viewer, ada, acme]
    assert may_read_key(Principal(Role.ADMIN, "ada"), key, passports)
    assert not may_read_key(Principal(Role.ADMIN, scopes=frozenset({"queries"})), key, passports) or key == "unheard:of"
