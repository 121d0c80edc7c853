"""Whom a token stands for: signatures, times, audiences and roles, decided without a provider."""

from __future__ import annotations

import base64
import hmac
import json
from dataclasses import replace
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from highwater.api.core.auth import Authenticator, Principal, Role, parse_api_keys
from highwater.api.core.errors import UnauthorizedError
from highwater.api.core.oidc import (
    LEEWAY_SECONDS,
    TOKEN_CHARACTERS_MAX,
    InvalidTokenError,
    TokenRules,
    parse_roles,
    principal_of,
    read_credentials,
    read_rules,
    verified_claims,
)
from highwater.connectors.identity.issuer import read_keys
from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import read_settings

NOW_MS = 1_800_000_000_000
ISSUER = "https://id.example.org"
RULES = TokenRules(
    issuer=ISSUER,
    audiences=("highwater",),
    algorithms=("RS256", "ES256", "EdDSA"),
    roles={"staff": Role.EDITOR, "root": Role.ADMIN},
    role_claim="realm_access.roles",
    user_claim="sub",
    organization_claim="org",
)
RSA = RSAKey.generate_key(2048, {"kid": "r"}, private=True)
EC = ECKey.generate_key("P-256", {"kid": "e"}, private=True)
OKP = OKPKey.generate_key("Ed25519", {"kid": "o"}, private=True)
KEYS = read_keys(KeySet([RSA, EC, OKP]).as_dict(private=False))
CLAIMS: dict[str, Any] = {
    "iss": ISSUER,
    "aud": "highwater",
    "sub": "ada",
    "iat": NOW_MS // 1000 - 10,
    "exp": NOW_MS // 1000 + 300,
    "org": "acme",
    "realm_access": {"roles": ["staff", "unknown", 7]},
}


def signed(key: Any = RSA, algorithm: str = "RS256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A token with these claims over the usual ones; None leaves one out."""
    made = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    named = {"alg": algorithm, "kid": key.kid, **(header or {})}
    named = {name: value for name, value in named.items() if value is not None}
    return jwt.encode(named, made, key, algorithms=[algorithm])


def part(document: Any) -> str:
    """One part of a token."""
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


def refused(token: str, **changes: Any) -> str:
    """Why a token is not accepted."""
    with pytest.raises(InvalidTokenError) as caught:
        verified_claims(token, KEYS, replace(RULES, **changes), NOW_MS)
    return str(caught.value)


def test_a_good_token_names_user_organization_and_highest_role():
    """The role is the highest that a value of the claim is mapped to; values that are not mapped give none."""
    claims = verified_claims(signed(realm_access={"roles": ["staff", "root"]}), KEYS, RULES, NOW_MS)
    assert principal_of(claims, RULES) == Principal(Role.ADMIN, "ada", organization_id="acme")


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA, "RS256"), (EC, "ES256"), (OKP, "EdDSA")], ids=["RSA", "EC", "OKP"]
)
def test_each_algorithm_of_the_list_verifies_with_keys_of_its_type(key, algorithm):
    """RSA, elliptic curves and Edwards curves."""
    assert verified_claims(signed(key, algorithm), KEYS, RULES, NOW_MS)["sub"] == "ada"


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "RS384", "ES256K", "", None, ["RS256"]])
def test_an_algorithm_outside_the_list_is_refused(algorithm):
    """`none` and symmetric ones above all: the header is the sender's own word."""
    token = f"{part({'alg': algorithm, 'kid': 'r'})}.{part(CLAIMS)}."
    assert "not accepted" in refused(token)


def test_a_public_key_is_no_secret():
    """A token signed by HMAC with the text of the public key, which everybody has, is refused (RFC 8725, section 2.1)."""
    signed_part = f"{part({'alg': 'HS256', 'kid': 'r'})}.{part(CLAIMS)}"
    mac = hmac.digest(RSA.as_pem(private=False), signed_part.encode(), "sha256")
    token = f"{signed_part}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    assert "HS256" in refused(token)
    assert "HS256" in refused(token, algorithms=("HS256",))


def test_an_algorithm_takes_keys_of_its_own_type_only():
    """ES256 with the id of the RSA key finds no key."""
    assert "does not publish" in refused(signed(EC, "ES256", {"kid": "r"}))


