"""Real certificates, made in the test: an authority and what it signs."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM files of a certificate and its key."""

    certificate: Path
    key: Path

    @property
    def serial(self) -> int:
        return x509.load_pem_x509_certificate(self.certificate.read_bytes()).serial_number


class Authority:
    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.file = folder / f"{name}.pem"
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        made = _builder(self._name, self._name, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, *names: str) -> Pair:
        """A certificate for 127.0.0.1, localhost and ``names``; again, and the files are others."""
        key = ec.generate_private_key(ec.SECP256R1())
        found = [
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            *(x509.DNSName(each) for each in ("localhost", *names)),
        ]
        made = _builder(_name(name), self._name, key.public_key())
        made = made.add_extension(x509.SubjectAlternativeName(found), critical=False)
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        pair.certificate.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        return pair

    @classmethod
    def in_(cls, folder: Path) -> Self:
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
