"""Certificates made on the spot: an authority, and what it signs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from highwater.streams.clock import ProductClock, to_datetime

_LIFE = timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates for names and addresses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
        basic = x509.BasicConstraints(ca=True, path_length=0)
        unsigned = self._builder(self._name, self._key).add_extension(basic, critical=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(unsigned.sign(self._key, SHA256()).public_bytes(Encoding.PEM))

    def sign(self, *names: str) -> Pair:
        """A certificate for names of hosts and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        about = x509.SubjectAlternativeName([_named(name) for name in names])
        signed = self._builder(subject, key).add_extension(about, critical=False).sign(self._key, SHA256())
        pair = Pair(self._folder / f"{names[0]}.pem", self._folder / f"{names[0]}.key")
        pair.certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pair

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = to_datetime(ProductClock()())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LIFE)
            .not_valid_after(now + _LIFE)
        )


def _named(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