def test_a_key_that_the_token_brings_along_is_ignored():
    """`jwk` in the header is the sender's own key."""
    other = ECKey.generate_key("P-256", private=True)
    token = signed(other, "ES256", {"kid": "e", "jwk": other.as_dict(private=False)})
    assert "bad_signature" in refused(token)


def test_a_changed_claim_breaks_the_signature():
    """One who makes himself root is refused."""
    head, _, signature = signed().split(".")
    assert "bad_signature" in refused(f"{head}.{part({**CLAIMS, 'sub': 'root'})}.{signature}")


def test_an_unknown_key_is_refused_and_no_id_needs_an_only_key():
    """Without a key id the one key of that type is used; two would be a guess."""
    assert "does not publish" in refused(signed(header={"kid": "new"}))
    assert verified_claims(signed(header={"kid": None}), KEYS, RULES, NOW_MS)["sub"] == "ada"
    both = read_keys(KeySet([RSA, RSAKey.generate_key(2048, {"kid": "s"})]).as_dict(private=False))
    with pytest.raises(InvalidTokenError, match="does not publish"):
        verified_claims(signed(header={"kid": None}), both, RULES, NOW_MS)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://id.example.org/"}, "iss"),
        ({"iss": None}, "iss"),
        ({"aud": "another"}, "aud"),
        ({"aud": None}, "aud"),
        ({"aud": ["another", "third"]}, "aud"),
        ({"exp": None}, "exp"),
        ({"exp": "soon"}, "exp"),
        ({"exp": NOW_MS // 1000 - LEEWAY_SECONDS}, "expired"),
        ({"nbf": NOW_MS // 1000 + LEEWAY_SECONDS + 1}, "not yet valid"),
        ({"iat": NOW_MS // 1000 + LEEWAY_SECONDS + 1}, "in the future"),
    ],
)
def test_claims_that_do_not_fit_are_refused(claims, why):
    """Another issuer or audience, a token without an end, after it, or before its time."""
    assert why in refused(signed(**claims))


def test_clocks_may_differ_a_little():
    """Within the leeway a token that has just expired, or is about to be valid, counts."""
    second = NOW_MS // 1000
    for claims in ({"exp": second - LEEWAY_SECONDS + 1}, {"nbf": second + LEEWAY_SECONDS}, {"aud": ["x", "highwater"]}):
        assert verified_claims(signed(**claims), KEYS, RULES, NOW_MS)["sub"] == "ada"


@pytest.mark.parametrize(
    "token",
    ["", "..", "a.b.c", "eyJ.eyJ.eyJ", "é.b.c", f"{part([])}.x.y", f"{part('alg')}.x.y", "e" * (TOKEN_CHARACTERS_MAX + 1),
     part({"alg": "RS256", "crit": ["x"], "x": 1}) + ".e30.e30", "W1tb" * 150 + ".e30.e30"],
)  # fmt: skip
def test_what_is_no_token_is_refused(token):
    """For any malformed token only `InvalidTokenError` is raised."""
    assert refused(token)


@pytest.mark.parametrize("kind", ["logout+jwt", "dpop+jwt", 7])
def test_a_token_made_for_another_purpose_is_refused(kind):
    """Its type says so (RFC 8725, section 3.11); an access token's own type is fine."""
    assert verified_claims(signed(header={"typ": "at+jwt"}), KEYS, RULES, NOW_MS)["sub"] == "ada"
    payload = jwt.encode({"alg": "RS256", "kid": "r"}, CLAIMS, RSA).split(".")[1]
    assert refused(f"{part({'alg': 'RS256', 'kid': 'r', 'typ': kind})}.{payload}.e30")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"realm_access": {"roles": []}}, "no role"),
        ({"realm_access": {"roles": "unknown"}}, "no role"),
        ({"realm_access": "staff"}, "no role"),
        ({"realm_access": None}, "no role"),
        ({"sub": None}, "no claim sub"),
        ({"sub": " "}, "empty"),
        ({"sub": "a\nb"}, "control character"),
        ({"org": ["acme"]}, "not a string"),
    ],
)
def test_somebody_without_a_role_or_an_id_gets_nothing(claims, why):
    """A person whom the provider knows is not a person who may do something here."""
    made = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    with pytest.raises(InvalidTokenError, match=why):
        principal_of(made, RULES)


