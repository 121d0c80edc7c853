"""What must be right before the API listens: its certificate, and who may use it."""

from __future__ import annotations

from highwater.api.core.auth import parse_api_keys, refuse_public_address_without_keys
from highwater.api.core.keys import read_key_file
from highwater.api.core.oidc import read_credentials, read_rules
from highwater.api.core.proxies import parse_networks
from highwater.api.core.sites import parse_origins
from highwater.api.core.tls import check_tls
from highwater.streams.settings import Settings


def check_listening(settings: Settings) -> None:
    """Refuse settings with which the API must not listen.

    Raises:
        ConfigurationError: the certificate, the API keys, the OpenID provider, the trusted proxies or the allowed origins
            cannot be used, or the API would be open to others than this machine.
    """
    check_tls(settings)
    keys = parse_api_keys(settings.api_keys)
    has_people = read_rules(settings) is not None
    read_credentials(settings)
    if settings.api_keys_file is not None:
        read_key_file(settings.api_keys_file)
    elif not has_people:
        refuse_public_address_without_keys(settings.host, keys)
    parse_networks(settings.trusted_proxies)
    parse_origins(settings.allowed_origins)
