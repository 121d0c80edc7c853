"""Checks of a provider's answer: it must belong to this browser's request, and the visitor is
redirected only to our own pages.
"""

from __future__ import annotations

import pytest

from highwater.api.core.auth import Role
from highwater.api.dashboard.openid import Attempt, SignInRefusedError, code_of, read_attempt
from highwater.api.dashboard.sign_in import _own_path
from highwater.api.identity.signing_in import session_role

ATTEMPT = Attempt("st", "no", "ve", "/browse?topic=a~b&x=ü")
OURS = "https://id.example.org"


def test_an_attempt_is_read_as_it_was_written():
    """This holds for any address of the page; a malformed cookie is ignored."""
    assert read_attempt(ATTEMPT.cookie()) == ATTEMPT
    assert ATTEMPT.cookie().isascii()
    for wrong in ("", "a~b~c", "~~~", "a~~c~/"):
        assert read_attempt(wrong) is None


def test_a_code_counts_for_the_attempt_of_this_browser():
    """With the state of its cookie, and no error."""
    assert code_of(ATTEMPT, "st", "", None, "c0de", OURS) == "c0de"
    assert code_of(ATTEMPT, "st", "", OURS, "c0de", OURS) == "c0de"


@pytest.mark.parametrize(
    ("attempt", "state", "error", "issuer", "code", "why"),
    [
        (None, "st", "", None, "c", "did not begin"),
        (ATTEMPT, "", "", None, "c", "did not begin"),
        (ATTEMPT, "st2", "", None, "c", "did not begin"),
        (ATTEMPT, "sté", "", None, "c", "did not begin"),
        (ATTEMPT, "st", "", "https://evil.example", "c", "another OpenID provider"),
        (ATTEMPT, "st", "access_denied", None, "", "access_denied"),
        (ATTEMPT, "st", "<script>", None, "", "gave no code"),
        (ATTEMPT, "st", "", None, "", "gave no code"),
    ],
)
def test_another_answer_is_refused(attempt, state, error, issuer, code, why):
    """Another browser's, another provider's (RFC 9207), or a refusal, of which only a known form is repeated."""
    with pytest.raises(SignInRefusedError, match=why) as caught:
        code_of(attempt, state, error, issuer, code, OURS)
    assert "<" not in str(caught.value)


@pytest.mark.parametrize(
    "wanted", ["/\t/evil.example", "/\t\\evil.example", "\t//evil.example", "/\n/e", "/a\\b", "http:/a"]
)
def test_a_path_that_a_browser_reads_as_another_host_is_not_ours(wanted):
    """Browsers drop tabs and line breaks and take backslashes for slashes."""
    assert _own_path("/browse?topic=a.b") == "/browse?topic=a.b"
    assert _own_path(wanted) == "/"


def test_a_session_has_the_lower_of_two_roles():
    """The provider's word does not go above the role that is stored for the user."""
    assert session_role(Role.ADMIN, None) is Role.ADMIN
    assert session_role(Role.ADMIN, "viewer") is Role.VIEWER
    assert session_role(Role.VIEWER, "admin") is Role.VIEWER
    assert session_role(Role.EDITOR, "assistant") is Role.VIEWER