def test_roles_in_a_text_are_separated_by_spaces_and_a_name_may_hold_dots():
    """As `scope` is; a claim of exactly that name goes before a path."""
    rules = replace(RULES, role_claim="https://example.org/roles", organization_claim=None)
    claims = {**CLAIMS, "https://example.org/roles": "email staff"}
    assert principal_of(claims, rules) == Principal(Role.EDITOR, "ada")


def test_an_address_names_a_user_only_if_it_is_verified():
    """Anybody can claim an address at a provider that does not verify it."""
    rules = replace(RULES, user_claim="email")
    with pytest.raises(InvalidTokenError, match="not verified"):
        principal_of({**CLAIMS, "email": "ada@example.org"}, rules)
    verified = {**CLAIMS, "email": "ada@example.org", "email_verified": True}
    assert principal_of(verified, rules).user_id == "ada@example.org"


async def test_a_token_is_read_where_a_provider_is_configured():
    """Keys are checked first, and any other text is refused; with a provider the API is never open without a key."""

    async def no_session(_token: str) -> None:
        return None

    async def read_token(_token: str) -> Principal:
        return Principal(Role.VIEWER, "ada")

    authenticator = Authenticator(parse_api_keys("admin:a.b.c"), no_session, read_token=read_token)
    assert (await authenticator.principal("Bearer a.b.c")).role is Role.ADMIN
    assert await authenticator.principal("Bearer x.y.z") == Principal(Role.VIEWER, "ada")
    with pytest.raises(UnauthorizedError):
        await authenticator.principal("Bearer wrong-key")
    only_people = Authenticator((), no_session, read_token=read_token)
    assert (only_people.is_open, only_people.quick(None)) == (False, None)
    with pytest.raises(UnauthorizedError):
        await only_people.principal(None)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"CLIENT_ID": "c"}, "need HIGHWATER_OIDC_ISSUER"),
        ({"ISSUER": "https://id.example.org"}, "HIGHWATER_OIDC_CLIENT_ID or"),
        ({"ISSUER": "http://id.example.org", "CLIENT_ID": "c"}, "not an https"),
        ({"ISSUER": "https://u@id.example.org", "CLIENT_ID": "c"}, "not an https"),
        ({"ISSUER": "https://id.example.org", "CLIENT_ID": "c", "ALGORITHMS": "RS256,HS256"}, "HS256 is none of"),
        ({"ISSUER": "https://id.example.org", "CLIENT_ID": "c", "ALGORITHMS": "none"}, "none is none of"),
        ({"ISSUER": "https://id.example.org", "CLIENT_ID": "c", "ROLES": "a=owner"}, "viewer|assistant|editor|admin"),
        ({"ISSUER": "https://id.example.org", "CLIENT_ID": "c", "REDIRECT_URL": "http://x.org/"}, "not an https"),
    ],
)
def test_settings_that_cannot_be_used_stop_the_program(settings, why):
    """Each with a line that names the setting."""
    with pytest.raises(ConfigurationError) as caught:
        read_rules(read_settings({f"HIGHWATER_OIDC_{name}": value for name, value in settings.items()}))
    assert why in str(caught.value)


def test_the_secret_is_a_setting_or_a_file(tmp_path):
    """Not both; a file's last line break is not part of it."""
    path = tmp_path / "secret"
    path.write_text("s3cret\n", encoding="utf-8")
    named = {"HIGHWATER_OIDC_ISSUER": "http://127.0.0.1:1", "HIGHWATER_OIDC_CLIENT_ID": "c"}
    from_file = {**named, "HIGHWATER_OIDC_CLIENT_SECRET_FILE": str(path)}
    found = read_credentials(read_settings(from_file))
    assert found is not None
    assert found.secret == "s3cret"
    with pytest.raises(ConfigurationError, match="both"):
        read_credentials(read_settings({**from_file, "HIGHWATER_OIDC_CLIENT_SECRET": "x"}))
    public = read_credentials(read_settings(named))
    assert public is not None
    assert public.secret is None
    assert read_credentials(read_settings({})) is None
    assert parse_roles(" a=b=admin , c=viewer,") == {"a=b": Role.ADMIN, "c": Role.VIEWER}
