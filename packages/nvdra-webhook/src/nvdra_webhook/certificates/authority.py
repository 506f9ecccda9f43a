# SPDX-License-Identifier: Apache-2.0
"""A certificate authority of our own, and the certificates that it signs.

Keys are of ECDSA on P-256, which costs the server less in a handshake than RSA.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nvdra_webhook.certificates import key_pair
from nvdra_webhook.certificates.key_pair import KeyPair, KeyPairError

AUTHORITY_LIFETIME: Final = timedelta(days=730)
SERVING_LIFETIME: Final = timedelta(days=90)

BACKDATED: Final = timedelta(minutes=5)
"""Certificates begin this long before they are made, for API servers whose clock is behind."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A self-signed certificate and its key.

    Attributes:
        certificate_pem: The certificate, in PEM; two authorities with the same one are the same.
        key_pem: Its private key, never in a log.
    """

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)
    certificate: x509.Certificate = field(compare=False)

    @property
    def created(self) -> datetime:
        """When it was made."""
        return self.certificate.not_valid_before_utc + BACKDATED

    def has_signed(self, pair: KeyPair) -> bool:
        """Whether it has signed the certificate of a pair."""
        try:
            pair.certificate.verify_directly_issued_by(self.certificate)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True


def create(now: datetime) -> Authority:
    """Make a new authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"nvdra-webhook CA {serial:x}"[:64])])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(_pem(certificate), _key_pem(key), certificate)


def parse(certificate_pem: bytes, key_pem: bytes, now: datetime) -> Authority:
    """Return the authority of two PEM texts.

    Raises:
        KeyPairError: They cannot be used now.
    """
    pair = key_pair.parse(certificate_pem, key_pem, now)
    return Authority(pair.certificate_pem, pair.key_pem, pair.certificate)


def issue(authority: Authority, dns_names: Collection[str], now: datetime) -> KeyPair:
    """Make a key and sign a certificate for a server with these names.

    Raises:
        KeyPairError: The authority's key is of a kind that we do not make.
    """
    signer = serialization.load_pem_private_key(authority.key_pem, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise KeyPairError("the key of the authority is not one of elliptic curves")
    key = ec.generate_private_key(ec.SECP256R1())
    names = sorted(dns_names)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nvdra-webhook")]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(min(now + SERVING_LIFETIME, authority.certificate.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName(map(x509.DNSName, names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    return KeyPair(_pem(certificate), _key_pem(key), certificate)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
