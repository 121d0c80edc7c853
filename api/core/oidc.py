"""Maps a token of the configured OpenID provider to a principal (RFC 7519, RFC 8725, RFC 9068, OpenID Connect Core
1.0).

Invariants. Nothing in a token is trusted before its signature is verified. Only asymmetric algorithms of the allow-list
are accepted, each with the provider's published keys of its type; a key inside a token is ignored. A token is accepted
for the configured issuer, for one of the audiences, and within its times plus or minus `LEEWAY_SECONDS`. A person
without a mapped role is refused. Only `TokenReader` reads the clock and keys; the decisions take them as arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jws import JWSRegistry, extract_compact
from joserfc.jwt import JWTClaimsRegistry

from highwater.api.core.auth import ROLES, Principal, Role
from highwater.api.core.errors import UnauthorizedError
from highwater.connectors.identity.issuer import ClientCredentials, Issuer, IssuerKeys, PublicKey, check_address
from highwater.schemas.errors import ConfigurationError, InvalidEventError
from highwater.streams.checks import check_id
from highwater.streams.clock import Clock
from highwater.streams.settings import Settings

# Clocks of two hosts differ by less; a larger value would accept expired tokens for longer.
LEEWAY_SECONDS = 30
# Tokens with many groups have 5 kB; a header field of this length is what most servers accept.
TOKEN_CHARACTERS_MAX = 16_384
# The type of key that each algorithm verifies with. `none` and HS* are not here and cannot be configured.
KEY_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    **dict.fromkeys(("EdDSA", "Ed25519"), "OKP"),
}
# RFC 8725, section 3.11: a token made for another purpose, as a logout token, says so in its header.
_TOKEN_TYPES = (None, "jwt", "at+jwt", "application/jwt", "application/at+jwt")
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="highwater", error="invalid_token"'}


class InvalidTokenError(UnauthorizedError):
    """The token is not accepted. Sign in at the OpenID provider again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, headers=_CHALLENGE)


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What is accepted, and which claims hold which value."""

    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]
    roles: Mapping[str, Role]
    role_claim: str
    user_claim: str
    organization_claim: str | None


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """What a token declares about its signature, not yet verified."""

    algorithm: str
    kid: str | None


def read_rules(settings: Settings) -> TokenRules | None:
    """The rules of the settings; None: no provider is configured.

    Raises:
        ConfigurationError: a setting cannot be used, or one is missing.
    """
    if settings.oidc_issuer is None:
        if settings.oidc_client_id is not None or settings.oidc_audience:
            raise ConfigurationError("HIGHWATER_OIDC_CLIENT_ID and HIGHWATER_OIDC_AUDIENCE need HIGHWATER_OIDC_ISSUER")
        return None
    check_address("HIGHWATER_OIDC_ISSUER", settings.oidc_issuer)
    if settings.oidc_redirect_url is not None:
        check_address("HIGHWATER_OIDC_REDIRECT_URL", settings.oidc_redirect_url)
    client = () if settings.oidc_client_id is None else (settings.oidc_client_id,)
    audiences = tuple(dict.fromkeys((*client, *settings.oidc_audience)))
    if not audiences:
        raise ConfigurationError("HIGHWATER_OIDC_ISSUER needs HIGHWATER_OIDC_CLIENT_ID or HIGHWATER_OIDC_AUDIENCE")
    unsafe = sorted(set(settings.oidc_algorithms) - set(KEY_TYPES))
    if unsafe or not settings.oidc_algorithms:
        raise ConfigurationError(f"HIGHWATER_OIDC_ALGORITHMS: {', '.join(unsafe)} is none of {', '.join(KEY_TYPES)}")
    return TokenRules(
        issuer=settings.oidc_issuer,
        audiences=audiences,
        algorithms=settings.oidc_algorithms,
        roles=parse_roles(settings.oidc_roles),
        role_claim=settings.oidc_role_claim,
        user_claim=settings.oidc_user_claim,
        organization_claim=settings.oidc_organization_claim,
    )


def parse_roles(text: str) -> dict[str, Role]:
    """The mapping in `value=role`, comma-separated.

    Raises:
        ConfigurationError: an entry has another form.
    """
    roles = {}
    for entry in filter(None, (one.strip() for one in text.split(","))):
        value, _, role = entry.rpartition("=")
        if not value or role not in ROLES:
            raise ConfigurationError(f"HIGHWATER_OIDC_ROLES: {entry!r} is not value={'|'.join(ROLES)}")
        roles[value] = ROLES[role]
    return roles


def read_credentials(settings: Settings) -> ClientCredentials | None:
    """Return how the dashboard signs people in; None: no client is configured, so that only bearer tokens are accepted.

    Raises:
        ConfigurationError: two secrets are given, or the file cannot be read.
    """
    if settings.oidc_issuer is None or settings.oidc_client_id is None:
        return None
    secret, path = settings.oidc_client_secret, settings.oidc_client_secret_file
    if path is not None:
        if secret is not None:
            raise ConfigurationError("HIGHWATER_OIDC_CLIENT_SECRET and HIGHWATER_OIDC_CLIENT_SECRET_FILE are both set")
        try:
            secret = path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"HIGHWATER_OIDC_CLIENT_SECRET_FILE: {error}") from error
    return ClientCredentials(settings.oidc_client_id, secret or None)


class _Registry(JWSRegistry):
    """Algorithms by the allow-list alone; unknown header fields are ignored unless they are critical (RFC 7515, 4.1.11)."""

    def __init__(self, algorithms: tuple[str, ...]) -> None:
        super().__init__(algorithms=algorithms, strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        if name not in KEY_TYPES or name not in (self.allowed or ()):
            raise UnsupportedAlgorithmError(f"the algorithm {name} is not accepted")
        return self.algorithms[name]


def read_header(token: str, rules: TokenRules) -> TokenHeader:
    """Return what a token declares about its signature.

    Raises:
        InvalidTokenError: it is malformed, too long, or signed in a way that is not accepted.
    """
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise InvalidTokenError(f"the token is longer than {TOKEN_CHARACTERS_MAX} characters")
    registry = _Registry(rules.algorithms)
    try:
        header = extract_compact(token.encode("ascii"), registry=registry).headers()
        registry.check_header(header)
        registry.get_alg(header["alg"])
    except (JoseError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidTokenError(f"the token is not accepted: {error}") from error
    kind, kid = header.get("typ"), header.get("kid")
    if not (kind is None or isinstance(kind, str)) or (kind and kind.lower()) not in _TOKEN_TYPES:
        raise InvalidTokenError("the token is of a type that grants no access")
    if not (kid is None or isinstance(kid, str)):
        raise InvalidTokenError("the token's key id is not a string")
    return TokenHeader(header["alg"], kid)


def find_key(header: TokenHeader, keys: IssuerKeys) -> PublicKey:
    """Return the key that verifies a token; a token without a key id needs the provider's only key of that type.

    Raises:
        InvalidTokenError: there is none, or more than one.
    """
    fitting = [
        key
        for name, key in keys.keys
        if header.kid in (None, name)
        and key.key_type == KEY_TYPES[header.algorithm]
        and key.get("alg") in (None, header.algorithm)
    ]
    if len(fitting) != 1:
        raise InvalidTokenError("the token is signed with a key that the OpenID provider does not publish")
    return fitting[0]


def verified_claims(
    token: str, keys: IssuerKeys, rules: TokenRules, now_ms: int, audiences: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """Return the claims of a token that is accepted at this time; `audiences` replaces those of the rules.

    Raises:
        InvalidTokenError: it is not accepted; gives the reason.
    """
    header = read_header(token, rules)
    checks = JWTClaimsRegistry(
        now=now_ms // 1000,
        leeway=LEEWAY_SECONDS,
        iss={"essential": True, "value": rules.issuer},
        aud={"essential": True, "values": list(audiences or rules.audiences)},
        exp={"essential": True},
    )
    try:
        claims = jwt.decode(token, find_key(header, keys), registry=_Registry(rules.algorithms)).claims
        checks.validate(claims)
    except (JoseError, ValueError, TypeError, RecursionError) as error:
        raise InvalidTokenError(f"the token is not accepted: {error}") from error
    return claims


def principal_of(claims: Mapping[str, Any], rules: TokenRules) -> Principal:
    """Return the principal of verified claims: a user, perhaps of an organization, with the highest mapped role.

    Raises:
        InvalidTokenError: they name no user, or give no role.
    """
    user_id = _id_in(claims, rules.user_claim)
    if user_id is None:
        raise InvalidTokenError(f"the token has no claim {rules.user_claim}")
    if rules.user_claim == "email" and claims.get("email_verified") is not True:
        # At a provider that does not verify addresses, anybody can claim one.
        raise InvalidTokenError("the OpenID provider has not verified the address in the token")
    organization = None if rules.organization_claim is None else _id_in(claims, rules.organization_claim)
    named = claim_at(claims, rules.role_claim)
    values = named.split() if isinstance(named, str) else named if isinstance(named, list) else []
    roles = [rules.roles[value] for value in values if isinstance(value, str) and value in rules.roles]
    if not roles:
        raise InvalidTokenError(f"the token's claim {rules.role_claim} gives no role here")
    return Principal(max(roles), user_id, organization_id=organization)


def claim_at(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name, or by a path such as `realm_access.roles`; None if there is none."""
    if name in claims:
        return claims[name]
    first, _, rest = name.partition(".")
    inner = claims.get(first)
    return claim_at(inner, rest) if rest and isinstance(inner, Mapping) else None


