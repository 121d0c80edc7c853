"""The certificates of a stack with TLS: its own authority, and one certificate for each server.

Owns <data_dir>/tls. Invariants: only the clients of its own stack trust an authority, and its key is deleted once the
servers' certificates are signed, so nobody can sign another one; certificates near their end are recreated at the next
start.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from highwater.deploy.local.private import make_folder, write_file

FOLDER = "tls"
SERVERS = ("kafka", "schema_registry", "database", "redis", "redis_cache")
DAYS_VALID = 825  # the maximum that every client library accepts from a private authority
DAYS_LEFT_MIN = 30  # recreated at a start with less: a stack is seldom left running for longer than that
# Clocks of one machine agree; a snapshot of a virtual machine may be resumed slightly in the past.
BACKDATED = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The PEM files of a stack."""

    folder: Path

    @property
    def authority(self) -> Path:
        """Return the certificate that clients must trust."""
        return self.folder / "ca.pem"

    def certificate(self, server: str) -> Path:
        """Return a server's certificate."""
        return self.folder / f"{server}.crt"

    def key(self, server: str) -> Path:
        """Return its private key (PKCS #8, not encrypted)."""
        return self.folder / f"{server}.key"

    def both(self, server: str) -> Path:
        """Return key and certificate in one file, as Kafka's PEM key store needs them."""
        return self.folder / f"{server}.pem"


def certificates_of(data_dir: Path, now: datetime) -> Certificates:
    """Return the certificates of a data folder; created if they are missing or expire soon."""
    found = Certificates(data_dir / FOLDER)
    if _lasts(found, now):
        return found
    # Written to another folder, then renamed: an interrupted start leaves no incomplete set.
    scratch = Certificates(data_dir / f"{FOLDER}.new")
    shutil.rmtree(scratch.folder, ignore_errors=True)
    make_folder(scratch.folder)
    _make(scratch, now)
    shutil.rmtree(found.folder, ignore_errors=True)
    os.replace(scratch.folder, found.folder)  # noqa: PTH105 - says that it is the atomic one
    return found


def _lasts(found: Certificates, now: datetime) -> bool:
    try:
        authority = x509.load_pem_x509_certificate(found.authority.read_bytes())
    except (OSError, ValueError):
        return False
    is_complete = all(
        path(server).is_file() for server in SERVERS for path in (found.certificate, found.key, found.both)
    )
    return is_complete and authority.not_valid_after_utc - now > timedelta(days=DAYS_LEFT_MIN)


def _make(made: Certificates, now: datetime) -> None:
    authority_key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Highwater local stack {x509.random_serial_number():x}"[:64])
    authority = (
        _builder(name, name, authority_key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    write_file(made.authority, _pem(authority))
    names = x509.SubjectAlternativeName(
        [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.IPAddress(ipaddress.ip_address("::1")),
        ]
    )
    # Kafka's broker and controller are clients of each other as well.
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    for server in SERVERS:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_name(server), name, key, now)
            .add_extension(names, critical=False)
            .add_extension(uses, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
            .sign(authority_key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        write_file(made.key(server), private)
        write_file(made.certificate(server), _pem(certificate))
        write_file(made.both(server), private + _pem(certificate))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - BACKDATED)
        .not_valid_after(now.astimezone(UTC) + timedelta(days=DAYS_VALID))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
