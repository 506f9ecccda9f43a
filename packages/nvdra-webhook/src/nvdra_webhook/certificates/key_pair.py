# SPDX-License-Identifier: Apache-2.0
"""A server's certificate and its key, in PEM, checked before it is used."""

from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization


class KeyPairError(ValueError):
    """A key pair cannot be used. The message has no part of the key."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with its intermediates, and its key.

    Attributes:
        certificate_pem: The server's certificate first.
        key_pem: Its private key, never in a log.
        certificate: The server's certificate.
    """

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)
    certificate: x509.Certificate = field(compare=False)

    @property
    def not_after(self) -> datetime:
        """When the certificate expires."""
        return self.certificate.not_valid_after_utc

    @property
    def dns_names(self) -> frozenset[str]:
        """The names that the certificate is for."""
        try:
            names = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return frozenset()
        return frozenset(names.value.get_values_for_type(x509.DNSName))


def parse(certificate_pem: bytes, key_pem: bytes, now: datetime) -> KeyPair:
    """Return the key pair of two PEM texts.

    Raises:
        KeyPairError: One cannot be read, they do not belong together, or the certificate is not
            valid now.
    """
    try:
        certificate = x509.load_pem_x509_certificates(certificate_pem)[0]
    except ValueError as error:
        raise KeyPairError(f"the certificate cannot be read: {error}") from error
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError) as error:
        raise KeyPairError("the private key cannot be read") from error
    der = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*der) != certificate.public_key().public_bytes(*der):
        raise KeyPairError("the private key is not that of the certificate")
    if certificate.not_valid_after_utc <= now:
        raise KeyPairError(f"the certificate expired at {certificate.not_valid_after_utc}")
    return KeyPair(certificate_pem, key_pem, certificate)