def _id_in(claims: Mapping[str, Any], name: str) -> str | None:
    value = claim_at(claims, name)
    if value is None:
        return None
    try:
        if not isinstance(value, str):
            raise InvalidTokenError(f"the token's claim {name} is not a string")
        check_id(name, value)
    except InvalidEventError as error:
        raise InvalidTokenError(f"the token's claim: {error}") from error
    return value


class TokenReader:
    """Reads tokens of one provider: gathers its keys and the time, and decides."""

    def __init__(self, rules: TokenRules, issuer: Issuer, clock: Clock) -> None:
        self.rules = rules
        self.issuer = issuer
        self._clock = clock

    async def principal(self, token: str) -> Principal:
        """Return the principal of a bearer token.

        Raises:
            InvalidTokenError: it is not accepted.
            IssuerUnavailableError: the provider's keys are unknown.
        """
        return principal_of(await self._claims(token), self.rules)

    async def signed_in(self, token: str, client_id: str, nonce: str) -> tuple[Principal, str]:
        """Return the principal of the ID token of a sign-in, and the e-mail address in it, empty if there is none.

        Raises:
            InvalidTokenError: it is not accepted, or was issued for another sign-in (OpenID Connect Core, 3.1.3.7).
            IssuerUnavailableError: the provider's keys are unknown.
        """
        claims = await self._claims(token, (client_id,))
        if claims.get("azp", client_id) != client_id:
            raise InvalidTokenError("the token was issued to another client")
        said = claims.get("nonce")
        if not isinstance(said, str) or not compare_digest(said.encode(), nonce.encode()):
            raise InvalidTokenError("the token belongs to another sign-in")
        email = claims.get("email")
        return principal_of(claims, self.rules), email if isinstance(email, str) else ""

    async def _claims(self, token: str, audiences: tuple[str, ...] | None = None) -> dict[str, Any]:
        header = read_header(token, self.rules)
        keys = await self.issuer.keys(header.kid)
        return verified_claims(token, keys, self.rules, self._clock(), audiences)
