"""The certificate of the API: whether it can be used, and how a command on this machine trusts it.

Invariant: a command that calls the API of its own settings trusts only that certificate, with any name; every
other client trusts `HIGHWATER_CA_FILE` or the system's authorities, and checks the name.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import Settings


def check_tls(settings: Settings) -> None:
    """Refuse a certificate without its key, and unusable files.

    Raises:
        ConfigurationError: names the settings.
    """
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise ConfigurationError("HIGHWATER_TLS_CERT_FILE and HIGHWATER_TLS_KEY_FILE must be set together")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise ConfigurationError(
            f"HIGHWATER_TLS_CERT_FILE={certificate} with HIGHWATER_TLS_KEY_FILE={key} cannot be used: {error}"
        ) from error


def trusted_by_clients(settings: Settings, *, is_own: bool) -> ssl.SSLContext:
    """Return what a client of the API trusts; `is_own`: it calls the API of these settings.

    Raises:
        ConfigurationError: a file cannot be read.
    """
    if is_own and settings.tls_cert_file is not None:
        return pinned(settings.tls_cert_file)
    context = ssl.create_default_context()
    if settings.ca_file is not None:
        _load(context, settings.ca_file, "HIGHWATER_CA_FILE")
    return context


def pinned(certificate: Path) -> ssl.SSLContext:
    """Return a context that trusts only the certificates of one file: their owner is known, so no name is compared.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _load(context, certificate, "HIGHWATER_TLS_CERT_FILE")
    return context


def _load(context: ssl.SSLContext, path: Path, name: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name}={path} cannot be read: {error}") from error
